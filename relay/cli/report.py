"""The one place where commands print: JSON for programs on standard output, tables and lines for people."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from inspect import getdoc
from itertools import repeat, zip_longest
from typing import Annotated, Any, Final

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from relay.message.control_characters import escaped

ConfigArgument = Annotated[
    str, typer.Argument(metavar="CONFIG", help="The configuration, such as relay.toml.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
_PIPE_WIDTH: Final = 1000
"""Columns of a line that no person's window bounds; a table is no wider than its cells. Of a window without any, nothing would be shown."""


class _Told(logging.Handler):
    """Prints what a command waits for on standard error, for a person, and the same sentence once."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        sentence = record.getMessage()
        if sentence not in self._said and sys.stderr.isatty():
            self._said.add(sentence)
            typer.echo(_harmless(sentence), err=True)


def tell_of_waiting() -> None:
    """Have a person at a terminal told what the command waits for."""
    logger = logging.getLogger("relay.kafka.waiting")  # `relay.kafka.topics`, whose client takes a while to load
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [_Told()]


def purpose(document: str | None) -> str:
    """Return a module's docstring as its command's help: without the command's own name before it."""
    _, _, text = (document or "").partition("``: ")
    return _whole(text[:1].upper() + text[1:])


def unbroken(app: typer.Typer) -> typer.Typer:
    """Return a command's application with the paragraphs of its helps whole: the window breaks lines, not the source."""
    for command in app.registered_commands:
        command.help = _whole(command.help or getdoc(command.callback) or "")
    first = app.registered_callback
    if first is not None and not isinstance(app.info.help, str):
        first.help = _whole(getdoc(first.callback) or "")
    return app


def _whole(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def print_json(document: Any, *, one_line: bool = False) -> None:
    """Print one JSON document and a line end on standard output, at once; on one line where more are to follow."""
    # Escaped where the output is not UTF-8: what it cannot encode would not be JSON.
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    written = json.dumps(document, indent=None if one_line else 2, ensure_ascii=plain, default=str)
    sys.stdout.write(written + "\n")
    sys.stdout.flush()


def _harmless(text: str) -> str:
    """Return a text, whoever wrote it, so that it gives the terminal no order but to begin a line."""
    return "\n".join(map(escaped, text.split("\n")))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; cells are shown as they are, never read as markup, and whole: folded between words, or in a pipe on one line.

    Where a window is too narrow for that, each cell that is not empty has a line: nobody copies a digest out of pieces.
    """
    cells = [["" if cell is None else _harmless(str(cell)) for cell in row] for row in rows]
    console = Console(emoji=False)
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH, emoji=False)
    widths = _widths([columns, *cells], console.width)
    if cells and widths is None:
        _print_records(columns, cells)
        return
    table = Table(*(Column(name, overflow="fold", width=width) for name, width in zip(columns, widths or repeat(None), strict=False)))
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _widths(rows: Sequence[Sequence[str]], window: int) -> list[int] | None:
    """Return how wide each column is to be, or None if words would have to be broken for the window."""
    columns = list(zip_longest(*rows, fillvalue=""))
    least = [max(cell_len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    whole = [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns]
    spare = window - sum(least) - 3 * len(columns) - 1  # each column has two blanks and a border
    if spare < 0:
        return None
    widths = list(least)
    for number in sorted(range(len(columns)), key=lambda number: whole[number] - least[number]):
        given = min(spare, whole[number] - least[number])
        widths[number], spare = widths[number] + given, spare - given
    return widths


def _print_records(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    width = max(map(len, columns)) + 1
    for row in rows:
        for name, cell in zip(columns, row, strict=False):
            if cell:
                print_line(f"{name + ':' * bool(name):{width}} {cell}")
        print_line()


def when(value: object) -> object:
    """Return a time in wall milliseconds as people read it, anything else as it is, a time beyond all years too."""
    if not isinstance(value, int):
        return value
    try:
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return value


def print_line(text: str = "", style: str | None = None) -> None:
    """Print one line on standard output, never broken and never read as markup or pictograms."""
    Console(width=_PIPE_WIDTH, soft_wrap=True, emoji=False).print(_harmless(text), style=style, markup=False, highlight=False)


def print_problem(text: str) -> None:
    """Print one line on standard error."""
    Console(width=_PIPE_WIDTH, stderr=True, soft_wrap=True, emoji=False).print(
        _harmless(text), style="red", markup=False, highlight=False
    )

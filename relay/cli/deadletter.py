"""``relay deadletter``: what routes could not deliver, with its cause. What subscribers refused: `relay message list --unusable`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Final

import typer

from relay.cli.report import ConfigArgument, JsonOption, print_json, print_line, print_table, purpose
from relay.config.loading import load
from relay.control.dead_letters import dead_letter, dead_letters
from relay.message.errors import CheckFailed, ConfigError

app = typer.Typer(add_completion=False, no_args_is_help=True, help=purpose(__doc__))
_COLUMNS: Final = ("digest", "route", "code", "topic", "partition", "offset", "source", "message_id")


@app.command("list")
def list_command(
    config: ConfigArgument,
    *,
    route: Annotated[str | None, typer.Option("--route", metavar="ROUTE", help="Only this route's.")] = None,
    code: Annotated[str | None, typer.Option("--code", metavar="CODE", help="Only with this cause.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, each once, with how many there are of each cause."""
    loaded = load(Path(config))
    rows = dead_letters(loaded, route=route, code=code)
    if not rows and route is not None and route not in loaded.routes:
        # Letters of a route that is configured no more are still found; a name without any is a slip of the pen.
        raise ConfigError(f"--route {route}: there is no such route; there are: {', '.join(loaded.routes)}")
    causes = Counter(row["code"] for row in rows)
    if as_json:
        print_json({"dead_letters": rows, "causes": causes})
        return
    print_table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])
    print_line(", ".join(f"{count} {cause}" for cause, count in causes.most_common()) or "no dead letter")


@app.command("show")
def show_command(
    config: ConfigArgument,
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="As `relay deadletter list` shows it.")],
    *,
    value: Annotated[bool, typer.Option("--value", help="Also the payload, as base64.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter with its cause; exit 1 if there is none."""
    rows = dead_letter(load(Path(config)), digest)
    if not rows:
        raise CheckFailed(f"there is no dead letter {digest!r}; `relay deadletter list` shows those there are")
    shown = [row if value else {name: found for name, found in row.items() if name != "value"} for row in rows]
    if as_json:
        print_json({"dead_letters": shown})
        return
    for row in shown:
        for name, found in row.items():
            print_line(f"{name}: {found}")

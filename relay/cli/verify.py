"""``relay verify CONFIG``: prove from the log and the destinations that nothing is lost, doubled or reordered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from relay.audit.at_once import verify_at_once
from relay.audit.seen import Watch
from relay.audit.verify import COUNTS, RouteReport, verify
from relay.cli.report import ConfigArgument, JsonOption, print_json, print_line, print_table
from relay.config.loading import load
from relay.message.errors import RelayError

app = typer.Typer(add_completion=False)

MEANINGS: Final = {
    "captured": "messages that count: of no capture, or of a committed one",
    "delivered": "messages with an effect",
    "lost": "passed by the route, without an effect",
    "duplicates": "effects beyond a message's first, or beside its dead letter",
    "reordered": "effects after a later message of their lane",
    "phantoms": "effects of no captured message, dead letters of aborted ones",
    "aborted": "messages that their publisher took back",
    "in_doubt": "messages whose outcome is not known",
    "dead_letters": "messages put aside with their cause",
    "altered": "effects with another key or value",
    "unseen": "messages not delivered yet",
    "conflicts": "repeats of an id with another content",
    "repeats": "records beyond a message's first in the log",
    "expired": "effects older than the log, or of a former topic or route",
    "skipped": "messages skipped by an operator",
    "told": "messages of which a person said that they were delivered",
    "forgotten": "effects that may be older than what log and monitor remember",
}
"""What each count means, in the order shown; those after the first nine only when there are any."""


@app.command("verify")
def verify_command(
    config: ConfigArgument,
    *,
    route: Annotated[
        list[str] | None, typer.Option("--route", help="Only this route; may be given again.")
    ] = None,
    allow_lag: Annotated[
        bool, typer.Option("--allow-lag", help="Messages not delivered yet do not fail the check.")
    ] = False,
    at_once: Annotated[
        int, typer.Option(metavar="N", min=1, max=64, help="Audit so many routes at a time, each in a process of its own.")
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Audit what the relay did; exit 0 all is right, 1 it is not, 2 the configuration is wrong, 3 unreachable.

    It keeps some 235 bytes of memory for each message that the log and the monitor hold, 430 on a table route: four million
    messages in a GiB, two and a half million on a table route. Routes that are audited at once need that each.

    A route that cannot be audited does not keep the others from it; where they are right, its own status is returned.
    """
    loaded = load(Path(config))
    refused: dict[str, RelayError] = {}
    with _watching() as watch:
        audit = verify if at_once == 1 else partial(verify_at_once, processes=at_once)
        reports = audit(loaded, route or (), allow_lag=allow_lag, watch=watch, refused=refused.__setitem__)
    if not reports and len(refused) == 1:
        raise next(iter(refused.values()))
    for report in reports:
        if note := loaded.routes[report.route].identity_note:
            report.findings.notes.append(note)
    right = all(report.ok for report in reports)
    if as_json:
        routes = {report.route: report.document() for report in reports}
        routes |= {name: {"ok": False, "error": str(error)} for name, error in refused.items()}
        print_json({"ok": right and not refused, "routes": routes})
    else:
        if reports:
            _print(reports)
        for name, error in refused.items():
            print_line(f"NOT AUDITED: {name}: {error}", style="red")
    raise typer.Exit(max((error.exit_code for error in refused.values()), default=0) if right else 1)


def _print(reports: list[RouteReport]) -> None:
    rows: list[tuple[str, ...]] = [("to", *(report.destination for report in reports), "")]
    for name, meaning in MEANINGS.items():
        values = [getattr(report.findings, name) for report in reports]
        if name in COUNTS or any(values):
            rows.append((name.replace("_", " "), *(f"{value:,}" for value in values), meaning))
    print_table(("", *(report.route for report in reports), ""), rows)
    for report in reports:
        for offence in report.offences:
            who = f" id {offence.id!r} source {offence.source!r}" if offence.id else ""
            print_line(f"  {offence.kind}: {offence.place}{who}: {offence.why}")
        for note in report.findings.notes:
            print_line(f"  note: {report.route}: {note}", style="yellow")
    for report in reports:
        print_line(
            ("right: " if report.ok else "WRONG: ") + report.sentence, style="green" if report.ok else "red"
        )


@contextmanager
def _watching() -> Iterator[Watch]:
    """Show a bar for each thing that is read, on a terminal only."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _step, _done, _total: None
        return
    tasks: dict[str, TaskID] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:

        def watch(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = progress.add_task(step, total=total)
            progress.update(tasks[step], completed=done, total=total)

        yield watch

"""``relay check CONFIG``: every fault with its key, its value and its remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relay.cli.report import ConfigArgument, JsonOption, print_json, print_line, print_table
from relay.config.model import QueueDestination
from relay.setup.check import CheckReport, check

app = typer.Typer(add_completion=False)


@app.command("check")
def check_command(
    config: ConfigArgument,
    *,
    connect: Annotated[
        bool, typer.Option("--connect", help="Also ask the brokers and databases it names.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a configuration; exit 0 ok, 1 a check failed, 2 the configuration is wrong, 3 unreachable."""
    report = check(Path(config), connect=connect)
    if as_json:
        print_json(report.document())
    else:
        _print(report)
    raise typer.Exit(report.exit_code)


def _print(report: CheckReport) -> None:
    for fault in [*report.config_faults, *report.findings.faults]:
        print_line(f"fault: {fault}", style="red")
    for sentence in report.findings.unreachable:
        print_line(f"unreachable: {sentence}", style="red")
    for note in report.findings.notes:
        print_line(f"note: {note}", style="yellow")
    if report.config and report.config.routes:
        rows = [
            (route.name, ", ".join(route.from_), _destination(route.to), route.guarantee)
            for route in report.config.routes.values()
        ]
        print_table(("route", "from", "to", "guarantee"), rows)
    if report.exit_code == 0:
        print_line(f"{report.path}: ok ({', '.join(report.findings.checked)})", style="green")


def _destination(to: object) -> str:
    if isinstance(to, QueueDestination):
        return f"queue {to.queue}"
    topic = getattr(to, "topic", None)
    return f"topic {topic}" if topic else f"table {getattr(to, 'table', '')} ({getattr(to, 'resource', '')})"

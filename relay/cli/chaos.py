"""``relay chaos``: strike the relay with seeded accidents while a reader watches, heal, audit, and draw what happened."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from relay.chaos import history
from relay.chaos.course import Say
from relay.chaos.disks import IMAGES
from relay.chaos.result import Result
from relay.chaos.run import Order, demonstrate, strike
from relay.chaos.timeline import page
from relay.cli.bounds import bounded, named
from relay.cli.report import JsonOption, print_json, print_line, print_table
from relay.cli.verify import MEANINGS
from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.local.folders import empty_folder
from relay.message.errors import ConfigError
from relay.run.ending import ending_properly
from relay.world import clock

PAGE: Final = "timeline.html"
SERVICES: Final = ("kafka", "postgres", "state", "clocks", IMAGES)
"""What is thrown away after a clean demonstration; history, page and logs stay."""

app = typer.Typer(add_completion=False)


@app.command("chaos")
def chaos_command(
    config: Annotated[
        str | None, typer.Argument(metavar="CONFIG", help="A configuration of your own, instead of --demo.")
    ] = None,
    *,
    demo: Annotated[
        bool, typer.Option("--demo", help="Start brokers, PostgreSQL and publishers here, and strike these, too.")
    ] = False,
    minutes: Annotated[
        float, typer.Option(metavar="MINUTES", parser=bounded(0.1, 1440, "minutes"), help="How long accidents happen.")
    ] = 3.0,
    seed: Annotated[int, typer.Option(help="Chooses the accidents; the same seed, the same plan.")] = 1,
    workers: Annotated[int, typer.Option(min=1, max=8, help="Workers per route.")] = 2,
    brokers: Annotated[int, typer.Option(min=1, max=5, help="Brokers of the demonstration.")] = 3,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="PATH", parser=named, help="An empty directory for the history; otherwise a temporary one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Strike the relay with seeded accidents, watch its output, heal, and audit it.

    With --demo it starts services of its own in a temporary directory and strikes workers, publishers, brokers, their
    connections and the database. With CONFIG it runs workers of that configuration and kills and freezes only these
    worker processes: it never touches your brokers, your database, or workers that you have started. Stop those first,
    or they share the work.

    Exit codes: 0 clean, 1 not, 2 configuration or something is missing on this machine, 3 unreachable.
    """
    if demo == (config is not None):
        raise ConfigError("name a CONFIG or give --demo, one of the two")
    console = Console(stderr=True, emoji=False)
    began = clock.monotonic()

    def say(sentence: str) -> None:
        at = clock.monotonic() - began
        console.print(f"{at:6.1f} s  {sentence}", markup=False, highlight=False, soft_wrap=True)

    loaded = load(Path(config)) if config is not None else None
    order = Order(minutes, seed, workers, brokers)
    with ending_properly():
        result = _run(loaded, empty_folder(directory, "relay-chaos-"), order, say)
    if as_json:
        print_json({**result.document(), "timeline": str(Path(result.directory, PAGE))})
    else:
        _print(result)
    raise typer.Exit(0 if result.ok else 1)


def _run(config: RelayConfig | None, directory: Path, order: Order, say: Say) -> Result:
    """Run, and draw the page even of a run that did not come to its end."""
    say(f"history, logs and {PAGE} are in {directory}")
    try:
        result = demonstrate(directory, order, say) if config is None else strike(config, directory, order, say)
    finally:
        written = directory / history.FILE
        if written.exists():
            (directory / PAGE).write_text(page(history.read(written)), encoding="utf-8")
    if config is None and result.ok:
        for name in SERVICES:
            shutil.rmtree(directory / name, ignore_errors=True)
    return result


def _print(result: Result) -> None:
    print_table(("fault", "times"), [*result.faults.items(), ("in all", result.struck)])
    rows: list[tuple[str, ...]] = []
    for name, meaning in MEANINGS.items():
        values = [getattr(report.findings, name) for report in result.reports]
        rows.append((name.replace("_", " "), *(f"{value:,}" for value in values), meaning))
    print_table(("messages", *(report.route for report in result.reports), ""), rows)
    seen = result.reader
    print_line(
        f"The reader saw {seen.shown:,} messages: {seen.duplicates} duplicates, {seen.aborted} aborted, "
        f"{seen.inversions} inversions, {seen.phantoms} phantoms."
    )
    for how, times in result.ends.items():
        print_line(f"  ended by itself and was started again: {how}, {times} times")
    for complaint in result.complaints:
        print_line(f"WRONG: {complaint}", "red")
    if result.ok:
        print_line(f"Clean: {result.struck} faults, and every message took effect exactly once and in order.", "green")
    print_line(f"Look at {Path(result.directory, PAGE)}")

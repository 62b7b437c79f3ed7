"""``relay demo``: the whole way of a message in one run, with crashes and kills, and the proof at its end."""

from __future__ import annotations

import itertools
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from relay.cli.bounds import named
from relay.cli.report import JsonOption, print_json, print_line, print_table
from relay.demo import credit
from relay.demo.course import ALL_FLIGHTS, Course
from relay.demo.crew import start
from relay.demo.reckoning import Result, reckon
from relay.demo.show import Show
from relay.demo.stage import FLIGHTS, Stage, build
from relay.local.folders import empty_folder
from relay.local.services import LocalServices
from relay.run.ending import ENDING, ending_properly
from relay.world import clock

ROWS: Final = {
    "captured": "messages in the log that count",
    "delivered": "of them took effect at the destination",
    "lost": "passed by without an effect",
    "duplicates": "effects beyond a message's first",
    "reordered": "behind a later message of their publisher",
    "phantoms": "effects of what was rolled back, or never was",
    "aborted": "in the log, but rolled back: rightly without effect",
    "in_doubt": "nobody can tell whether they took effect",
    "dead_letters": "put aside as unusable",
}
PREFIX: Final = "relay-demo-"

app = typer.Typer(add_completion=False, invoke_without_command=True)


@app.callback()
def demo_command(
    context: typer.Context,
    *,
    messages: Annotated[
        int | None, typer.Option(metavar="N", min=100, max=ALL_FLIGHTS, help="Only the first N flights.")
    ] = None,
    as_json: JsonOption = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave services, data and workers running to look at.")
    ] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="PATH", parser=named, help="An empty directory to use; otherwise a temporary one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses bookings, refusals and the moments of the kills.")] = 1,
) -> None:
    """Capture flights and bookings, relay them to a topic and a table, kill workers on the way, and audit it.

    Exit codes: 0 all of it exactly once, 1 not, 2 something is missing on this machine, 3 unreachable.
    """
    if context.invoked_subcommand is not None:
        return
    show = Show(Console(stderr=as_json, emoji=False))
    with ending_properly():
        place = empty_folder(directory, PREFIX)
        try:
            stage, result = run(place, messages, seed, show)
            if as_json:
                print_json(result.document())
            else:
                _print(result)
            if keep:
                _leave(stage, sys.stderr if as_json else sys.stdout)
        finally:
            if keep:
                show.say(f"kept: {place}; stop the services with: relay dev down --dir {shlex.quote(str(place))}")
            else:
                _clear(place)
    raise typer.Exit(0 if result.ok else 1)


@app.command("credit")
def credit_command(
    *,
    sales: Annotated[int, typer.Option(metavar="N", min=40, max=100_000, help="How many sales.")] = 600,
    as_json: JsonOption = False,
    seed: Annotated[int, typer.Option(help="Chooses customers and totals.")] = 1,
) -> None:
    """Point of sale to customer database to credit approval: two queues on two media, a handler of each killed.

    Exit codes: 0 each sale decided exactly once and in order, 1 not, 2 something is missing on this machine, 3 unreachable.
    """
    show = Show(Console(stderr=as_json, emoji=False))
    with ending_properly():
        place = empty_folder(None, PREFIX)
        try:
            with show.bars():
                counted = credit.run(place, sales, seed, show)
        finally:
            _clear(place)
    if as_json:
        print_json(counted.document())
    else:
        print_table(("messages", "", ""), [(name.replace("_", " "), f"{getattr(counted, name):,}", text) for name, text in ROWS.items()])
        print_line(f"{counted.kills} processes of handlers killed; {counted.approved:,} sales approved; {counted.seconds:.0f} s.")
        for complaint in counted.complaints:
            print_line(f"WRONG: {complaint}", "red")
        if counted.ok:
            print_line("Every sale was decided exactly once, in its customer's order.", "green")
    raise typer.Exit(0 if counted.ok else 1)


def run(place: Path, messages: int | None, seed: int, show: Show) -> tuple[Stage, Result]:
    """Run the demonstration in an empty directory. Raises RelayError with a sentence for people."""
    times = [clock.monotonic()]
    show.say("starting Kafka and PostgreSQL")
    stage = build(place, messages, show.say)
    times.append(clock.monotonic())
    show.say("starting Spark, the booking service, and two workers for each of the routes to a topic and to a table")
    with show.bars():
        outcome = Course(stage, messages, seed, show).run()
    times.append(clock.monotonic())
    show.say("the auditor reads log, destinations and monitor")
    phases: dict[str, float] = {}
    with show.bars():
        result = reckon(stage, outcome, show.bar, phases)
    times.append(clock.monotonic())
    lasted = (end - begin for begin, end in itertools.pairwise(times))
    phases.update(zip(("services", "relaying", "audit"), lasted, strict=True))
    return stage, result


def _print(result: Result) -> None:
    rows: list[tuple[object, ...]] = [("to", *(report.destination for report in result.reports), "")]
    for name, meaning in ROWS.items():
        counts = (f"{getattr(report.findings, name):,}" for report in result.reports)
        rows.append((name.replace("_", " "), *counts, meaning))
    print_table(("messages", *(report.route for report in result.reports), ""), rows)
    outcome = result.outcome
    print_line(
        f"{outcome.flights:,} flights and {result.booked:,} bookings, {len(outcome.rolled_back):,} bookings rolled back, "
        f"{outcome.publisher_crashes} crashes of the booking service, {outcome.kills} workers killed; "
        f"{result.seconds:.0f} s."
    )
    if result.ok:
        print_line("Every message took effect exactly once and in its publisher's order, at both destinations.", "green")
    for complaint in result.complaints:
        print_line(f"WRONG: {complaint}", "red")


def _clear(place: Path) -> None:
    """Stop the services and remove the directory; an impatient second signal does not leave servers behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *ENDING)}
    try:
        services = LocalServices.find(place)
        if services is not None:
            services.down()
        shutil.rmtree(place, ignore_errors=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(stage: Stage, out: Any) -> None:
    """Start the relay again and say what there is to look at."""
    part = start(stage)
    config = shlex.quote(str(stage.config.path))
    lines = (
        f"It is left running. The configuration is {config}",
        f"  relay status {config}",
        f"  relay verify {config}",
        f"  relay spark flights --bootstrap {stage.services.kafka} --topic {FLIGHTS}    (again: nothing is added)",
        f'  psql "$(cat {shlex.quote(str(stage.directory / "postgres.url"))})" -c "table ledger limit 10"',
        f"Stop it with: kill {part.pid}; relay dev down --dir {shlex.quote(str(stage.directory))}",
    )
    print("\n".join(lines), file=out)

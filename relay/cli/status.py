"""``relay status CONFIG``: what every route does now, and whether somebody must look after it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from relay.cli.report import ConfigArgument, JsonOption, print_json, print_line, print_table
from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.config.quantities import ago
from relay.control.status import PartitionView, RouteView, WorkerView, document, exit_code
from relay.control.status_reading import StatusReader
from relay.message.errors import Unreachable
from relay.run.logging import text
from relay.world import clock

WATCH_PERIOD_S: Final = 2.0
_WORKER_COLUMNS: Final = ("worker", "state", "pid", "host", "heard", "restarts", "lag", "last error")
_PARTITION_COLUMNS: Final = ("partition", "owner", "position", "end", "lag", "progress", "held", "in doubt")
_CLEAR: Final = "\x1b[H\x1b[2J"

app = typer.Typer(add_completion=False)


@app.command("status")
def status_command(
    config: ConfigArgument,
    *,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again every two seconds, until Ctrl-C; JSON on one line each.")] = False,
) -> None:
    """Show workers, positions, lag and dead letters; exit 0 if all routes run or idle, nothing that waits is about to leave the log and no worker fails 20 times an hour, 1 if not, 3 if brokers or a database are away.

    A worker that said nothing for six seconds is gone: the clocks of its host and this one must agree.
    """
    loaded = load(Path(config))
    with StatusReader(loaded) as reader:
        code = show_once(loaded, reader, as_json=as_json, more=watch)
        while watch:
            clock.sleep(WATCH_PERIOD_S)
            if not as_json and sys.stdout.isatty():
                typer.echo(_CLEAR, nl=False)
            try:
                code = show_once(loaded, reader, as_json=as_json, more=True)
            except Unreachable as away:
                # Retry: whoever watches wants to see it come back.
                code = away.exit_code
                if as_json:
                    print_json({"relay": loaded.relay.name, "at": clock.wall_ms(), "unreachable": str(away)}, one_line=True)
                else:
                    print_line(f"unreachable: {away}", style="red")
    raise typer.Exit(code)


def show_once(config: RelayConfig, reader: StatusReader, *, as_json: bool, more: bool = False) -> int:
    """Read, print, and return the exit code; with ``more`` to come, JSON takes one line."""
    views = reader.read()
    code = exit_code(views) or (reader.unseen.exit_code if reader.unseen else 0)
    if as_json:
        told = document(config.relay.name, clock.wall_ms(), views, reader.notes)
        print_json(told | {"ok": code == 0}, one_line=more)
        return code
    for route in views:
        _print_route(route)
    for note in reader.notes:
        print_line(f"note: {text(note)}", style="yellow")
    return code


def _print_route(route: RouteView) -> None:
    print_line(f"{route.name}: {route.state.value}", style="red" if route.needs_attention else "green")
    print_line(f"  guarantee: {route.guarantee}")
    for line in (route.identity_note, route.why):
        if line:
            print_line(f"  {text(line)}")
    if route.workers:
        print_table(_WORKER_COLUMNS, [_worker_row(route, worker) for worker in route.workers])
    if route.partitions:
        now_ms = clock.wall_ms()
        print_table(_PARTITION_COLUMNS, [_partition_row(route, place, now_ms) for place in route.partitions])
    for place in route.partitions:
        if place.stuck:
            print_line(f"  {place.topic}[{place.partition}] is stuck: {text(place.stuck)}", style="red")
    print_line(f"  dead letters: {_dead(route)}")
    print_line()


def _worker_row(route: RouteView, worker: WorkerView) -> tuple[object, ...]:
    error = text(worker.last_error, 80) if worker.last_error else ""
    if error and worker.last_error_age_ms is not None:
        error = f"{ago(worker.last_error_age_ms)}: {error}"
    return (
        _short(route, worker.worker),
        worker.state.value,
        worker.pid,
        text(worker.host),
        ago(worker.age_ms),
        worker.restarts,
        worker.lag,
        error,
    )


def _partition_row(route: RouteView, partition: PartitionView, now_ms: int) -> tuple[object, ...]:
    moved = partition.last_progress_at
    return (
        f"{partition.topic}[{partition.partition}]",
        _short(route, partition.owner) if partition.owner else "-",
        "-" if partition.position is None else partition.position,
        partition.end,
        "?" if partition.lag is None else partition.lag,
        "-" if moved is None else ago(now_ms - moved),
        partition.held,
        partition.in_doubt,
    )


def _short(route: RouteView, worker: str) -> str:
    """Return instance and number: relay and route stand above the table already."""
    return text(worker.partition(f".{route.name}.")[2] or worker)


def _dead(route: RouteView) -> str:
    if not route.dead.count:
        return "none" if route.dead.complete else "none among the latest records; `relay deadletter list` reads all"
    least = "" if route.dead.complete else "at least "
    commonest = route.dead.commonest
    assert commonest is not None, "counted by cause"
    return f"{least}{route.dead.count}, most often {text(commonest, 100)} ({route.dead.causes[commonest]})"

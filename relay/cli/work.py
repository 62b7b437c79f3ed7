"""``relay work APP``: processes that run an application's handlers for one subscriber of a queue, until drained or idle."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Final

import orjson
import typer

from relay.cli.bounds import AT_WORK_S, seconds
from relay.cli.report import print_json
from relay.config.loading import load, text_of
from relay.message.errors import ConfigError
from relay.run.handed import Handed
from relay.run.logging import setup
from relay.run.queues import queue_of
from relay.run.status_record import handlers_of
from relay.run.supervisor import Command, Supervisor
from relay.setup.required import look_for_control
from relay.work.loading import check_resources, load_handler

PROCESSES_MAX: Final = 64
CONCURRENCY_MAX: Final = 1024

app = typer.Typer(add_completion=False)


@app.command("work")
def work_command(
    application: Annotated[
        str, typer.Argument(metavar="APP", help="module, module:handler, file.py or file.py:handler.")
    ],
    *,
    queue: Annotated[str, typer.Option(help="The queue whose messages are handled.")],
    subscriber: Annotated[str, typer.Option(help="As whom: a subscriber, or a member of a pool.")],
    config: Annotated[str, typer.Option(metavar="CONFIG", help="The configuration, with the queue in it.")] = "relay.toml",
    concurrency: Annotated[
        int, typer.Option(min=1, max=CONCURRENCY_MAX, help="Handlers at once in each process.")
    ] = 1,
    processes: Annotated[int, typer.Option(min=1, max=PROCESSES_MAX, help="Processes that run handlers.")] = 1,
    deadline: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", parser=seconds(0.1, AT_WORK_S), help="A handler that runs longer hangs: its process is replaced."
        ),
    ] = 300.0,
    drain: Annotated[
        float,
        typer.Option(metavar="SECONDS", parser=seconds(0.1, AT_WORK_S), help="How long running handlers may take after a signal."),
    ] = 30.0,
    until_idle: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", parser=seconds(0.1, AT_WORK_S), help="End when nothing moved for so long and nothing waits."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines on standard error, and a report on standard output.")
    ] = False,
) -> None:
    """Run handlers; a signal lets them finish what they have begun, a second one leaves at once.

    Exit codes: 0 done, 1 stopped or given up, 2 configuration or application is wrong, 130/143 left at once.
    """
    text = text_of(Path(config))
    loaded = load(Path(config), text)
    handed = Handed(text)
    settings = queue_of(loaded, queue).settings()
    if settings.group_of(subscriber) is None:
        known = ", ".join(name for group in settings.audience.groups for name in group.members)
        raise ConfigError(
            f"--subscriber {subscriber}: queue {queue!r} has no such subscriber; it has {known}: name one, or add it to [queues.{queue}]"
        )
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        check_resources(load_handler(application, queue), loaded)
    setup(as_json=True if as_json else None)
    look_for_control(loaded)
    words = [*handed.words, "--queue", queue, "--subscriber", subscriber, "--concurrency", str(concurrency)]
    words += ["--deadline", f"{deadline:g}", "--drain", f"{drain:g}"]
    words += [] if until_idle is None else ["--until-idle", f"{until_idle:g}"]
    with _report_wanted(as_json) as report:
        words += [] if report is None else ["--report", str(report)]
        command = _command(Path(config), application, words)
        code = Supervisor([handlers_of(queue, subscriber)], processes, command, fds=[handed.fd]).run()
        if report is not None:
            print_json({"queue": queue, "subscriber": subscriber, **_sum(report)})
    raise typer.Exit(code)


@contextmanager
def _report_wanted(wanted: bool) -> Iterator[Path | None]:
    """Lend the path of a file to which the processes write what they did; None if nobody asks for it."""
    if not wanted:
        yield None
        return
    try:
        folder = tempfile.TemporaryDirectory(prefix="relay-work-")
    except FileNotFoundError as error:
        raise ConfigError(f"--json needs a folder for a temporary file: {error.strerror}; set TMPDIR to one, or leave it out") from None
    with folder as path:
        yield Path(path) / "report"


def _command(config: Path, application: str, words: list[str]) -> Command:
    """Return how a worker process is called (relay.work.process reads these words)."""

    def _call(_route: str, number: int) -> list[str]:
        return [sys.executable, "-m", "relay.work.process", str(config), application, *words, "--worker", str(number)]

    return _call


def _sum(report: Path) -> dict[str, int]:
    """Add up what the processes reported as they ended; a killed one's numbers are not in it."""
    total: Counter[str] = Counter()
    if report.exists():
        for line in report.read_bytes().splitlines():
            total.update(orjson.loads(line))
    return dict(total)

"""The process of one worker of handlers: signals, lifeline, and an exit code that tells the supervisor what to do."""

from __future__ import annotations

import argparse
import atexit
import logging as standard_logging
import os
import signal
import sys
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path
from typing import Final, NoReturn

import orjson
import structlog

from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.message.errors import RelayError, Stopped, Unreachable
from relay.queue.port import Retired, StoreAway
from relay.run import lifeline, logging
from relay.run.handed import taken
from relay.run.process import at_limit
from relay.run.restarts import ExitCode, Past
from relay.work import past
from relay.work.assembly import Assembled, Job
from relay.work.loading import load_handler
from relay.work.states import Report
from relay.work.worker import Limits
from relay.world import clock, schedule

ORPHANED: Final = 129
SWITCH_INTERVAL_S: Final = 0.0005
"""A handler that has waited gets the interpreter back sooner than after the default 5 ms."""
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
LEAVE_S: Final = 5.0
"""So long may last what an application has for its end: a thread, or a pool, that it left behind holds nobody up."""


class Leaving:
    """How the process ends: with what the application has for its end, then at once, whichever threads still run.

    To be made before the application is loaded: of what is to be run at the end the first comes last.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._code = 1
        atexit.register(self._last)

    def __call__(self, code: int) -> NoReturn:
        """End; everything durable is done."""
        self._code = code
        schedule.start_thread("leaving", self._in_time)
        sys.exit(code)

    def _in_time(self) -> None:
        clock.sleep(LEAVE_S)
        self._go()

    def _last(self) -> None:
        if self._process == os.getpid():  # a fork of the application's has an end of its own
            self._go()

    def _go(self) -> NoReturn:
        try:
            standard_logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(self._code)


def main(arguments: list[str] | None = None) -> int:
    """Work until drained, idle or hung; return the exit code."""
    options = _options(arguments)
    logging.setup()
    if isinstance(sys.stdout, TextIOWrapper):
        # What a handler prints is passed on as it comes, and as UTF-8, whatever the locale: its print fails no message.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    log = structlog.get_logger("relay.work")
    try:
        lifeline.watch(lambda: os._exit(ORPHANED))
        handler = load_handler(options.app, options.queue)
        limits = Limits(options.concurrency, deadline_s=options.deadline, drain_s=options.drain)
        config = _config(options)
        past.tell(config, options.queue, options.subscriber, options.worker, Past.told(os.environ))
        assembled = Assembled(config, Job(handler, options.queue, options.subscriber), limits)
        for number in _ENDING:
            signal.signal(number, lambda *_: assembled.worker.stop())
        _let_forks_end()
        report = assembled.worker.run(options.until_idle)
        report.children = assembled.runner.children
        assembled.close()
        _add(options.report, report)
        log.info("worked", **asdict(report))
    except RelayError as known:
        structlog.get_logger("relay.work").error("stopped", kind=type(known).__name__)
        print(known, file=sys.stderr, flush=True)
        return _code(known)
    except Exception as error:  # noqa: BLE001 - raised again unless it is a limit
        return at_limit(error)
    return 0


def _let_forks_end() -> None:
    """Let a process that a handler forks end when it is told to: it has no worker that would. Until then the signal waits."""

    def _as_any_process() -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING),
        after_in_child=_as_any_process,
    )


def _config(options: argparse.Namespace) -> RelayConfig:
    return load(options.config, taken(options.text))


def _add(path: Path | None, report: Report) -> None:
    if path is not None:
        with path.open("ab") as file:
            file.write(orjson.dumps(asdict(report)) + b"\n")


def _code(known: RelayError) -> int:
    if isinstance(known, Stopped):
        return ExitCode.PERSON
    if isinstance(known, Retired):
        return ExitCode.MOVED
    if isinstance(known, StoreAway | Unreachable):
        return ExitCode.UNREACHABLE
    return known.exit_code


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m relay.work.process", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("app")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--subscriber", required=True)
    parser.add_argument("--worker", type=int, default=0, metavar="NUMBER")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--drain", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--until-idle", type=float, default=None, metavar="SECONDS")
    parser.add_argument("--text", type=int, default=None, metavar="NUMBER")
    parser.add_argument("--report", type=Path, default=None)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    leave = Leaving()
    leave(main())

"""The process of one worker: signals, lifeline, watchdog, and an exit code that tells the supervisor what to do."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Final

import structlog

from relay.message.errors import ConfigError, RelayError, Stopped, TwinDetected, Unreachable
from relay.run import lifeline, logging
from relay.run.assembly import assemble
from relay.run.config import load
from relay.run.restarts import ExitCode

ORPHANED: Final = 129
SWITCH_INTERVAL_S: Final = 0.0005
"""Threads that wait for a database or a broker get the interpreter back sooner than after the default 5 ms."""


def main(arguments: list[str] | None = None) -> int:
    """Run one worker until it is drained, idle, stopped or fenced by a twin; return the exit code."""
    options = _options(arguments)
    logging.setup()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    lifeline.watch(lambda: os._exit(ORPHANED))
    try:
        worker = assemble(load(options.config), options.route, options.worker, None)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        signal.signal(signal.SIGINT, lambda *_: worker.stop())
        worker.run(options.until_idle)
    except (Stopped, TwinDetected, ConfigError, Unreachable) as known:
        structlog.get_logger("relay.process").error("stopped", kind=type(known).__name__)
        print(known, file=sys.stderr, flush=True)  # noqa: T201 - the supervisor shows this line to the operator
        return _code(known)
    return 0


def _code(known: RelayError) -> int:
    if isinstance(known, TwinDetected):
        return ExitCode.TWIN
    if isinstance(known, Stopped):
        return ExitCode.PERSON
    return known.exit_code


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m relay.run.process", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--route", required=True)
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--until-idle", type=float, default=None, metavar="SECONDS")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    os._exit(main())  # librdkafka's threads may still wait for brokers; everything durable is done

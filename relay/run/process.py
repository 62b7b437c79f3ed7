"""The process of one worker: signals, lifeline, watchdog, and an exit code that tells the supervisor what to do."""

from __future__ import annotations

import argparse
import gc
import logging as standard_logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

import structlog

from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.message.errors import Moved, RelayError, Stopped, TwinDetected, whence
from relay.message.limits import limit_code, limit_met
from relay.run import lifeline, logging, memory
from relay.run.assembly import assemble
from relay.run.handed import taken
from relay.run.restarts import ExitCode

GC_THRESHOLDS: Final = (2_000_000, 10, 10)
"""A batch is some hundred thousand objects without cycles, freed as it ends: looking through them would find nothing."""
ORPHANED: Final = 129
SWITCH_INTERVAL_S: Final = 0.0005
"""Threads that wait for a database or a broker get the interpreter back sooner than after the default 5 ms."""


def main(arguments: list[str] | None = None) -> int:
    """Run one worker until it is drained, idle, stopped or fenced by a twin; return the exit code."""
    options = _options(arguments)
    logging.setup()
    # What the driver warns of comes behind an error that the relay judges itself, row by row of a batch, and quotes whatever it likes.
    standard_logging.getLogger("psycopg").addHandler(standard_logging.NullHandler())
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    memory.keep()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        lifeline.watch(lambda: os._exit(ORPHANED))
        worker = assemble(_config(options), options.route, options.worker)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        signal.signal(signal.SIGINT, lambda *_: worker.stop())
        worker.run(options.until_idle)
    except RelayError as known:
        structlog.get_logger("relay.process").error("stopped", kind=type(known).__name__)
        print(known, file=sys.stderr, flush=True)
        return _code(known)
    except Exception as error:  # noqa: BLE001 - raised again unless it is a limit
        return at_limit(error)
    return 0


def at_limit(error: Exception) -> int:
    """Say which limit of the machine ended a worker, and return its exit code; raises the error if it is another one."""
    sentence = limit_met(error)
    if sentence is None:
        raise error
    print(whence(error), sentence, sep="", file=sys.stderr, flush=True)
    return limit_code(error)


def _config(options: argparse.Namespace) -> RelayConfig:
    config = load(options.config, taken(options.text))
    if options.instance is None:
        return config
    return config.model_copy(update={"relay": config.relay.model_copy(update={"instance": options.instance})})


def _code(known: RelayError) -> int:
    if isinstance(known, TwinDetected):
        return ExitCode.TWIN
    if isinstance(known, Stopped):
        return ExitCode.PERSON
    if isinstance(known, Moved):
        return ExitCode.MOVED
    return known.exit_code


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m relay.run.process", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--route", required=True)
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--instance", default=None, metavar="NAME")
    parser.add_argument("--until-idle", type=float, default=None, metavar="SECONDS")
    parser.add_argument("--text", type=int, default=None, metavar="NUMBER")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    os._exit(main())  # librdkafka's threads may still wait for brokers; everything durable is done

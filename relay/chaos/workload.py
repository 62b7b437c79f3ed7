"""What there is to relay: publishers that capture with a database, and plain producers, one of which aborts often.

Run as ``python -m relay.chaos.workload CONFIG --role ROLE --name NAME``, a process each, until SIGTERM. What a
transaction is meant to come to stands in the value of each of its messages: one that is meant to be aborted must never
be seen. Whatever fails is tried again; a publisher's new run has new ids.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from relay.capture.capture import Capture
from relay.chaos.stage import CAPTURED, PARTITIONS, PLAIN, RESOURCE
from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.kafka import settings
from relay.kafka.appender import Appender, Receipt, Record
from relay.kafka.plain.transactions import PlainTransactions
from relay.message.envelope import ID, SOURCE, SPECVERSION, TYPE
from relay.message.errors import InDoubt, RelayError
from relay.run import lifeline
from relay.world import clock, schedule

CAPTURING: Final = "capturing"
ABORTING: Final = "aborting"
REPEATING: Final = "repeating"
ROLES: Final = (CAPTURING, ABORTING, REPEATING)
CAPTURE_THREADS: Final = 2
CAPTURE_PAUSE_S: Final = 0.06
ROLLED_BACK_SHARE: Final = 0.15
MESSAGES_MAX: Final = 4
BATCH: Final = 12
BATCH_PAUSE_S: Final = 0.4
ABORT_EVERY: Final = 3
REPEAT_EVERY: Final = 5
AGAIN_S: Final = 0.5
KEYS: Final = 64
SLOW_END_S: Final = 30.0
"""A publisher that was told to end and has not says in its log where it waits."""


@dataclass(frozen=True)
class Publisher:
    """One process of the workload; ``source`` outlives it, ``mark`` is in its ids and does not."""

    config: RelayConfig
    source: str
    mark: str
    stopping: schedule.Event

    def pause(self, seconds: float) -> None:
        """Wait, but not past the end."""
        self.stopping.wait(seconds)

    def chance(self, what: str) -> random.Random:
        """Return chances of their own, the same for the same run of the same name."""
        return random.Random(f"{self.source}/{self.mark}/{what}")  # noqa: S311 - repeatable on purpose


def main(arguments: list[str] | None = None) -> int:
    """Publish until told to end; return the exit code."""
    options = _options(arguments)
    lifeline.watch(lambda: os._exit(1))
    stopping = schedule.event()

    def stop(*_: object) -> None:
        faulthandler.dump_traceback_later(SLOW_END_S)
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    publisher = Publisher(load(options.config), f"/chaos/{options.name}", f"{options.seed}.{options.run}", stopping)
    run: dict[str, Callable[[Publisher], None]] = {
        CAPTURING: capture, ABORTING: abort_often, REPEATING: repeat_often,
    }  # fmt: skip
    try:
        run[options.role](publisher)
    except RelayError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def capture(publisher: Publisher) -> None:
    """Capture in several threads; the table ``noted`` holds what was committed, message by message.

    A capture that is meant to be aborted fails at COMMIT, when its messages are in the log already.
    """
    with Capture.open(publisher.config.path, resource=RESOURCE, source=publisher.source) as opened:
        threads = [
            schedule.start_thread(f"capture-{number}", lambda number=number: _capture_on(publisher, opened, number))  # type: ignore[misc]
            for number in range(CAPTURE_THREADS)
        ]
        for thread in threads:
            thread.join()


def _capture_on(publisher: Publisher, opened: Capture, thread: int) -> None:
    chance = publisher.chance(f"capture/{thread}")
    number = 0
    while not publisher.stopping.is_set():
        number += 1
        ids = [f"{publisher.mark}.{thread}.{number}.{n}" for n in range(chance.randint(1, MESSAGES_MAX))]
        aborts = chance.random() < ROLLED_BACK_SHARE
        fate = "abort" if aborts else "commit"
        try:
            with opened.transaction() as tx:
                for id_ in ids:
                    key = str(chance.randrange(KEYS))
                    tx.execute("insert into noted values (%s, %s, %s)", (publisher.source, id_, fate))
                    tx.publish(CAPTURED, _value(aborts=aborts), key=key, type="chaos.captured", id=id_)
        except (RelayError, psycopg.Error):
            # Aborted, as meant or not, or in doubt: the table tells in the end; the next capture is a new one.
            publisher.pause(0 if aborts else AGAIN_S)
        publisher.pause(CAPTURE_PAUSE_S)


def abort_often(publisher: Publisher) -> None:
    """Append in Kafka transactions and abort every third; one in doubt is sent again with the same ids."""
    name = f"{publisher.config.relay.name}-workload{publisher.source.replace('/', '-')}"
    sender = PlainTransactions(settings.producer(publisher.config.kafka, publisher.config.timing, name, log_level=0))
    number = 0
    while not publisher.stopping.is_set():
        number += 1
        aborts = number % ABORT_EVERY == 0
        records = _batch(publisher, number, aborts=aborts)
        while not publisher.stopping.is_set():
            try:
                sender.send(records, abort=aborts)
                break
            except InDoubt:
                publisher.pause(AGAIN_S)  # Retry: repeats of what holds already disappear in the relay.
        publisher.pause(BATCH_PAUSE_S)


def repeat_often(publisher: Publisher) -> None:
    """Append plainly; every fifth batch is sent twice, and what failed is sent again, always with the same ids."""
    sender = Appender(publisher.config.kafka, publisher.config.timing)
    limit_s = publisher.config.timing.append_timeout
    number = 0
    while not publisher.stopping.is_set():
        number += 1
        left = 2 if number % REPEAT_EVERY == 0 else 1
        while left and not publisher.stopping.is_set():
            records = _batch(publisher, number, aborts=False)
            receipt = Receipt(len(records))
            try:
                sender.append(records, receipt, clock.monotonic() + limit_s)
                done = receipt.wait(limit_s + AGAIN_S) and receipt.failure is None
            except RelayError:
                done = False  # Retry: repeats disappear in the relay.
            left -= done
            publisher.pause(0 if done else AGAIN_S)
        publisher.pause(BATCH_PAUSE_S)
    sender.close()


def _batch(publisher: Publisher, number: int, *, aborts: bool) -> list[Record]:
    """Return the records of one transaction; an id always goes to the same partition."""
    return [
        Record(
            PLAIN,
            n % PARTITIONS,
            b"%d" % n,
            _value(aborts=aborts),
            [
                (SPECVERSION, b"1.0"),
                (ID, f"{publisher.mark}.{number}.{n}".encode()),
                (SOURCE, publisher.source.encode()),
                (TYPE, b"chaos.plain"),
            ],
        )
        for n in range(BATCH)
    ]


def _value(*, aborts: bool) -> bytes:
    return b'{"fate":"abort"}' if aborts else b'{"fate":"commit"}'


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m relay.chaos.workload", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--role", choices=ROLES, required=True)
    parser.add_argument("--name", required=True, help="part of the source")
    parser.add_argument("--run", type=int, default=0, help="number of this run of the process, part of its ids")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    os._exit(main())  # librdkafka's threads may still wait for brokers; everything durable is done

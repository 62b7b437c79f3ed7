"""The full cycle of a queue's states in batches of 1,000, against a bare table on the same medium, in turns.

Each message is put and revealed, GET, FETCHED and IN_PROCESS, DONE and JOURNALLED, all of it durable, by one process, in units
as a worker of handlers writes them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg import sql

from relay.bench.queue_peers import archiving_table, bare_sqlite, paced
from relay.bench.turns import PLAIN, RELAY, in_turns, row
from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Holder, QueueStore
from relay.queue.settings import QueueSettings
from relay.queue.stores import open_store
from relay.queue.stores.sql_schema import create
from relay.world import clock

BATCH: Final = 1_000
BODY: Final = b"x" * 256
LANES: Final = 1_000
ROUNDS: Final = 3
Open = Callable[[QueueSettings], QueueStore]


def run_sqlite(messages: int) -> dict[str, Any]:
    """Measure queues in SQLite files of their own; return the row of `relay bench`."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)

        def opened(settings: QueueSettings) -> QueueStore:
            return open_store(settings, f"sqlite:///{uuid4().hex}.db", state=directory)

        def plain() -> float:
            return bare_sqlite(directory / f"{uuid4().hex}.db", messages, BATCH, BODY)

        return _measure("queue-sqlite", opened, plain, messages)


def run_postgresql(postgres: str, messages: int) -> dict[str, Any]:
    """Measure queues in a database of their own at ``postgres``, which is dropped again; return the row of `relay bench`."""
    with lent_database(postgres) as url:

        def opened(settings: QueueSettings) -> QueueStore:
            with psycopg.connect(url) as connection:
                create(connection)
            return open_store(settings, url)

        def plain() -> float:
            with lent_database(postgres) as empty:
                return archiving_table(empty, messages, BATCH, BODY)

        return _measure("queue-postgres", opened, plain, messages)


@contextmanager
def lent_database(postgres: str) -> Iterator[str]:
    """Lend the URL of a fresh database."""
    name = f"bench_{uuid4().hex[:8]}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            admin.execute("checkpoint")  # the other side's dirty pages are not this one's to write
            yield postgres.rpartition("/")[0] + f"/{name}"
        finally:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def _measure(name: str, opened: Open, plain: Callable[[], float], messages: int) -> dict[str, Any]:
    def one() -> float:
        return cycle_pace(opened, messages)

    found = row(name, in_turns({PLAIN: plain, RELAY: one}, ROUNDS))
    found["lanes_1000"] = round(median(cycle_pace(opened, messages, lanes=LANES) for _ in range(ROUNDS)))
    found["subscribers_3"] = round(median(cycle_pace(opened, messages, subscribers=3) for _ in range(ROUNDS)))
    return found


def cycle_pace(opened: Open, messages: int, *, subscribers: int = 1, lanes: int = 0) -> float:
    """Return messages per second through a new queue; with several subscribers each of them has every message."""
    store = opened(bench_settings(subscribers))
    try:
        return paced(Cycle(store, lanes).turn, messages, BATCH)
    finally:
        store.close()


def bench_settings(subscribers: int = 1) -> QueueSettings:
    """Return a queue with a name of its own."""
    names = [f"s{number}" for number in range(subscribers)]
    return QueueSettings(f"bench{uuid4().hex[:8]}", Audience(tuple(Group(name, (name,)) for name in names)))


class Cycle:
    """Takes batches through a queue, one worker for each subscriber."""

    def __init__(self, store: QueueStore, lanes: int = 0) -> None:
        self._store = store
        self._lanes = lanes
        self._count = 0
        self._subscribers = [group.name for group in store.settings.audience.groups]
        for subscriber in self._subscribers:
            store.enter(Holder(subscriber.encode(), subscriber, 0, None))

    def turn(self) -> None:
        """Put a batch, and let every subscriber process it."""
        store, now = self._store, clock.wall_ms()
        store.put([self._message(self._count + number) for number in range(BATCH)], now)
        self._count += BATCH
        for subscriber in self._subscribers:
            taken = store.take(subscriber, subscriber.encode(), BATCH, now, start=True)
            tickets = [message.ticket for message in taken]
            assert len(tickets) == BATCH, f"{subscriber} was given {len(tickets)} of {BATCH} messages"
            assert all(store.finish(subscriber, tickets, now))

    def _message(self, number: int) -> NewMessage:
        lane = b"lane-%d" % (number % self._lanes) if self._lanes else None
        return NewMessage("/bench", f"m-{number}", BODY, lane=lane)

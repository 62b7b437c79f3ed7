"""What a message costs when millions of journalled ones lie in the same queue, against an empty one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

import psycopg

from relay.bench.queue import BATCH, Cycle
from relay.queue.port import QueueStore
from relay.world import clock

_MESSAGES: Final = """insert into relay_queue_message (handle, queue, put_at, revealed_at, priority, publisher, id, value)
select n, :queue, n, n, 0, '/bench', 'old-' || n, null from numbers"""
_DELIVERIES: Final = """insert into relay_queue_delivery
(handle, sub, queue, grp, rank, phase, state, revealed, attempt, get_at, fetched_at, in_process_at, done_at, journalled_at)
select n, :sub, :queue, :grp, 9, 6, 7, 1, 1, n, n, n, n, n from numbers"""
_SQLITE_NUMBERS: Final = """with recursive numbers (n) as (
    select :first union all select n + 1 from numbers where n < :last
) select n from numbers"""
_STRIDE: Final = 500_000


def fill_sqlite(connection: sqlite3.Connection, count: int) -> None:
    """Let the only queue of a file have ``count`` journalled messages, of which nothing is written but their states."""
    names = _names(connection.execute("select queue, id from relay_queue_subscriber").fetchall())
    (names["grp"],) = connection.execute("select id from relay_queue_group").fetchone()
    for first in range(1, count, _STRIDE):
        connection.execute("create temp table numbers (n integer primary key)")
        bounds = {"first": first, "last": min(first + _STRIDE - 1, count)}
        connection.execute(f"insert into numbers {_SQLITE_NUMBERS}", bounds)
        for statement in (_MESSAGES, _DELIVERIES):
            connection.execute(statement, names)
        connection.execute("drop table numbers")
    connection.execute("update relay_queue set last = ?, over = ?", (count, count))


def fill_postgresql(connection: psycopg.Connection[Any], count: int) -> None:
    """Let the only queue of a database have ``count`` journalled messages."""
    names = _names(connection.execute("select queue, id from relay_queue_subscriber").fetchall())
    (names["grp"],) = connection.execute("select id from relay_queue_group").fetchall()[0]
    for statement in (_MESSAGES, _DELIVERIES):
        text = statement.replace("from numbers", "from generate_series(1, :count) n")
        for name in ("queue", "sub", "grp", "count"):
            text = text.replace(f":{name}", f"%({name})s")
        connection.execute(text.encode(), {**names, "count": count})
    connection.execute("select setval('relay_queue_handle', %s)", (count,))
    connection.execute("insert into relay_queue_tally values (%s, 0, %s)", (names["queue"], count))


def _names(rows: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    ((queue, subscriber),) = rows
    return {"queue": queue, "sub": subscriber}


def costs_of_cycles(stores: Sequence[QueueStore], turns: int) -> list[float]:
    """Return for each store the seconds that full cycles cost a message, measured in turns.

    The quicker half of each store's turns counts: what else runs on the machine disturbs it least.
    """
    cycles = [Cycle(store) for store in stores]
    times: list[list[float]] = [[] for _ in stores]
    for _ in range(turns):
        for cycle, taken in zip(cycles, times, strict=True):
            begun = clock.monotonic()
            cycle.turn()
            taken.append(clock.monotonic() - begun)
    halves = [sorted(taken)[: max(1, turns // 2)] for taken in times]
    return [sum(half) / len(half) / BATCH for half in halves]

"""What a queue is measured against: the least that a table can do, without states, lanes, subscribers or identities."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg

from relay.world import clock

_SQLITE_TABLES: Final = (
    "create table waits (id integer primary key autoincrement, taken integer not null default 0, body blob)",
    "create table done (id integer primary key, body blob)",
)
_SQLITE_TAKE: Final = """
update waits set taken = taken + 1 where id in (select id from waits where taken = 0 order by id limit ?)
returning id, body
"""
_POSTGRESQL_TABLES: Final = (
    b"""create table waits (
    id bigint generated always as identity primary key, visible_at timestamptz not null default now(),
    reads integer not null default 0, enqueued_at timestamptz not null default now(), body bytea
)""",
    b"create index waits_visible on waits (visible_at)",
    b"""create table done (
    id bigint primary key, reads integer, enqueued_at timestamptz, archived_at timestamptz default now(), body bytea
)""",
)
_TAKE: Final = b"""
with next as (select id from waits where visible_at <= clock_timestamp() order by id limit %s for update skip locked)
update waits w set visible_at = clock_timestamp() + interval '60 s', reads = reads + 1 from next where w.id = next.id
returning w.id, w.body
"""
_ARCHIVE: Final = b"""
with gone as (delete from waits where id = any(%s) returning id, reads, enqueued_at, body)
insert into done (id, reads, enqueued_at, body) select id, reads, enqueued_at, body from gone
"""


def bare_sqlite(path: Path, messages: int, batch: int, body: bytes) -> float:
    """Insert, take and archive in a file of its own, as durably as the queue; return messages per second."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    for statement in _SQLITE_TABLES:
        connection.execute(statement)

    def turn() -> None:
        connection.execute("begin immediate")
        connection.executemany("insert into waits (body) values (?)", [(body,)] * batch)
        connection.execute("commit")
        connection.execute("begin immediate")
        taken = connection.execute(_SQLITE_TAKE, (batch,)).fetchall()
        connection.execute("commit")
        ids = [(row[0],) for row in taken]
        connection.execute("begin immediate")
        connection.executemany("insert into done select id, body from waits where id = ?", ids)
        connection.executemany("delete from waits where id = ?", ids)
        connection.execute("commit")

    try:
        return paced(turn, messages, batch)
    finally:
        connection.close()


def archiving_table(url: str, messages: int, batch: int, body: bytes) -> float:
    """Insert, read with a visibility timeout and archive in a database of its own, as pgmq does; return messages per second."""
    connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
    for statement in _POSTGRESQL_TABLES:
        connection.execute(statement)

    def turn() -> None:
        connection.execute(b"insert into waits (body) select unnest(%s::bytea[])", ([body] * batch,))
        taken = connection.execute(_TAKE, (batch,), binary=True).fetchall()
        connection.execute(_ARCHIVE, ([row[0] for row in taken],))

    try:
        return paced(turn, messages, batch)
    finally:
        connection.close()


def paced(turn: Callable[[], None], messages: int, batch: int) -> float:
    """Run turns of ``batch`` messages; return messages per second, the first tenth of the turns left out."""
    turns = max(messages // batch, 10)
    for _ in range(turns // 10):
        turn()
    begun = clock.monotonic()
    for _ in range(turns - turns // 10):
        turn()
    return (turns - turns // 10) * batch / (clock.monotonic() - begun)

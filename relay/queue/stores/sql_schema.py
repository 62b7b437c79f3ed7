"""The tables of queues in SQLite and PostgreSQL: one narrow row for each subscriber's state, payloads apart and never rewritten.

- ``relay_queue_open`` has a row while a message is PUT or REVEALED, so that finishing deletes a narrow row and never
  touches the payload; a message without one is JOURNALLED, or what ``relay_queue_message.state`` says.
- ``relay_queue_delivery.phase`` is what the indexes know of a delivery. No index has ``state``, so that IN_PROCESS
  is a heap-only update in PostgreSQL; all indexes on what waits are partial, and journalled messages cost nothing.
- Keys begin with the handle: a store that adopts another's messages keeps their handles, which are a queue's own.
"""

from __future__ import annotations

import sqlite3
from enum import IntEnum
from typing import Any, Final

import psycopg

from relay.resources.schema import ONE_AT_A_TIME, beside, raised


class Phase(IntEnum):
    """Where a delivery stands for `take`; the numbers are stored, never change one."""

    READY = 0
    """May be taken when its lane lets it."""
    RETRY = 1
    """Waits for its ``again_at`` and keeps its place in the lane."""
    PLACE = 2
    """Keeps its place in the lane: a child whose attempt has no outcome yet, or one that only another member may take."""
    HIDDEN = 3
    """Not revealed to it, or another member of the pool has it."""
    TAKEN = 4
    PASSED = 5
    """Journalled for this member, but another one of the pool may still take it: it keeps its place in the lane."""
    OVER = 6


class Shape:
    """Bits of ``relay_queue_delivery.shape``: what else is to be done when a delivery moves."""

    POOL: Final = 1
    ORDERED: Final = 2
    SHARED: Final = 4
    """The message has other subscribers, too."""


_TABLES: Final = (
    """create table if not exists relay_queue (
    id {serial},
    name text not null unique,
    uuid text not null,
    retired smallint not null default 0,
    last bigint not null default 0,
    waiting bigint not null default 0,
    over bigint not null default 0
)""",
    """create table if not exists relay_queue_subscriber (
    id {serial},
    queue integer not null,
    name text not null,
    unique (queue, name)
)""",
    """create table if not exists relay_queue_group (
    id {serial},
    queue integer not null,
    name text not null,
    unique (queue, name)
)""",
    """create table if not exists relay_queue_member (
    sub integer not null,
    grp integer not null,
    primary key (sub, grp)
)""",
    """create table if not exists relay_queue_message (
    handle bigint not null,
    queue integer not null,
    state smallint not null default 0,
    put_at bigint not null,
    revealed_at bigint,
    unavailable_at bigint,
    deleted_at bigint,
    journalled_at bigint,
    reveal_at bigint,
    expires_at bigint,
    priority smallint not null,
    attempt text,
    publisher text not null,
    id text not null,
    key {bytes},
    value {bytes},
    headers text,
    subject text,
    lane {bytes},
    parents text,
    primary key (handle, queue)
) {clustered}""",
    """create index if not exists relay_queue_message_ended on relay_queue_message (queue, state)
    where state <> 0""",
    """create table if not exists relay_queue_open (
    handle bigint not null,
    queue integer not null,
    state smallint not null,
    reveal_at bigint,
    publisher text {collate} not null,
    id text {collate},
    attempt text,
    primary key (handle, queue)
) {clustered}""",
    "create unique index if not exists relay_queue_open_id on relay_queue_open (id, publisher, queue)",
    """create index if not exists relay_queue_open_due on relay_queue_open (queue, reveal_at)
    where state = 1 and attempt is null and reveal_at is not null""",
    """create index if not exists relay_queue_open_kept on relay_queue_open (queue, publisher, handle)
    where state = 1 and attempt is null and reveal_at is null""",
    """create index if not exists relay_queue_open_child on relay_queue_open (queue, handle)
    where state = 1 and attempt is not null""",
    """create table if not exists relay_queue_delivery (
    handle bigint not null,
    sub integer not null,
    queue integer not null,
    grp integer not null,
    lane bigint,
    rank smallint not null,
    phase smallint not null,
    state smallint not null default 0,
    shape smallint not null default 0,
    turn smallint not null default 0,
    pos smallint not null default 0,
    revealed smallint not null,
    blocked smallint not null default 0,
    attempt integer not null default 0,
    failures integer not null default 0,
    expires_at bigint,
    again_at bigint,
    get_at bigint,
    fetched_at bigint,
    in_process_at bigint,
    done_at bigint,
    unusable_at bigint,
    expired_at bigint,
    journalled_at bigint,
    holder {bytes},
    cause text,
    primary key (handle, sub)
) {narrow}""",
    # What waits by far the most: with the lane, so that a take reads no row that it does not give.
    """create index if not exists relay_queue_delivery_ready on relay_queue_delivery (sub, rank, handle, lane)
    where phase = 0""",
    # What a worker has, and what keeps its place or is hidden.
    """create index if not exists relay_queue_delivery_busy on relay_queue_delivery (queue, phase, sub, handle)
    where phase > 0 and phase < 6""",
    """create index if not exists relay_queue_delivery_expiry on relay_queue_delivery (queue, expires_at)
    where expires_at is not null and phase < 4""",
    """create index if not exists relay_queue_delivery_unusable on relay_queue_delivery (queue, sub)
    where unusable_at is not null""",
    """create table if not exists relay_queue_holder (
    queue integer not null,
    id {bytes} not null,
    subscriber text not null,
    beats bigint not null,
    deciding text,
    primary key (queue, id)
)""",
    """create table if not exists relay_queue_attempt (
    queue integer not null,
    attempt text {collate} not null,
    committed smallint not null,
    at bigint not null,
    primary key (attempt, queue)
)""",
)
_POSTGRESQL_ONLY: Final = (
    "create sequence if not exists relay_queue_handle",
    # One row for each write instead of one counter that all writers would wait for; summed up now and then.
    """create table if not exists relay_queue_tally (
    queue integer not null,
    waiting bigint not null,
    over bigint not null
)""",
    "create index if not exists relay_queue_tally_queue on relay_queue_tally (queue)",
    # A copy of the tables has no sequence with it where they are replicated logically.
    """select setval('relay_queue_handle', max(handle)) from relay_queue_message
    having max(handle) > coalesce(pg_sequence_last_value('relay_queue_handle'), 0)""",
    *(raised(table, "id") for table in ("relay_queue", "relay_queue_subscriber", "relay_queue_group")),
    # Without a key: where all tables are published (logical replication), rows could be added and never summed up.
    """do $$ begin
    if (select relreplident from pg_class where oid = to_regclass('relay_queue_tally')) <> 'f' then
        alter table relay_queue_tally replica identity full;
    end if;
end $$""",
)
_SQLITE_WORDS: Final = {
    "serial": "integer primary key",
    "bytes": "blob",
    "collate": "",
    "clustered": "without rowid",
    "narrow": "without rowid",
}
_POSTGRESQL_WORDS: Final = {
    "serial": "integer generated always as identity primary key",
    "bytes": "bytea",
    "collate": 'collate "C"',
    "clustered": "",
    # Room in the page: a delivery is written three or four times.
    "narrow": "with (fillfactor = 60)",
}


def statements(kind: str) -> tuple[str, ...]:
    """Return what creates the tables, in its order; each may be run again."""
    words = _SQLITE_WORDS if kind == "sqlite" else _POSTGRESQL_WORDS
    before, further = ((), ()) if kind == "sqlite" else ((beside("relay_queue"),), _POSTGRESQL_ONLY)
    return before + tuple(text.format(**words) for text in _TABLES) + further


def create(connection: sqlite3.Connection | psycopg.Connection[Any]) -> None:
    """Create what is missing: for `relay migrate`. The connection's transaction, if any, decides."""
    if isinstance(connection, sqlite3.Connection):
        for statement in statements("sqlite"):
            connection.execute(statement)
        return
    connection.execute(ONE_AT_A_TIME)
    for statement in statements("postgresql"):
        connection.execute(statement.encode())

"""The relay's own tables, in both dialects; every statement may be run again and changes nothing then."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import cache
from typing import Final, Literal

Kind = Literal["postgresql", "sqlite"]


def beside(table: str) -> str:
    """Return PostgreSQL's statement that has new tables created where the session finds ``table`` by now, if it finds one.

    "if not exists" looks into the first schema of `search_path` only: once one is made that bears the role's name, a
    second set of empty tables would hide the first, and with it every position.
    """
    return (
        "select set_config('search_path', quote_ident(n.nspname) || ', ' || current_setting('search_path'), false) "  # noqa: S608
        f"from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass('{table}')"
    )


def raised(table: str, column: str) -> str:
    """Return PostgreSQL's statement that raises an identity's sequence above what the table has.

    It lies behind in a copy by logical replication, which has no sequences.
    """
    sequence = f"pg_get_serial_sequence('{table}', '{column}')"
    return (
        f"select setval({sequence}, max({column})) from {table} "  # noqa: S608
        f"having max({column}) > coalesce(pg_sequence_last_value({sequence}::regclass), 0)"
    )


def grown(table: str, column: str, definition: str) -> str:
    """Return PostgreSQL's statement that adds a column to a table of an earlier version.

    Not "add column if not exists", which waits for every writer to end also where there is nothing to add.
    """
    return f"""do $$ begin
    if not exists (select from pg_attribute where attrelid = to_regclass('{table}') and attname = '{column}') then
        alter table {table} add column {column} {definition};
    end if;
end $$"""


_POSTGRESQL: Final = (
    beside("relay_resource"),
    """create table if not exists relay_resource (
    uuid text not null,
    single boolean primary key default true check (single)
)""",
    "insert into relay_resource (uuid) values (gen_random_uuid()::text) on conflict do nothing",
    # A type, not a check: the server reads and plans every check again for each statement, which costs a capture an
    # eighth of its work in the database (measured). Room in the page lets the row be written without touching an index.
    """do $$ begin
    create type relay_outcome as enum ('committed', 'aborted');
exception when duplicate_object then null;
end $$""",
    """create table if not exists relay_capture (
    capture bytea primary key,
    nonce bytea,
    outcome relay_outcome not null,
    partitions text,
    marked boolean not null default false,
    created_at timestamptz not null default now()
) with (fillfactor = 50)""",
    "create index if not exists relay_capture_created on relay_capture using brin (created_at) with (autosummarize)",
    """create table if not exists relay_position (
    relay text not null,
    route text not null,
    topic_id bytea not null,
    topic text not null,
    partition integer not null,
    position bigint,
    epoch bigint not null,
    worker text not null,
    writes bigint not null default 0,
    primary key (relay, route, topic_id, partition)
) with (fillfactor = 50)""",
    grown("relay_position", "writes", "bigint not null default 0"),
    """create table if not exists relay_inbox (
    relay text not null,
    route text not null,
    digest bytea not null,
    content bytea not null,
    topic_id bytea not null,
    partition integer not null,
    log_offset bigint not null,
    outcome smallint not null check (outcome in (0, 1, 2)),
    applied bigint generated always as identity,
    primary key (digest, route, relay)
)""",
    raised("relay_inbox", "applied"),
    # Trimming and the restore at assignment go by place in the log. In both indexes what differs comes first: equal
    # names before it would be compared at every step down the tree (measured: a third of an insert's time).
    """create index if not exists relay_inbox_place
    on relay_inbox (topic_id, partition, log_offset)""",
    """create table if not exists relay_range (
    relay text not null,
    route text not null,
    topic_id bytea not null,
    partition integer not null,
    publisher bytea not null,
    state bytea not null,
    primary key (relay, route, topic_id, partition, publisher)
) with (fillfactor = 50)""",
    """create table if not exists relay_attempt (
    attempt text primary key,
    committed boolean not null,
    settled_at timestamptz not null default now()
)""",
    """create table if not exists relay_correlation (
    correlation text not null,
    key text not null,
    parts text not null,
    primary key (key, correlation)
) with (fillfactor = 50)""",
)

_SQLITE: Final = (
    """create table if not exists relay_resource (
    uuid text not null,
    single integer primary key default 1 check (single = 1)
)""",
    """insert into relay_resource (uuid, single)
values (
    lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-8'
        || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))),
    1
) on conflict do nothing""",
    """create table if not exists relay_capture (
    capture blob primary key,
    nonce blob,
    outcome text not null check (outcome in ('committed', 'aborted')),
    partitions text,
    marked integer not null default 0,
    created_at integer not null default (unixepoch()),
    check (outcome = 'aborted' or nonce is not null)
)""",
    "create index if not exists relay_capture_created on relay_capture (created_at)",
    """create table if not exists relay_position (
    relay text not null,
    route text not null,
    topic_id blob not null,
    topic text not null,
    partition integer not null,
    position integer,
    epoch integer not null,
    worker text not null,
    writes integer not null default 0,
    primary key (relay, route, topic_id, partition)
)""",
    """create table if not exists relay_inbox (
    relay text not null,
    route text not null,
    digest blob not null,
    content blob not null,
    topic_id blob not null,
    partition integer not null,
    log_offset integer not null,
    outcome integer not null check (outcome in (0, 1, 2)),
    applied integer primary key autoincrement,
    unique (relay, route, digest)
)""",
    """create index if not exists relay_inbox_place
    on relay_inbox (relay, route, topic_id, partition, log_offset)""",
    """create table if not exists relay_range (
    relay text not null,
    route text not null,
    topic_id blob not null,
    partition integer not null,
    publisher blob not null,
    state blob not null,
    primary key (relay, route, topic_id, partition, publisher)
)""",
    """create table if not exists relay_attempt (
    attempt text primary key,
    committed integer not null,
    settled_at integer not null default (unixepoch())
)""",
    """create table if not exists relay_correlation (
    correlation text not null,
    key text not null,
    parts text not null,
    primary key (key, correlation)
) without rowid""",
)

SQLITE_GROWN: Final = (("relay_position", "writes", "integer not null default 0"),)
"""Table, column and definition of what `relay migrate` adds to tables of an earlier version: SQLite has no condition for it."""

_NEW_IDENTITY: Final = {
    "postgresql": "update relay_resource set uuid = gen_random_uuid()::text",
    "sqlite": """update relay_resource set uuid =
    lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-8'
        || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))""",
}


ONE_AT_A_TIME: Final = "select pg_advisory_xact_lock(492119548281)"
"""Makes migrations of one PostgreSQL database wait for each other: "if not exists" fails when two create at once."""
ONE_CONNECTION_AT_A_TIME: Final = "select pg_advisory_lock(492119548281)"
"""The same until the connection is closed, for statements that are no transaction."""


def quoted_topics(names: Iterable[str]) -> list[str]:
    """Return the names as they stand in ``relay_capture.partitions``: a topic's name needs no escape in JSON."""
    return [f'["{name}",' for name in names]


def statements(kind: Kind) -> tuple[str, ...]:
    """Return the statements of `relay migrate`, in their order; SQLite's file is put into WAL mode on opening."""
    return _SQLITE if kind == "sqlite" else _POSTGRESQL


@cache
def own_columns() -> Mapping[str, frozenset[str]]:
    """Return the columns of each of the relay's own tables, which have the same names in both dialects."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements("sqlite"):
            connection.execute(statement)
        found = connection.execute(
            "select t.name, c.name from sqlite_schema t, pragma_table_info(t.name) c where t.type = 'table' and t.name like 'relay%'"
        ).fetchall()
    return {table: frozenset(column for owner, column in found if owner == table) for table, _ in found}


def new_identity(kind: Kind) -> str:
    """Return the statement of `relay migrate --new-identity`: a copy beside its original gets a uuid of its own."""
    return _NEW_IDENTITY[kind]

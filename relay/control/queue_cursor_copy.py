"""Taking the cursors of routes along when their queue moves: position, inbox and ranges, or the route would have lost them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import psycopg
from psycopg import sql

from relay.config.model import QueueDestination, RelayConfig
from relay.message.errors import ConfigError, Unreachable
from relay.resources.addresses import address
from relay.resources.sqlite import SqliteResource
from relay.run.queues import address_of
from relay.setup.check_table import away

_TABLES: Final = {
    "relay_position": ("relay", "route", "topic_id", "topic", "partition", "position", "epoch", "worker"),
    "relay_inbox": ("relay", "route", "digest", "content", "topic_id", "partition", "log_offset", "outcome", "applied"),
    "relay_range": ("relay", "route", "topic_id", "partition", "publisher", "state"),
}
_NUMBER: Final = "applied"
_IN_ORDER: Final = " order by applied, topic_id, partition, log_offset"
"""Inbox rows in the order in which their transactions committed; within one, each publisher's in that of the log."""
ROWS: Final = 10_000
_LOCK_TIMEOUT_S: Final = 15.0
_MAY_NUMBER: Final = """
select to_regclass('relay_inbox') is not null and to_regclass('relay_position') is not null and to_regclass('relay_range') is not null,
    coalesce(has_sequence_privilege(s, 'usage') and has_sequence_privilege(s, 'update'), false), current_user
from (select case when to_regclass('relay_inbox') is not null then pg_get_serial_sequence('relay_inbox', 'applied') end) as t (s)
"""


def check_cursors(config: RelayConfig, queue: str, target: str) -> None:
    """Raise ConfigError where cursors cannot be copied: found out behind the old store's retirement, it would keep the queue stopped."""
    for url in _addresses(config, queue, target) if _routes(config, queue) else ():
        if url.startswith("sqlite:"):
            continue
        try:
            with psycopg.connect(**address(url)) as connection:
                is_there, may, role = connection.execute(_MAY_NUMBER).fetchall()[0]
        except psycopg.OperationalError as error:
            raise away(f"queue {queue}", url, error) from None
        if not is_there:
            raise ConfigError(f"queue {queue!r}: a database of it lacks tables in which routes keep their positions; run `relay migrate`")
        if not may:
            raise ConfigError(
                f"queue {queue!r}: {role} may not number the inbox rows of its routes; run `relay migrate` where `migrate_url` is set, or "
                f"have the owner say: grant usage, update on sequence relay_inbox_applied_seq to {role}"
            )


def copy_cursors(config: RelayConfig, queue: str, target: str) -> int:
    """Replace, in the new store's database, what the routes into the queue have in the old one; return how many rows.

    The old store is retired by now: a late batch without messages may still move a position there, which only makes
    its messages come once more, known by then. Raises Unreachable.
    """
    routes = _routes(config, queue)
    if not routes:
        return 0
    old, new = _addresses(config, queue, target)
    try:
        if new.startswith("sqlite:"):
            with closing(_sqlite(new)) as connection:
                return _into_sqlite(connection, config.relay.name, routes, old)
        with psycopg.connect(**address(new)) as postgres:
            return _into_postgresql(postgres, config.relay.name, routes, old)
    except (psycopg.OperationalError, sqlite3.OperationalError) as error:
        # Only the type: a driver's text may quote its connection string.
        raise Unreachable(
            f"queue {queue!r}: a database in which its routes keep their positions does not answer, or is busy "
            f"({type(error).__name__}); nothing was copied of them, so run the command again"
        ) from error


def _routes(config: RelayConfig, queue: str) -> list[str]:
    return [route.name for route in config.routes.values() if isinstance(route.to, QueueDestination) and route.to.queue == queue]


def _addresses(config: RelayConfig, queue: str, target: str) -> tuple[str, str]:
    """Return where the queue's index lies, and where it goes."""
    given = config.queues[queue]
    old, new = (address_of(config, given, store).removeprefix("log+") for store in (given.store, target))
    return old, new


def _into_sqlite(connection: sqlite3.Connection, relay: str, routes: Sequence[str], old: str) -> int:
    count = 0
    connection.execute("begin immediate")
    number = _numbered(connection, _last_applied(old))
    for table, columns in _TABLES.items():
        names, places = ", ".join(columns), ", ".join("?" * len(columns))
        for route in routes:
            connection.execute(f"delete from {table} where relay = ? and route = ?", (relay, route))  # noqa: S608
        for found in _rows(old, table, columns, relay, routes):
            row = found
            if columns[-1] == _NUMBER:
                number += 1
                row = (*found[:-1], number)
            connection.execute(f"insert into {table} ({names}) values ({places})", row)  # noqa: S608
            count += 1
    connection.execute("commit")
    return count


def _numbered(connection: sqlite3.Connection, last: int) -> int:
    """Return the number above which a file's inbox rows are numbered from now on: above those that the monitor's entries name, too.

    Here each row has one of its own, also beside other routes'; in PostgreSQL those of a transaction share one.
    """
    connection.execute(
        "insert into sqlite_sequence (name, seq) select 'relay_inbox', 0"
        " where not exists (select 1 from sqlite_sequence where name = 'relay_inbox')"
    )
    row = connection.execute("update sqlite_sequence set seq = max(seq, ?) where name = 'relay_inbox' returning seq", (last,)).fetchone()
    return int(row[0])


def _into_postgresql(connection: psycopg.Connection[Any], relay: str, routes: Sequence[str], old: str) -> int:
    count = 0
    for table, columns in _TABLES.items():
        connection.execute(
            sql.SQL("delete from {} where relay = %s and route = any(%s)").format(sql.Identifier(table)),
            (relay, list(routes)),
        )
        insert = sql.SQL("insert into {} ({}) overriding system value values ({})").format(
            sql.Identifier(table),
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.SQL(", ").join([sql.Placeholder()] * len(columns)),
        )
        rows = list(_rows(old, table, columns, relay, routes))
        with connection.cursor() as cursor:
            cursor.executemany(insert, rows)
        count += len(rows)
    last = _last_applied(old)
    connection.execute(
        "select setval(s, greatest(%s, nextval(s))) from pg_get_serial_sequence('relay_inbox', 'applied') s", (last + 1,)
    )
    return count


def _rows(url: str, table: str, columns: Sequence[str], relay: str, routes: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    order = _IN_ORDER if columns[-1] == _NUMBER else ""
    for route in routes:
        if url.startswith("sqlite:"):
            with closing(_sqlite(url)) as source:
                query = f"select {', '.join(columns)} from {table} where relay = ? and route = ?{order}"  # noqa: S608
                yield from _all(source.execute(query, (relay, route)))
        else:
            with psycopg.connect(**address(url)) as postgres, postgres.cursor() as cursor:
                chosen = sql.SQL("select {} from {} where relay = %s and route = %s{}").format(
                    sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(table), sql.SQL(order)
                )
                yield from _all(cursor.execute(chosen, (relay, route)))


def _all(cursor: Any) -> Iterable[tuple[Any, ...]]:
    while rows := cursor.fetchmany(ROWS):
        yield from rows


def _last_applied(url: str) -> int:
    if url.startswith("sqlite:"):
        with closing(_sqlite(url)) as connection:
            row = connection.execute("select seq from sqlite_sequence where name = 'relay_inbox'").fetchone()
            return int(row[0]) if row else 0
    with psycopg.connect(**address(url)) as postgres:
        # Drawn, not looked at: a number that is never used costs nothing.
        row = postgres.execute("select nextval(pg_get_serial_sequence('relay_inbox', 'applied'))").fetchone()
        assert row is not None
        return int(row[0])


def _sqlite(url: str) -> sqlite3.Connection:
    return SqliteResource("queue", url.removeprefix("sqlite:///"), _LOCK_TIMEOUT_S).connect()

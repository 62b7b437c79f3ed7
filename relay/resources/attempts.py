"""The outcomes of attempts that a resource decides: one row each, and whoever writes it first is right."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import orjson
import psycopg

from relay.resources.postgresql import before_names, own_cursor
from relay.resources.postgresql import reaching as reaching_postgresql
from relay.resources.sqlite import reaching as reaching_sqlite


class PostgresqlAttempts:
    """Outcomes in PostgreSQL, on a connection of the caller's: inside its transaction, or each on its own in autocommit.

    ``settle`` waits for an attempt whose decision is under way, as long as the connection's ``lock_timeout`` says.
    The table is the one that the connection finds now, also in a transaction whose handler says of `search_path` what it likes.
    """

    def __init__(self, name: str, connection: psycopg.Connection[Any]) -> None:
        self._name = name
        self._connection = connection
        with reaching_postgresql(name):
            table = before_names(connection, "relay_attempt") + b"relay_attempt"
        self._insert = b"insert into %b (attempt, committed) values (%%s, %%s) on conflict do nothing" % table
        self._read = b"select committed from %b where attempt = %%s" % table
        self._delete = b"delete from %b where attempt = any(%%s) and committed" % table

    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:  # noqa: ARG002 - the server writes its own time
        """Write the outcome unless there is one, and return the one that stands.

        Raises RowLocked while the attempt's own transaction decides, Unreachable, ConfigError.
        """
        with reaching_postgresql(self._name):
            cursor = own_cursor(self._connection)
            cursor.execute(self._insert, (attempt, committed))
            # A statement of its own: one statement's snapshot does not see a row whose writer it has waited for.
            row = cursor.execute(self._read, (attempt,)).fetchone()
        assert row is not None, "the row was just inserted, or stood in its way"
        return bool(row[0])

    def forget(self, attempts: Sequence[str]) -> None:
        """Delete committed outcomes; raises Unreachable, or ConfigError if the role has no right to."""
        with reaching_postgresql(self._name):
            own_cursor(self._connection).execute(self._delete, (list(attempts),))


class SqliteAttempts:
    """Outcomes in SQLite, on a connection of the caller's: inside its transaction, or each on its own in autocommit."""

    def __init__(self, name: str, connection: sqlite3.Connection) -> None:
        self._name = name
        self._connection = connection

    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:
        """Write the outcome unless there is one, and return the one that stands; raises RowLocked, Unreachable."""
        with reaching_sqlite(self._name):
            self._connection.execute(
                "insert into relay_attempt (attempt, committed, settled_at) values (?, ?, ?) on conflict do nothing",
                (attempt, committed, now // 1000),
            )
            row = self._connection.execute(
                "select committed from relay_attempt where attempt = ?", (attempt,)
            ).fetchone()
        return bool(row[0])

    def forget(self, attempts: Sequence[str]) -> None:
        """Delete committed outcomes; raises RowLocked, Unreachable."""
        with reaching_sqlite(self._name):
            self._connection.execute(
                "delete from relay_attempt where committed = 1 and attempt in (select value from json_each(?))",
                (orjson.dumps(list(attempts)).decode(),),
            )

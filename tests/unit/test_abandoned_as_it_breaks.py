"""A connection is given up by the worker's thread, which may find that it breaks by itself in that moment."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from relay.delivery.table.postgresql.cursor import PostgresqlCursor
from relay.delivery.table.verdicts import TablePlan
from relay.message.errors import Fenced

PLAN = TablePlan(relay="shop", route="main", resource="db", table="t", mode="insert", columns={})


class Breaking:
    """Open when it is asked; the client library has let go of its socket by then."""

    closed = False

    def fileno(self) -> int:
        raise psycopg.OperationalError("the connection is lost")


class Open:
    """Notes whether nobody could have asked for its descriptor as it was closed."""

    closed = False

    def __init__(self, cursor: PostgresqlCursor) -> None:
        self._cursor = cursor
        self.guarded: list[bool] = []

    def close(self) -> None:
        self.closed = True
        self.guarded.append(self._cursor._link._replacing.locked())


class Altered:
    def is_current(self, _: Any) -> bool:
        return False


def test_a_connection_that_breaks_as_it_is_given_up_ends_no_worker() -> None:
    cursor = PostgresqlCursor("postgresql://u@h/d", PLAN)
    cursor._link._connection = Breaking()  # type: ignore[assignment]

    cursor.abandon()


def test_a_connection_whose_table_was_altered_is_closed_while_nobody_can_shut_its_descriptor_down() -> None:
    """The number may be another file's a moment later."""
    cursor = PostgresqlCursor("postgresql://u@h/d", PLAN)
    connection: Any = Open(cursor)
    cursor._link._connection = connection

    with pytest.raises(Fenced, match="was altered"):
        cursor._check_table(connection, Altered())  # type: ignore[arg-type]

    assert connection.guarded == [True]

"""A batch is formed on the worker's thread while the cursor's may connect again, and read other types of the same table."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from relay.delivery.table.mapping import Finish, Mapped
from relay.delivery.table.postgresql.cursor import PostgresqlCursor
from relay.delivery.table.sqlite.cursor import SqliteCursor
from relay.delivery.table.verdicts import TablePlan
from relay.message.record import LogMessage

PLAN = TablePlan(relay="shop", route="main", resource="db", table="t", mode="insert", columns={})


class Effect:
    def finish(self, columns: list[list[object]]) -> list[object]:
        return [self, *columns]


def reads_types_anew(cursor: PostgresqlCursor | SqliteCursor) -> None:
    if isinstance(cursor, PostgresqlCursor):
        cursor._link.effect = Effect()  # type: ignore[assignment]
    else:
        cursor._effect = Effect()  # type: ignore[assignment]


class Mapping:
    """Forms rows, and has the cursor connect again meanwhile."""

    cursor: PostgresqlCursor | SqliteCursor

    def map(self, messages: Sequence[LogMessage], finish: Finish) -> Mapped:
        assert not messages
        rows = finish([])
        reads_types_anew(self.cursor)
        return Mapped(rows, [], {})


@pytest.mark.parametrize("kind", [PostgresqlCursor, SqliteCursor])
def test_rows_are_written_as_what_they_were_formed_for(kind: type[PostgresqlCursor | SqliteCursor]) -> None:
    """Else what tells that the table was altered compares it with its new types, and rows formed for the old ones go in."""
    mapping = Mapping()
    mapping.cursor = cursor = kind("sqlite:///t.db", PLAN, mapping=mapping)
    reads_types_anew(cursor)

    prepared = cursor.prepare([])

    assert prepared.mapped.rows == [prepared.effect]

"""A handler that gives its connection a way of its own to make rows, or cursors: the relay's statements there go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from relay.queue.states import SubscriberState
from relay.resources.attempts import PostgresqlAttempts
from relay.resources.schema import statements
from relay.work.desks import Database
from relay.work.dispatch import Outcome
from relay.work.further import FurtherDatabase
from relay.work.message import Message
from tests.integration.handler_site import Books, Table

RETURNING = "insert into effect (number) values (1) returning number"
Connection = psycopg.Connection[Any]


class Rows:
    """Makes dictionaries, as psycopg's documentation does; what returns no rows has no columns, which it does not expect."""

    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        assert cursor.description is not None
        self._names = [column.name for column in cursor.description]

    def __call__(self, values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._names, values, strict=True))


def own_rows(connection: Connection) -> None:
    connection.row_factory = Rows


def own_cursors(connection: Connection) -> None:
    connection.cursor_factory = psycopg.ClientCursor


MEDDLING = pytest.mark.parametrize("meddle", [own_rows, own_cursors])


@MEDDLING
def test_its_message_is_done_together_with_what_it_wrote(table: Table, meddle: Callable[[Connection], None]) -> None:
    def handle(message: Message, db: Database) -> None:
        meddle(db.execute(RETURNING).connection)
        message.publish("q", b"child")

    ended = table.end(handle)

    assert (ended.outcome, ended.cause) == (Outcome.WRITTEN, "")
    assert (table.effects(), table.state()) == (1, SubscriberState.DONE)


@MEDDLING
def test_its_failure_is_taken_back_and_ends_no_process(table: Table, meddle: Callable[[Connection], None]) -> None:
    def handle(_: Message, db: Database) -> None:
        meddle(db.execute(RETURNING).connection)
        raise ValueError

    assert table.end(handle).outcome is Outcome.FAILED
    assert table.effects() == 0
    # The one connection that there is was given back.
    assert table.end(lambda _, db: db.execute(RETURNING)).outcome is Outcome.WRITTEN


@MEDDLING
def test_its_outcome_is_written_and_forgotten_where_a_resource_decides(
    postgres: str, meddle: Callable[[Connection], None]
) -> None:
    with psycopg.connect(postgres) as connection:
        for statement in statements("postgresql"):
            connection.execute(statement.encode())
        attempts = PostgresqlAttempts("shop", connection)
        meddle(connection)

        assert attempts.settle("a", committed=True, now=1)
        attempts.forget(["a"])
        assert not attempts.settle("a", committed=False, now=1)


@MEDDLING
def test_what_it_wrote_into_a_further_database_is_prepared(books: Books, meddle: Callable[[Connection], None]) -> None:
    def handle(_: Message, __: Database, ledger: FurtherDatabase) -> None:
        meddle(ledger.execute("insert into entry values (1) returning number").connection)

    assert books.end(handle) is Outcome.WRITTEN
    assert books.entries() == 1

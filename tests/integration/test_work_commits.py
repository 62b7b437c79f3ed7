"""A handler that commits or rolls back as one does with a driver's connection: what it writes with is none."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
import pytest

from relay.queue.message import NewMessage
from relay.queue.states import SubscriberState
from relay.work.desk import TransactionTaken
from relay.work.desks import Database
from relay.work.dispatch import Outcome
from relay.work.further import FurtherDatabase
from relay.work.message import Message
from relay.work.testing import database
from tests.integration.handler_site import EFFECT, HOLDER, Books, Table

ENTRY = "insert into entry values (1)"
ENDING = pytest.mark.parametrize("ends", ["commit", "rollback"])


@ENDING
def test_its_message_fails_and_nothing_of_it_stands(table: Table, ends: str) -> None:
    """Else its writes stand without its message's DONE, and again after a worker's death in between."""

    def handle(_: Message, db: Database) -> None:
        db.execute(EFFECT)
        getattr(db, ends)()

    ended = table.end(handle)

    assert ended.outcome is Outcome.FAILED
    assert "leave COMMIT and ROLLBACK to the relay" in ended.cause
    assert (table.state(), table.effects()) == (SubscriberState.FETCHED, 0)


@ENDING
def test_one_that_lets_the_refusal_pass_has_its_writes_committed_with_its_message(table: Table, ends: str) -> None:
    def handle(_: Message, db: Database) -> None:
        db.execute(EFFECT)
        with suppress(TransactionTaken):
            getattr(db, ends)()
        assert table.effects() == 0

    assert table.end(handle).outcome is Outcome.WRITTEN
    assert table.effects() == 1


@ENDING
def test_what_comes_behind_a_statement_that_ends_it_does_not_take_effect_by_itself(table: Table, ends: str) -> None:
    def handle(_: Message, db: Database) -> None:
        db.execute(ends)
        for write in (lambda: db.execute(EFFECT), lambda: db.executemany("insert into effect values (%s)", [(1,)])):
            with suppress(TransactionTaken):
                write()

    ended = table.end(handle)

    assert ended.outcome is Outcome.FAILED
    assert "ended the transaction itself" in ended.cause
    assert (table.state(), table.effects()) == (SubscriberState.FETCHED, 0)


@ENDING
def test_so_it_is_in_a_further_database(books: Books, ends: str) -> None:
    def handle(_: Message, __: Database, ledger: FurtherDatabase) -> None:
        ledger.execute(ENTRY)
        getattr(ledger, ends)()

    assert books.end(handle) is Outcome.FAILED
    assert (books.state(), books.entries(), books.prepared.pending()) == (SubscriberState.FETCHED, 0, [])


def test_a_cursor_that_is_kept_writes_nothing_with_the_next_message(table: Table) -> None:
    kept: list[Any] = []

    def handle(_: Message, db: Database) -> None:
        kept.append(db.execute(EFFECT))

    def by_habit(_: Message, db: Database) -> None:
        db.execute("select 1")
        kept[0].execute(EFFECT)

    assert table.end(handle).outcome is Outcome.WRITTEN
    table.store.put([NewMessage("p", "2", b"2")], 2)
    (table.taken,) = table.store.take("s", HOLDER, 1, 2)
    ended = table.end(by_habit)

    assert ended.outcome is Outcome.FAILED
    assert "in by_habit" in ended.cause
    assert table.effects() == 1


def test_so_it_is_of_a_further_database(books: Books) -> None:
    kept: list[psycopg.Cursor[Any]] = []

    def handle(_: Message, __: Database, ledger: FurtherDatabase) -> None:
        kept.append(ledger.execute(ENTRY))

    books.end(handle)

    with pytest.raises(psycopg.InterfaceError, match="the cursor is closed"):
        kept[0].execute(ENTRY)
    assert books.entries() == 1


def test_applications_test_their_handlers_on_a_connection_of_their_own(postgres: str) -> None:
    def written(connection: psycopg.Connection[Any], *, ends: bool = False) -> None:
        with database(connection) as db:
            db.execute("insert into approval (id) values (%s)", (42,))
            if ends:
                db.execute("commit and chain")

    with psycopg.connect(postgres, autocommit=True) as connection, psycopg.connect(postgres) as unfit:
        connection.execute("create table approval (id integer)")
        written(connection)
        assert connection.execute("select id from approval").fetchall() == [(42,)]
        with pytest.raises(TransactionTaken):
            written(connection, ends=True)
        with pytest.raises(ValueError, match="autocommit=True"):
            written(unfit)

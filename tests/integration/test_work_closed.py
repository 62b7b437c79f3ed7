"""A handler that closes the connection which it was lent: that is its own doing, and not the server's."""

from __future__ import annotations

from typing import Any

import pytest

from relay.queue.states import SubscriberState
from relay.work.desks import Database
from relay.work.dispatch import Outcome
from relay.work.further import FurtherDatabase
from relay.work.message import Message
from tests.integration.handler_site import EFFECT, Books, Table, table

__all__ = ["table"]

ENTRY = "insert into entry values (1)"


def leaves(cursor: Any) -> None:
    cursor.connection.close()


def commits_and_leaves(cursor: Any) -> None:
    """What `with connection:` of psycopg does at its end."""
    cursor.connection.commit()
    cursor.connection.close()


CLOSING = pytest.mark.parametrize("closing", [leaves, commits_and_leaves])


@CLOSING
@pytest.mark.parametrize("goes_on", [False, True])
def test_its_message_fails_and_the_next_one_gets_another_connection(table: Table, closing: Any, goes_on: bool) -> None:
    """Taken for a server that is away it would be tried for ever, with whatever it commits."""

    def handle(_: Message, db: Database) -> None:
        closing(db.execute(EFFECT))
        if goes_on:
            db.execute(EFFECT)

    assert table.end(handle).outcome is Outcome.FAILED
    assert table.state() is SubscriberState.FETCHED
    assert table.end(lambda _, db: db.execute(EFFECT)).outcome is Outcome.WRITTEN


@CLOSING
@pytest.mark.parametrize("goes_on", [False, True])
def test_so_does_one_that_does_it_in_a_further_database(books: Books, closing: Any, goes_on: bool) -> None:
    def handle(_: Message, __: Database, ledger: FurtherDatabase) -> None:
        cursor = ledger.execute(ENTRY)
        if closing is commits_and_leaves:
            ledger.execute("commit")
        cursor.connection.close()
        if goes_on:
            ledger.execute(ENTRY)

    assert books.end(handle) is Outcome.FAILED
    assert (books.state(), books.prepared.pending()) == (SubscriberState.FETCHED, [])
    assert books.end(lambda _, __, ledger: ledger.execute(ENTRY)) is Outcome.WRITTEN

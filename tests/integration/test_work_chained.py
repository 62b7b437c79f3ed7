"""A handler that ends its transaction and is in another one afterwards: told so like one that is in none."""

from __future__ import annotations

import pytest

from relay.queue.states import SubscriberState
from relay.work.desks import Database
from relay.work.dispatch import Outcome
from relay.work.further import FurtherDatabase
from relay.work.message import Message
from tests.integration.handler_site import EFFECT, Books, Table

ENTRY = "insert into entry values (1)"
ENDING = pytest.mark.parametrize(
    "words",
    [
        "commit and chain",
        "rollback and chain",
        "commit; begin",
        "rollback; begin",
        "select 1; commit and chain; select 2",
        "commit; begin isolation level serializable",
    ],
)
INSIDE = pytest.mark.parametrize(
    "words",
    ["savepoint a; rollback to a", "savepoint a; release a", "reset all", "begin"],
)


@ENDING
def test_a_handler_that_chains_another_transaction_is_told_so(table: Table, words: str) -> None:
    """Else DONE is committed with what came after it only, or an effect stands whose message runs again."""

    def meddling(_: Message, db: Database) -> None:
        db.execute(EFFECT)
        db.execute(words)

    ended = table.end(meddling)

    assert ended.outcome is Outcome.FAILED
    assert "ended the transaction itself" in ended.cause
    assert table.state() is SubscriberState.FETCHED
    assert table.end(lambda _, db: db.execute(EFFECT)).outcome is Outcome.WRITTEN


@INSIDE
def test_what_stays_inside_the_transaction_is_no_such_end(table: Table, words: str) -> None:
    def handle(_: Message, db: Database) -> None:
        db.execute(words)
        db.execute(EFFECT)

    assert table.end(handle).outcome is Outcome.WRITTEN
    assert table.effects() == 1


def test_a_trigger_at_the_commit_that_reads_what_is_no_number_has_not_ended_anything(table: Table) -> None:
    table.run(
        "create function refuse() returns trigger language plpgsql as $$ begin perform 'x'::integer; return null; end $$"
    )
    table.run(
        "create constraint trigger refused after insert on effect deferrable initially deferred for each row execute function refuse()"
    )

    assert "InvalidTextRepresentation" in table.end(lambda _, db: db.execute(EFFECT)).cause


@ENDING
def test_so_is_one_that_does_it_in_a_further_database(books: Books, words: str) -> None:
    def meddling(_: Message, __: Database, ledger: FurtherDatabase) -> None:
        ledger.execute(ENTRY)
        ledger.execute(words)

    assert books.end(meddling) is Outcome.FAILED
    assert (books.state(), books.prepared.pending()) == (SubscriberState.FETCHED, [])
    assert books.end(lambda _, __, ledger: ledger.execute(ENTRY)) is Outcome.WRITTEN


@INSIDE
def test_what_stays_inside_the_transaction_there_is_no_such_end(books: Books, words: str) -> None:
    def handle(_: Message, __: Database, ledger: FurtherDatabase) -> None:
        ledger.execute(words)
        ledger.execute(ENTRY)

    assert books.end(handle) is Outcome.WRITTEN
    assert books.entries() == 1

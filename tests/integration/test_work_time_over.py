"""A handler that pauses in its transaction: for as long as it may run, and what the server ends for it costs one of its tries."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from relay.queue.port import Filter, StoreAway
from relay.queue.states import SubscriberState
from relay.queue.stores import open_store
from relay.resources import open_resource
from relay.work.desk_postgresql import PostgresqlDesk
from relay.work.desks import Database, Desks
from relay.work.dispatch import Ended, Outcome, Work
from relay.work.further import FurtherDatabase
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import Handler
from relay.world import schedule
from tests.integration.handler_site import EFFECT, SETTINGS, Books, Table
from tests.integration.work_site import Site, site_on

LIMIT = "set local idle_in_transaction_session_timeout = '100ms'"
ENTRY = "insert into entry values (1)"
Written = Database | FurtherDatabase


def pause(db: Written) -> None:
    """Let the server end the transaction."""
    connection = db.execute(LIMIT).connection
    assert select.select([connection.fileno()], [], [], 60)[0], "the server says that it has ended it"


def going_on(db: Written, statement: str) -> None:
    db.execute(statement)
    pause(db)
    db.execute(statement)


def returning(db: Written, statement: str) -> None:
    db.execute(statement)
    pause(db)


def swallowing(db: Written, statement: str) -> None:
    db.execute(statement)
    pause(db)
    with suppress(psycopg.Error):
        db.execute(statement)


def going_on_with_many(db: Written, statement: str) -> None:
    """The driver sends them at once, and what the server had said before is no answer to any of them."""
    db.execute(statement)
    pause(db)
    db.executemany(statement, [()])


def swallowing_of_many(db: Written, statement: str) -> None:
    db.execute(statement)
    pause(db)
    with suppress(psycopg.Error):
        db.executemany(statement, [()])


def swallowing_all_but_the_last(db: Written, statement: str) -> None:
    swallowing(db, statement)
    db.execute(statement)


def lasting(db: Written, statement: str) -> None:
    """The time of a whole transaction is over, however busy it is."""
    db.execute("set local transaction_timeout = '100ms'")
    db.execute(statement)
    db.execute("select pg_sleep(5)")


ALL = pytest.mark.parametrize(
    "handled", [going_on, going_on_with_many, returning, swallowing, swallowing_of_many, swallowing_all_but_the_last, lasting]
)
Handled = Callable[[Written, str], None]


@ALL
def test_a_transaction_that_the_server_ends_for_a_pause_costs_its_message_a_try(
    table: Table, handled: Handled
) -> None:
    """Taken for a database that is away it would be tried for ever, and its lane wait."""
    ended = table.end(lambda _, db: handled(db, EFFECT))

    assert (ended.outcome, table.effects(), table.state()) == (Outcome.FAILED, 0, SubscriberState.FETCHED)
    assert table.end(lambda _, db: db.execute(EFFECT)).outcome is Outcome.WRITTEN


@dataclass
class Elsewhere:
    """The handler's database decides for a queue that lies elsewhere."""

    table: Table
    place: Place

    def end(self, function: Callable[[Message, Database], None]) -> Ended:
        desks = Desks(
            lambda: PostgresqlDesk("shop", psycopg.connect(self.table.url, autocommit=True), lambda _: {}), 1
        )
        (ended,) = Runner(Handler("q", function, "shop", 0, "queue"), self.place, desks)(
            Work((self.table.taken,))
        )
        desks.close()
        return ended


@pytest.fixture
def elsewhere(table: Table) -> Elsewhere:
    open_resource("shop", table.url).create_tables()
    return Elsewhere(table, Place("q", "s", "resource:shop", {"q": table.store}, {"q": schedule.lock()}))


@ALL
def test_so_does_one_that_decides_for_a_queue_that_lies_elsewhere(
    elsewhere: Elsewhere, handled: Handled
) -> None:
    assert elsewhere.end(lambda _, db: handled(db, EFFECT)).outcome is Outcome.FAILED
    assert elsewhere.end(lambda _, db: db.execute(EFFECT)).outcome is Outcome.DONE
    assert elsewhere.table.effects() == 1


def test_a_handler_that_has_only_returned_too_late_is_told_what_to_do(table: Table) -> None:
    assert "before its first statement" in table.end(lambda _, db: returning(db, EFFECT)).cause


@ALL
def test_so_does_one_in_a_further_database(books: Books, handled: Handled) -> None:
    assert books.end(lambda _, __, ledger: handled(ledger, ENTRY)) is Outcome.FAILED

    assert (books.entries(), books.state(), books.prepared.pending()) == (0, SubscriberState.FETCHED, [])
    assert books.end(lambda _, __, ledger: ledger.execute(ENTRY)) is Outcome.WRITTEN


def test_the_same_word_from_the_store_of_another_queue_costs_no_try(
    elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that this process stood still, or that the store waited, and nothing of the handler."""
    audit = open_store(replace(SETTINGS, name="audit"), f"sqlite:///{tmp_path}/audit.db")

    def away(*_: object) -> NoReturn:
        raise StoreAway("ended") from psycopg.errors.IdleInTransactionSessionTimeout()

    def handle(message: Message, db: Database) -> None:
        db.execute(EFFECT)
        message.publish("audit", b"child")

    monkeypatch.setattr(audit, "put", away)
    place = elsewhere.place
    elsewhere.place = replace(
        place, stores={**place.stores, "audit": audit}, locks={**place.locks, "audit": schedule.lock()}
    )

    assert elsewhere.end(handle).outcome is Outcome.AWAY
    audit.close()


def test_a_connection_that_breaks_in_a_pause_costs_no_try(table: Table) -> None:
    def cut_off(_: Message, db: Database) -> None:
        db.execute(EFFECT)
        ((backend,),) = db.execute("select pg_backend_pid()").fetchall()
        table.run(f"select pg_terminate_backend({backend})")

    assert table.end(cut_off).outcome is Outcome.AWAY


PAUSING = """
import time

from relay import subscriber

@subscriber("orders", resource="shop")
def book(message, db):
    number = int(message.value)
    db.execute("select 1")
    if number == 1:
        db.execute("set local idle_in_transaction_session_timeout = '100ms'")
    time.sleep((2.5, 0.5, 0)[number])
    db.execute("insert into effect (lane, number, attempt) values (%s, %s, %s)",
               (message.lane.decode(), number, message.taken.ticket.attempt))
"""


@pytest.fixture
def site(
    request: pytest.FixtureRequest, tmp_path: Path, kafka: str, kafka_admin: AdminClient
) -> Iterator[Site]:
    given: dict[str, Any] = {"extra": "tries = 2"}
    with site_on("postgresql", request, tmp_path, kafka, kafka_admin, **given) as made:
        made.path.write_text(made.path.read_text().replace('lease = "60s"', 'lease = "1s"'))
        yield made


def test_a_handler_may_pause_for_longer_than_the_lease_and_one_that_is_ended_each_time_dies_and_frees_its_lane(
    site: Site,
) -> None:
    site.put(range(3), lanes=1)

    assert site.finish(site.app(PAUSING)) == 0

    assert site.run_sql("select number, attempt from effect order by id") == [(0, 1), (2, 2)]
    store = site.store()
    (dead,) = [one for one in store.find(Filter(), limit=9) if one.subscribers[0].cause is not None]
    store.close()
    assert (dead.id, dead.subscribers[0].attempt) == ("1", 2)
    assert str(dead.subscribers[0].cause).startswith("IdleInTransactionSessionTimeout in book")


def test_a_function_that_raises_the_same_in_a_savepoint_has_ended_nothing(table: Table) -> None:
    def handle(_: Message, db: Database) -> None:
        db.execute(EFFECT)
        db.execute("savepoint before")
        with suppress(psycopg.Error):
            db.execute("do $$ begin raise exception 'no' using errcode = '25P03'; end $$")
        db.execute("rollback to before")

    assert table.end(handle).outcome is Outcome.WRITTEN
    assert table.effects() == 1

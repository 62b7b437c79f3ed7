"""What applications test their handlers with behaves as a worker does."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from relay import AwaitedDatabase, CallOver, Database, Message, subscriber
from relay.work.coroutines import StatementNotAwaited
from relay.work.desk import TransactionTaken
from relay.work.testing import awaited_database, database, message, published


@subscriber("credit", resource="shop")
def approve(order: Message, db: Database) -> None:
    db.execute("insert into approval (id) values (?)", (order.json()["id"],))
    order.publish("mail", {"id": order.json()["id"]}, delay_ms=60_000)
    order.publish("audit", b"\xff")


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    made.execute("create table approval (id integer)")
    yield made
    made.close()


def approved(connection: sqlite3.Connection) -> list[int]:
    return [number for (number,) in connection.execute("select id from approval order by id")]


def test_what_a_handler_writes_and_publishes_can_be_looked_at(connection: sqlite3.Connection) -> None:
    order = message({"id": 42}, queue="credit")

    with database(connection) as db:
        approve(order, db)
        assert connection.in_transaction

    assert (connection.in_transaction, approved(connection)) == (False, [42])
    assert published(order) == [("mail", {"id": 42}), ("audit", b"\xff")]


def test_a_message_is_what_its_words_say() -> None:
    made = message(
        "text", queue="q", subscriber="s", id="7", publisher="/shop", key="k", headers={"ce_type": "x"}, subject="of", failures=2
    )

    assert (made.value, made.id, made.publisher, made.key, made.lane) == (b"text", "7", "/shop", b"k", b"k")
    assert (made.header("ce_type"), made.subject, made.failures) == (b"x", "of", 2)
    again = message(None, queue="q", subscriber="s", id="7", publisher="/shop")
    assert (again.value, again.key, again.lane) == (None, None, None)
    assert again.idempotency_key == made.idempotency_key != message(id="7").idempotency_key


def handled(connection: sqlite3.Connection, handle: Callable[[Database], object]) -> None:
    with database(connection) as db:
        handle(db)


def test_an_error_takes_all_back(connection: sqlite3.Connection) -> None:
    with pytest.raises(KeyError):
        handled(connection, lambda db: [approve(message(value), db) for value in ({"id": 1}, {})])

    assert (connection.in_transaction, approved(connection)) == (False, [])


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_what_a_worker_refuses_is_refused_here(connection: sqlite3.Connection, ends: str) -> None:
    def by_habit(db: Database) -> None:
        approve(message({"id": 1}), db)
        getattr(db, ends)()

    def in_one_of_its_own(db: Database) -> None:
        db.execute(ends)
        with suppress(TransactionTaken):
            db.execute("begin")

    for handle in (by_habit, lambda db: db.execute(ends), in_one_of_its_own):
        with pytest.raises(TransactionTaken):
            handled(connection, handle)
    assert (connection.in_transaction, approved(connection)) == (False, [])


def test_nothing_is_written_behind_the_handlers_end(connection: sqlite3.Connection) -> None:
    kept: list[Database] = []
    handled(connection, kept.append)

    with pytest.raises(CallOver):
        kept[0].execute("insert into approval (id) values (1)")


def test_a_cursor_that_is_kept_ends_with_its_handler(connection: sqlite3.Connection) -> None:
    """What it wrote would take effect by itself, or with another message."""
    kept: list[sqlite3.Cursor] = []
    handled(connection, lambda db: kept.append(db.execute("insert into approval (id) values (1) returning id")))
    handled(connection, lambda db: kept.append(db.executemany("insert into approval (id) values (?)", [(2,)])))

    for cursor in kept:
        with pytest.raises(sqlite3.ProgrammingError, match="closed cursor"):
            cursor.execute("insert into approval (id) values (3)")
    assert approved(connection) == [1, 2]


def test_the_test_has_its_rows_as_it_asked_and_the_handler_as_in_a_worker(connection: sqlite3.Connection) -> None:
    connection.row_factory = sqlite3.Row
    rows: list[object] = []
    handled(connection, lambda db: rows.extend(db.execute("insert into approval (id) values (1) returning id")))

    assert rows == [(1,)]
    assert connection.execute("select id from approval").fetchone()["id"] == 1


def test_one_that_writes_nothing_begins_nothing(connection: sqlite3.Connection) -> None:
    connection.execute("begin")  # a transaction of the test's own: another one could not begin

    with database(connection):
        pass

    assert connection.in_transaction


def test_a_connection_that_begins_by_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="isolation_level=None"):
        handled(sqlite3.connect(":memory:"), lambda db: db.execute("select 1"))


def test_so_is_an_async_handler_tested(connection: sqlite3.Connection) -> None:
    @subscriber("credit", resource="shop")
    async def approve_soon(order: Message, db: AwaitedDatabase) -> None:
        await db.execute("insert into approval (id) values (?)", (order.json()["id"],))

    async def forgets(_: Message, db: AwaitedDatabase) -> None:
        await db.execute("insert into approval (id) values (3)")
        db.execute("insert into approval (id) values (4)").close()

    async def tests() -> None:
        async with awaited_database(connection) as db:
            await approve_soon(message({"id": 2}), db)
        with pytest.raises(StatementNotAwaited):
            async with awaited_database(connection) as db:
                await forgets(message(), db)

    asyncio.run(tests())

    assert (connection.in_transaction, approved(connection)) == (False, [2])

"""What tests of an application's handlers need: a message as a queue gives it, and a database that is written to as in a worker.

    def test_an_order_is_approved(connection):
        order = message({"id": 42}, queue="credit")
        with database(connection) as db:
            approve(order, db)
        assert connection.execute("select id from approval").fetchall() == [(42,)]
        assert published(order) == [("mail", {"id": 42})]
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import orjson
import psycopg
from psycopg.pq import TransactionStatus

from relay.message.envelope import GivenHeaders, given_headers
from relay.message.queue_headers import PRIORITY_DEFAULT
from relay.queue.message import Taken, Ticket
from relay.work.coroutines import Apart, AwaitedDatabase
from relay.work.desk import Desk
from relay.work.desk_postgresql import PostgresqlDesk
from relay.work.desk_sqlite import SqliteDesk
from relay.work.desks import Database, Desks
from relay.work.message import Message, payload_of
from relay.world import schedule

Connection = sqlite3.Connection | psycopg.Connection[Any]


def message(
    value: bytes | str | Mapping[str, Any] | list[Any] | None = None,
    *,
    queue: str = "test",
    subscriber: str = "test",
    id: str = "1",  # noqa: A002 - as the message has it
    publisher: str = "test",
    key: bytes | str | None = None,
    headers: GivenHeaders | None = None,
    subject: str | None = None,
    failures: int = 0,
) -> Message:
    """Return a message to call a handler with; a mapping or list goes as JSON.

    ``failures`` are the tries that have failed before. `Message.idempotency_key` is that of ``queue`` and ``subscriber``.
    """
    lane = None if key is None else payload_of(key)
    return Message(
        Taken(
            Ticket(1, 1 + failures), publisher, id, lane, None if value is None else payload_of(value), tuple(given_headers(headers)),
            subject, lane, PRIORITY_DEFAULT, failures, 0, (), subscriber,
        ),
        queue,
    )  # fmt: skip


def published(handled: Message) -> list[tuple[str, Any]]:
    """Return what a handler has published because of a message: (queue, value) in order, read as JSON where it is that."""
    return [(queue, _read(child.value)) for queue, child in handled.children]


@contextmanager
def database(connection: Connection) -> Iterator[Database]:
    """Lend a handler what it writes with: all that it wrote is committed at the end, or nothing if an error leaves the block.

    The connection stays open, to look at what stands. It must be in autocommit: ``psycopg.connect(..., autocommit=True)``,
    ``sqlite3.connect(..., isolation_level=None)``. Raises ValueError, and what a worker would make a failure of: TransactionTaken,
    the driver's errors of a COMMIT.
    """
    lent = Database(Desks(lambda: _desk(connection), 1))
    with _rows_kept(connection):
        try:
            try:
                yield lent
            finally:
                lent.end()
            lent.finish()
        finally:
            lent.give_up()


@asynccontextmanager
async def awaited_database(connection: Connection) -> AsyncIterator[AwaitedDatabase]:
    """Lend the same to an ``async def``. It is used in another thread: ``sqlite3.connect(..., check_same_thread=False)``.

    Raises StatementNotAwaited as well.
    """
    apart = Apart(1)
    try:
        with database(connection) as lent:
            awaited = AwaitedDatabase(lent, apart)
            try:
                yield awaited
                awaited.check_awaited()
            finally:
                await awaited.end()
    finally:
        apart.close()


@contextmanager
def _rows_kept(connection: Connection) -> Iterator[None]:
    """Let the test have its rows as it has asked for; a handler has them as they are in a worker."""
    if not isinstance(connection, sqlite3.Connection):
        yield
        return
    kept = connection.row_factory, connection.text_factory
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = kept


def _desk(connection: Connection) -> Desk:
    if isinstance(connection, sqlite3.Connection):
        if connection.isolation_level is not None:
            raise ValueError("the connection begins transactions by itself; open it with isolation_level=None")
        return SqliteDesk("test", connection, lambda _: {}, schedule.lock())
    if not connection.autocommit or connection.info.transaction_status is not TransactionStatus.IDLE:
        raise ValueError("the connection is not in autocommit, or in a transaction; open it with autocommit=True")
    return PostgresqlDesk("test", connection, lambda _: {})


def _read(value: bytes | None) -> Any:
    try:
        return value if value is None else orjson.loads(value)
    except orjson.JSONDecodeError:
        return value

"""A handler that leaves unread what a statement of its own returns, and somebody who keeps it."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest

from relay.queue.states import SubscriberState
from relay.work.coroutines import AwaitedDatabase, AwaitedRunner
from relay.work.desks import Database
from relay.work.dispatch import Ended, Outcome, Work
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import subscriber
from relay.world import schedule
from tests.integration.handler_site import Table, table

__all__ = ["table"]

RETURNING = "insert into effect (number) values (1) returning number"


def test_what_a_statement_returns_need_not_be_read_in_an_async_handler(table: Table) -> None:
    """Its last cursor lives until its message is decided; in SQLite that message would wait for ever."""

    @subscriber("q", resource="shop")
    async def handle(_: Message, db: AwaitedDatabase) -> None:
        await db.execute(RETURNING)

    place = Place("q", "s", "queue:q", {"q": table.store}, {"q": schedule.lock()})
    run = AwaitedRunner(handle, Runner(handle, place, table.desks), 1)

    async def ends() -> list[Ended]:
        return list(await run(Work((table.taken,))))

    (ended,) = asyncio.run(ends())
    run.close()
    assert (ended.outcome, table.effects(), table.state()) == (Outcome.WRITTEN, 1, SubscriberState.DONE)


def test_nor_where_the_application_keeps_the_cursor(table: Table) -> None:
    kept: list[Any] = []

    def handle(_: Message, db: Database) -> None:
        kept.append(db.execute("select number from known"))
        kept.append(db.execute(RETURNING))

    assert table.end(handle).outcome is Outcome.WRITTEN
    assert (table.effects(), table.state()) == (1, SubscriberState.DONE)
    if table.is_sqlite:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            kept[0].fetchall()

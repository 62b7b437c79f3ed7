"""An async handler that forgets to await a statement: its message is not DONE without what it was to write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from relay.queue.states import SubscriberState
from relay.work.coroutines import AwaitedDatabase, AwaitedRunner
from relay.work.dispatch import Ended, Outcome, Work
from relay.work.message import Message
from relay.work.running import Place, Runner
from relay.work.subscriber import subscriber
from relay.world import schedule
from tests.integration.handler_site import Table

WRITE = "insert into effect (number) values (?)"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    made = Table(f"sqlite:///{tmp_path}/shop.db")
    yield made
    made.close()


async def forgets_one(_: Message, db: AwaitedDatabase) -> None:
    await db.execute(WRITE, (1,))
    db.execute(WRITE, (2,)).close()


async def forgets_all(_: Message, db: AwaitedDatabase) -> None:
    db.executemany(WRITE, [(1,), (2,)]).close()


async def leaves_a_task(_: Message, db: AwaitedDatabase) -> None:
    await db.execute(WRITE, (1,))
    asyncio.create_task(db.execute(WRITE, (2,))).add_done_callback(asyncio.Task.exception)


async def leaves_one_that_waits_for_its_turn(_: Message, db: AwaitedDatabase) -> None:
    for number in (1, 2):
        asyncio.create_task(db.execute(WRITE, (number,))).add_done_callback(asyncio.Task.exception)
    await asyncio.sleep(0)


async def gives_one_up(_: Message, db: AwaitedDatabase) -> None:
    first = asyncio.create_task(db.execute(WRITE, (1,)))
    second = asyncio.create_task(db.execute(WRITE, (2,)))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({first, second})


def end_of(table: Table, handle: Callable[[Message, AwaitedDatabase], Awaitable[None]]) -> Ended:
    handler = subscriber("q", resource="shop")(handle)
    place = Place("q", "s", "queue:q", {"q": table.store}, {"q": schedule.lock()})
    run = AwaitedRunner(handler, Runner(handler, place, table.desks), 1)

    async def ends() -> list[Ended]:
        return list(await run(Work((table.taken,))))

    (ended,) = asyncio.run(ends())
    run.close()
    return ended


@pytest.mark.parametrize("handle", [forgets_one, forgets_all, leaves_a_task, leaves_one_that_waits_for_its_turn])
def test_a_statement_that_nobody_awaits_is_a_failure_of_its_message(
    table: Table, handle: Callable[[Message, AwaitedDatabase], Awaitable[None]]
) -> None:
    ended = end_of(table, handle)

    assert ended.outcome is Outcome.FAILED
    assert "not awaited" in ended.cause
    assert (table.effects(), table.state()) == (0, SubscriberState.FETCHED)


def test_a_statement_that_its_handler_gave_up_before_it_began_is_no_failure(table: Table) -> None:
    ended = end_of(table, gives_one_up)

    assert (ended.outcome, table.effects()) == (Outcome.WRITTEN, 1)

"""What a handler's task group raises is judged by what is in it: nobody wraps that of their own will."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.message.errors import Unreachable
from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Holder
from relay.queue.settings import QueueSettings
from relay.work.coroutines import AwaitedRunner
from relay.work.desk import DatabaseAway
from relay.work.dispatch import Ended, Outcome, Work
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import Unusable, subscriber
from relay.world import schedule
from tests.contracts.queue_book import QueueBook

HOLDER = b"a worker--------"
AWAY, LOST = DatabaseAway("busy"), Unreachable("no answer")


async def raising(error: BaseException) -> None:
    raise error


def end_of(*errors: BaseException) -> Ended:
    """Run a handler whose tasks raise these, two groups deep, and return how its message ended."""

    @subscriber("q")
    async def handle(_: Message) -> None:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            outer.create_task(asyncio.sleep(0))
            for error in errors:
                inner.create_task(raising(error))

    book = QueueBook(QueueSettings("q", Audience((Group("s", ("s",)),))))
    book.enter(Holder(HOLDER, "s", 0, None))
    book.put([NewMessage("p", "1", b"")], 1)
    place = Place("q", "s", "queue:q", {"q": book}, {"q": schedule.lock()})
    run = AwaitedRunner(handle, Runner(handle, place, None), 1)

    async def ends() -> Any:
        return await run(Work(tuple(book.take("s", HOLDER, 1, 1))))

    (ended,) = asyncio.run(ends())
    run.close()
    return ended


@pytest.mark.parametrize(
    ("errors", "outcome", "cause"),
    [
        ((AWAY,), Outcome.AWAY, ""),
        ((AWAY, LOST), Outcome.AWAY, ""),
        ((AWAY, ValueError("canary")), Outcome.FAILED, "ValueError in raising"),
        ((ValueError("canary"), Unusable("of no use"), AWAY), Outcome.UNUSABLE, "of no use"),
    ],
)
def test_a_group_is_judged_by_what_is_in_it(errors: tuple[BaseException, ...], outcome: Outcome, cause: str) -> None:
    """Taken for the handler's own failure, an outage of its database uses up its messages' tries."""
    ended = end_of(*errors)

    assert (ended.outcome, ended.cause.split(", line")[0]) == (outcome, cause)

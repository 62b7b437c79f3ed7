"""A handler that returns what is still to be done: its message is not DONE for that."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Holder
from relay.queue.settings import QueueSettings
from relay.work.coroutines import AwaitedRunner
from relay.work.dispatch import Ended, Outcome, Work
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import subscriber
from relay.world import schedule
from tests.contracts.queue_book import QueueBook

HOLDER = b"a worker--------"
CLOSED = list[Any]()


async def charges() -> None:
    raise AssertionError("nobody awaits this")


def a_coroutine() -> Any:
    CLOSED.append(charges())
    return CLOSED[-1]


def a_generator() -> Iterator[int]:
    yield 1


async def an_async_generator() -> AsyncIterator[int]:
    yield 1


UNFINISHED = pytest.mark.parametrize("make", [a_coroutine, a_generator, an_async_generator, Future])
FINISHED = pytest.mark.parametrize("make", [lambda: None, lambda: 0, lambda: [1], str])


def end_of(function: Callable[[Message], Any]) -> Ended:
    book = QueueBook(QueueSettings("q", Audience((Group("s", ("s",)),))))
    book.enter(Holder(HOLDER, "s", 0, None))
    book.put([NewMessage("p", "1", b"")], 1)
    handler = subscriber("q")(function)
    place = Place("q", "s", "queue:q", {"q": book}, {"q": schedule.lock()})
    runner, work = Runner(handler, place, None), Work(tuple(book.take("s", HOLDER, 1, 1)))
    if not handler.is_async:
        (ended,) = runner(work)
        return ended
    run = AwaitedRunner(handler, runner, 1)

    async def awaited() -> Ended:
        return (await run(work))[0]

    try:
        return asyncio.run(awaited())
    finally:
        run.close()


def plainly(make: Callable[[], Any]) -> Callable[[Message], Any]:
    return lambda _: make()


def awaited(make: Callable[[], Any]) -> Callable[[Message], Any]:
    async def handle(_: Message) -> Any:
        return make()

    return handle


@UNFINISHED
@pytest.mark.parametrize("way", [plainly, awaited])
def test_what_nobody_waits_for_is_a_failure(way: Callable[[Any], Any], make: Callable[[], Any]) -> None:
    """As of `return self.charge(message)` where `await` was forgotten: the message would be DONE, and nobody charged."""
    ended = end_of(way(make))
    while CLOSED:
        CLOSED.pop().close()

    assert ended.outcome is Outcome.FAILED
    assert "which nobody waits for" in ended.cause


@FINISHED
@pytest.mark.parametrize("way", [plainly, awaited])
def test_any_other_value_is_none(way: Callable[[Any], Any], make: Callable[[], Any]) -> None:
    assert end_of(way(make)).outcome in (Outcome.DONE, Outcome.WRITTEN)


def breaks() -> None:
    raise ValueError("in the fork")


@pytest.mark.parametrize(("ends", "code"), [(lambda: None, 0), (sys.exit, 0), (lambda: sys.exit(3), 3), (breaks, 1)])
@pytest.mark.parametrize("way", [plainly, awaited])
def test_a_fork_that_comes_to_the_handlers_end_ends_there(way: Callable[[Any], Any], ends: Callable[[], object], code: int) -> None:
    """It would roll back, or commit, on its parent's connection, and handle once more whatever waits in the worker's hands."""
    here, forks = os.getpid(), list[int]()

    def make() -> None:
        forks.append(os.fork())
        if forks == [0]:
            ends()

    try:
        ended = end_of(way(make))
    finally:
        if os.getpid() != here:
            os._exit(99)

    assert ended.outcome in (Outcome.DONE, Outcome.WRITTEN)
    assert os.waitstatus_to_exitcode(os.waitpid(forks[0], 0)[1]) == code

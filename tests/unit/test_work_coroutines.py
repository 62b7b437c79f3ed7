"""One event loop over one dispatch: whatever a handler does to the loop, the loop goes on."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from relay.queue.message import Audience, Group, NewMessage, Taken, Ticket
from relay.queue.port import Holder
from relay.queue.settings import QueueSettings
from relay.work.coroutines import Apart, AwaitedDatabase, AwaitedRunner, Coroutines
from relay.work.desk import CallOver, TransactionTaken
from relay.work.dispatch import Dispatch, Ended, Outcome, Work
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import subscriber
from relay.world import clock, schedule
from tests.contracts.queue_book import QueueBook

WAIT_S = 60.0
HOLDER = b"a worker--------"
Handle = Callable[[int], Awaitable[None]]


class Site:
    """A dispatch that an event loop works off; ``ends`` are the outcomes by handle."""

    def __init__(self, handle: Handle) -> None:
        self.ends: dict[int, Outcome] = {}
        self._handle = handle
        self._lock = schedule.lock()
        self._dispatch = Dispatch(4, 5)
        self.coroutines = Coroutines(self._dispatch, self._run, self._lock, schedule.event())

    def add(self, *handles: int) -> None:
        """Let these messages run, each by itself."""
        with self._lock:
            self._dispatch.add([taken(handle) for handle in handles])
            self.coroutines.feed()

    def wait(self, *handles: int) -> None:
        """Return when these have ended."""
        limit = clock.monotonic() + WAIT_S
        while not set(handles) <= self.ends.keys():
            assert clock.monotonic() < limit, f"only {self.ends} ended"
            clock.sleep(0.01)

    async def _run(self, work: Work) -> Sequence[Ended]:
        (one,) = work.messages
        outcome = Outcome.DONE
        try:
            await self._handle(one.ticket.handle)
        except GeneratorExit:
            raise
        except BaseException:  # noqa: BLE001 - as the runner does
            outcome = Outcome.FAILED
        self.ends[one.ticket.handle] = outcome
        return [Ended(one, outcome)]


def taken(handle: int) -> Taken:
    return Taken(Ticket(handle, 1), "shop", str(handle), None, b"", (), None, None, 0, 0, 0, ())


@pytest.fixture
def site(handle: Handle) -> Iterator[Site]:
    made = Site(handle)
    yield made
    assert made.coroutines.close(WAIT_S)


async def part_exits(handle: int) -> None:
    async def part() -> None:
        raise SystemExit(3)

    if handle == 1:
        await asyncio.gather(part())


async def left_behind_exits(handle: int) -> None:
    async def part() -> None:
        raise KeyboardInterrupt

    if handle == 1:
        # Looked at, or the collector prints it in the middle of another test.
        asyncio.get_running_loop().create_task(part()).add_done_callback(asyncio.Task.exception)


async def stops_the_loop(handle: int) -> None:
    if handle == 1:
        asyncio.get_running_loop().stop()


@pytest.mark.parametrize(
    ("handle", "outcome"),
    [(part_exits, Outcome.FAILED), (left_behind_exits, Outcome.DONE), (stops_the_loop, Outcome.DONE)],
)
def test_what_a_task_does_to_the_loop_holds_up_no_other_message(site: Site, outcome: Outcome) -> None:
    site.add(1)
    site.wait(1)
    site.add(2)
    site.wait(2)

    assert site.ends == {1: outcome, 2: Outcome.DONE}


async def leaves_a_timer(message: Message) -> None:
    if message.handle == 1:
        # What a client's own timeout does that is never told that its caller has ended.
        asyncio.get_running_loop().call_later(0.05, own_task().cancel)
    else:
        await asyncio.sleep(0.2)


async def is_cancelled_when_it_has_ended(message: Message) -> None:
    message.publish("q", b"child")
    asyncio.get_running_loop().call_soon(own_task().cancel)


def own_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


def ends_of(function: Callable[[Message], Awaitable[None]]) -> list[tuple[int, Outcome]]:
    """Run a handler on two messages, one after the other, and return how each ended."""
    book = QueueBook(QueueSettings("q", Audience((Group("s", ("s",)),))))
    book.enter(Holder(HOLDER, "s", 0, None))
    book.put([NewMessage("p", str(number), b"") for number in (1, 2)], 1)
    handler = subscriber("q")(function)
    place = Place("q", "s", "queue:q", {"q": book}, {"q": schedule.lock()})
    run, lock, dispatch, ends = AwaitedRunner(handler, Runner(handler, place, None), 1), schedule.lock(), Dispatch(1, 5), []

    async def noted(work: Work) -> Sequence[Ended]:
        ended = await run(work)
        ends.extend((end.taken.ticket.handle, end.outcome) for end in ended)
        return ended

    coroutines = Coroutines(dispatch, noted, lock, schedule.event())
    with lock:
        dispatch.add(book.take("s", HOLDER, 2, 1))
        coroutines.feed()
    limit = clock.monotonic() + WAIT_S
    while len(ends) < 2 and coroutines.broken is None and clock.monotonic() < limit:
        clock.sleep(0.01)
    assert coroutines.close(WAIT_S)
    run.close()

    assert coroutines.broken is None
    return ends


@pytest.mark.parametrize(
    ("function", "outcome"),
    [(leaves_a_timer, Outcome.DONE), (is_cancelled_when_it_has_ended, Outcome.WRITTEN)],
)
def test_a_cancellation_that_comes_when_its_handler_has_returned_meets_nobody(
    function: Callable[[Message], Awaitable[None]], outcome: Outcome
) -> None:
    assert ends_of(function) == [(1, outcome), (2, outcome)]


async def raises_what_ends_a_generator(_: Message) -> None:
    raise GeneratorExit


def test_a_generators_exit_that_a_handler_raises_is_a_failure_of_its_message() -> None:
    """Taken for the end of the loop it would end the process, again and again, and no failure would be counted."""
    assert ends_of(raises_what_ends_a_generator) == [(1, Outcome.FAILED), (2, Outcome.FAILED)]


class Blocking:
    """A database whose statements run until each is let go; ``order`` is what began and ended."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.goes_on = threading.Semaphore(0)

    def execute(self, query: str, _: Any = None) -> None:
        self.order.append(f"{query} began")
        assert self.goes_on.acquire(timeout=WAIT_S)
        self.order.append(f"{query} ended")
        if query == "wrong":
            raise ValueError("a payload")


async def began(blocking: Blocking, *statements: str) -> None:
    """Return when these, and no others, have begun; what would begin now has had the time to."""
    for _ in range(1_000):
        if f"{statements[-1]} began" in blocking.order:
            break
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    assert [one for one in blocking.order if one.endswith("began")] == [f"{one} began" for one in statements]


async def cancelled(awaited: AwaitedDatabase, query: str) -> None:
    """Begin a statement and cancel whoever waits for it, as a handler's own time limit does."""
    statement = asyncio.create_task(awaited.execute(query))
    for _ in range(1_000):
        if awaited._running is not None and not awaited._running.done():
            break
        await asyncio.sleep(0.005)
    statement.cancel()
    with suppress(asyncio.CancelledError):
        await statement


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_what_a_handler_awaits_statements_of_does_not_end_the_transaction(ends: str) -> None:
    apart = Apart(1)
    with pytest.raises(TransactionTaken, match="leave COMMIT and ROLLBACK to the relay"):
        getattr(AwaitedDatabase(Blocking(), apart), ends)()  # type: ignore[arg-type]
    apart.close()


def test_a_handlers_statements_run_one_after_the_other_and_one_that_nobody_waits_for_is_waited_for_too() -> None:
    async def handle() -> None:
        blocking, said, apart = Blocking(), list[object](), Apart(4)
        asyncio.get_running_loop().set_exception_handler(lambda *told: said.append(told))
        awaited = AwaitedDatabase(blocking, apart)  # type: ignore[arg-type]
        asked = [asyncio.create_task(awaited.execute(query)) for query in ("one", "two", "three")]
        await began(blocking, "one")
        blocking.goes_on.release()
        await began(blocking, "one", "two")
        blocking.goes_on.release(2)
        await asyncio.gather(*asked)

        await cancelled(awaited, "wrong")
        following = asyncio.create_task(awaited.execute("four"))
        await began(blocking, "one", "two", "three", "wrong")
        blocking.goes_on.release(2)
        await following
        assert blocking.order[-4:] == ["wrong began", "wrong ended", "four began", "four ended"]

        await cancelled(awaited, "five")
        waiting, end = asyncio.create_task(awaited.execute("six")), asyncio.create_task(awaited.end())
        await began(blocking, "one", "two", "three", "wrong", "four", "five")
        assert not end.done(), "nothing is decided while a statement runs"
        blocking.goes_on.release()
        await end
        for late in (waiting, awaited.execute("seven")):
            with pytest.raises(CallOver):
                await late
        await began(blocking, "one", "two", "three", "wrong", "four", "five")
        apart.close()
        gc.collect()
        assert said == [], "the loop would print an error that nobody awaited, payload and all"

    asyncio.run(handle())

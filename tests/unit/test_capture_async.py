"""`async with capture.async_transaction()`: a block as that of a thread, while the loop goes on."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import NoReturn

import pytest

from relay.capture import async_block
from relay.capture.async_block import AsyncCaptureBlock, AsyncSavepoint, BlockThreads
from relay.capture.block import CaptureBlock
from relay.capture.capture import Capture
from relay.message.errors import CaptureError, CaptureInDoubt, ConfigError, Unreachable
from relay.world import schedule
from tests.unit.async_capture_site import (
    INSERT,
    WAIT_S,
    Log,
    Pause,
    at_rest,
    capture,
    log,
    make,
    orders,
    path,
    place,
    until,
)

__all__ = ["capture", "log", "make", "path"]


def test_a_block_commits_statements_and_messages(capture: Capture, path: Path, log: Log) -> None:
    tx = asyncio.run(place(capture, 1))

    assert orders(path) == [1]
    assert log.keys == [b"1"]
    assert tx.is_committed
    assert len(tx.id) == 16


def test_an_exception_rolls_it_back_and_leaves_it(capture: Capture, path: Path, log: Log) -> None:
    async def run(tx: AsyncCaptureBlock) -> None:
        async with tx:
            await tx.execute(INSERT, (1,))
            await tx.publish("orders", 1)
            raise ValueError("no stock")

    tx = capture.async_transaction()
    with pytest.raises(ValueError, match="no stock"):
        asyncio.run(run(tx))

    assert not tx.is_committed
    assert orders(path) == []
    assert log.keys == []


def test_what_a_statement_raises_is_raised_where_it_is_awaited(capture: Capture, path: Path) -> None:
    async def run() -> None:
        async with capture.async_transaction() as tx:
            await tx.execute(INSERT, (1,))
            with suppress(sqlite3.IntegrityError):
                await tx.execute(INSERT, (1,))

    with pytest.raises(CaptureError, match="a statement of the block failed"):
        asyncio.run(run())

    assert orders(path) == []


async def coroutine(tx: CaptureBlock) -> None:
    tx.execute(INSERT, (2,))


def generator(tx: CaptureBlock) -> Iterator[object]:
    yield tx.execute(INSERT, (2,))


@pytest.mark.filterwarnings("ignore:coroutine 'coroutine' was never awaited:RuntimeWarning")
@pytest.mark.parametrize("function", [coroutine, generator, lambda _: Future()])
def test_a_function_that_returns_what_is_still_to_be_done_ends_the_block(
    capture: Capture, path: Path, function: Callable[[CaptureBlock], object]
) -> None:
    async def run() -> None:
        async with capture.async_transaction() as tx:
            await tx.execute(INSERT, (1,))
            with suppress(CaptureError):
                await tx.run(function)

    with pytest.raises(CaptureError, match="and the block went on; the capture is rolled back"):
        asyncio.run(run())

    assert orders(path) == []


def test_rows_are_read_from_the_drivers_cursor(capture: Capture) -> None:
    async def run() -> object:
        async with capture.async_transaction() as tx:
            await tx.execute(INSERT, (7,))
            return (await tx.execute("select id from orders")).fetchall()

    assert asyncio.run(run()) == [(7,)]


def test_rows_are_read_in_the_thread(capture: Capture) -> None:
    """On the loop it would wait for the scan of a table, or for the statement of another task."""
    pause = Pause()

    def slow(number: int) -> int:
        if number == 3:
            pause()
        return number

    async def run() -> list[object]:
        async with capture.async_transaction() as tx:
            await asyncio.gather(*(tx.execute(INSERT, (number,)) for number in range(5)))
            await tx.run(lambda block: block._session._connection.create_function("slow", 1, slow))
            reading = asyncio.create_task(tx.execute("select slow(id) from orders order by id"))
            await until(pause.reached)
            pause.may_go_on.set()
            cursor = await reading
            return [cursor.fetchone(), cursor.fetchmany(2), next(cursor), cursor.fetchall(), cursor.fetchone()]

    assert asyncio.run(asyncio.wait_for(run(), WAIT_S)) == [(0,), [(1,), (2,)], (3,), [(4,)], None]


def test_a_cursor_of_a_block_gives_rows_as_it_is_asked_for_them(capture: Capture) -> None:
    async def run() -> object:
        async with capture.async_transaction() as tx:
            cursor = await tx.execute("insert into orders values (1), (2), (3) returning id")
            cursor.row_factory = sqlite3.Row
            first = next(iter(cursor))
            return first["id"], [row["id"] for row in cursor], cursor.rowcount, cursor.description[0][0]

    assert asyncio.run(run()) == (1, [2, 3], 3, "id")


def test_a_savepoint_is_undone_and_the_block_goes_on(capture: Capture, path: Path, log: Log) -> None:
    async def run() -> None:
        async with capture.async_transaction() as tx:
            with suppress(ValueError):
                async with tx.savepoint():
                    await tx.execute(INSERT, (1,))
                    await tx.publish("orders", 1, key="1")
                    raise ValueError
            async with tx.savepoint():
                await tx.execute(INSERT, (2,))
                await tx.publish("orders", 2, key="2")

    asyncio.run(run())

    assert orders(path) == [2]
    assert log.keys == [b"2"]


def test_several_steps_are_one_with_a_function(capture: Capture, path: Path) -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")

    def both(tx: CaptureBlock, first: int, *, second: int) -> str:
        tx.execute(INSERT, (first,))
        tx.execute(INSERT, (second,))
        return who.get()

    async def run() -> str:
        who.set("ann")
        async with capture.async_transaction() as tx:
            return await tx.run(both, 1, second=2)

    assert asyncio.run(run()) == "ann"
    assert orders(path) == [1, 2]


def test_a_function_that_raises_stop_iteration_is_heard_of(capture: Capture) -> None:
    async def run() -> None:
        async with asyncio.timeout(WAIT_S), capture.async_transaction() as tx:
            await tx.run(lambda _tx: next(iter(())))

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(run())


def test_the_loop_goes_on_while_a_block_waits(capture: Capture, log: Log) -> None:
    async def run() -> None:
        log.may_go_on.clear()
        placing = asyncio.create_task(place(capture, 1))
        await until(log.reached)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not placing.done()
        log.may_go_on.set()
        await placing

    asyncio.run(run())


def test_statements_that_are_asked_for_at_once_come_one_after_the_other(capture: Capture, path: Path) -> None:
    async def run() -> None:
        async with capture.async_transaction() as tx:
            await asyncio.gather(*(tx.execute(INSERT, (number,)) for number in range(50)))

    asyncio.run(run())

    assert orders(path) == list(range(50))


def test_a_block_in_a_block_is_refused_also_when_no_thread_is_left(make: Callable[..., Capture]) -> None:
    capture = make(async_blocks=1)

    async def inner(how: str) -> None:
        async with capture.async_transaction():
            if how == "threads":
                with capture.transaction():
                    pass
            elif how == "a task's":
                await asyncio.create_task(place(capture, 1))
            else:
                await place(capture, 1)

    for how in ("awaited", "a task's", "threads"):
        with pytest.raises(CaptureError, match="cannot be nested"):
            asyncio.run(asyncio.wait_for(inner(how), WAIT_S))
    asyncio.run(place(capture, 2))


def test_blocks_beyond_the_bound_wait_for_their_turn(make: Callable[..., Capture], path: Path) -> None:
    capture = make(async_blocks=2)
    open_now, most = 0, 0

    async def one(number: int) -> None:
        nonlocal open_now, most
        async with capture.async_transaction() as tx:
            open_now, most = open_now + 1, max(most, open_now + 1)
            await tx.execute("select 1")
            await asyncio.sleep(0.001)
            open_now -= 1
        await place(capture, number)

    async def run() -> None:
        await asyncio.gather(*(one(number) for number in range(12)))

    asyncio.run(asyncio.wait_for(run(), 20))

    assert most <= 2
    assert orders(path) == list(range(12))


class TestThreads:
    def test_so_many_blocks_are_served_at_once_and_the_next_behind_them(self) -> None:
        threads = BlockThreads(2)
        first, second, third = Pause(), Pause(), Pause()
        for block in (first, second, third):
            threads.lend(block)

        assert first.reached.wait(WAIT_S)
        assert second.reached.wait(WAIT_S)
        assert not third.reached.wait(0.05)
        second.may_go_on.set()
        assert third.reached.wait(WAIT_S)
        first.may_go_on.set()
        third.may_go_on.set()

    def test_an_idle_thread_serves_the_next_block(self) -> None:
        threads, served = BlockThreads(8), set[int]()
        for _ in range(5):
            over = threading.Event()
            threads.lend(lambda: served.add(threading.get_ident()))
            threads.lend(over.set)
            assert over.wait(WAIT_S)
            at_rest(lambda: threads._lent)

        assert threads._started <= 2

    def test_a_block_that_comes_as_the_thread_is_about_to_end_is_served(self, monkeypatch: pytest.MonkeyPatch) -> None:
        threads, over = BlockThreads(1), threading.Event()
        waits = iter(["a block", "nothing", "a block", "nothing"])
        get = threads._blocks.get

        def late(timeout: float) -> Callable[[], None]:
            if next(waits) == "a block":
                return get(timeout=WAIT_S)
            if not over.is_set():
                threads.lend(over.set)
            raise schedule.Empty

        monkeypatch.setattr(threads._blocks, "get", late)
        threads.lend(lambda: None)

        assert over.wait(WAIT_S)


@pytest.mark.parametrize("given", [0, -1])
def test_a_bound_that_lets_no_block_begin_is_refused(make: Callable[..., Capture], given: int) -> None:
    with pytest.raises(ConfigError, match=f"async_blocks = {given}"):
        make(async_blocks=given)


def test_event_loops_may_follow_each_other_and_be_several(capture: Capture, path: Path) -> None:
    loops = [threading.Thread(target=lambda n=n: asyncio.run(place(capture, n))) for n in range(4)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    asyncio.run(place(capture, 9))

    assert orders(path) == [0, 1, 2, 3, 9]


def test_a_block_is_entered_once_and_used_inside_only(capture: Capture) -> None:
    async def run() -> None:
        tx = capture.async_transaction()
        with pytest.raises(CaptureError, match="the block is not entered yet"):
            await tx.execute("select 1")
        async with tx:
            with pytest.raises(CaptureError, match="the block is open"):
                await tx.__aenter__()
            await tx.execute("select 1")
        for use in (tx.execute("select 1"), tx.publish("orders", 1), tx.__aenter__()):
            with pytest.raises(CaptureError, match="the block is over; begin another with"):
                await use

    asyncio.run(run())


def test_a_block_that_could_not_begin_gives_its_thread_back(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> NoReturn:
        raise Unreachable("the database is away")

    monkeypatch.setattr(capture._publisher, "begin", away)
    tx = capture.async_transaction()
    with pytest.raises(Unreachable):
        asyncio.run(tx.__aenter__())

    at_rest(lambda: capture._threads._lent)
    monkeypatch.undo()
    asyncio.run(place(capture, 1))


def test_what_could_not_be_entered_is_not_left(capture: Capture) -> None:
    calls: list[str] = []

    class Inner(AbstractContextManager[None]):
        def __enter__(self) -> None:
            calls.append("enter")
            raise ValueError

        def __exit__(self, *_: object) -> None:
            calls.append("leave")

    async def run() -> None:
        async with capture.async_transaction() as tx:
            with suppress(ValueError):
                await AsyncSavepoint(tx._steps, Inner()).__aenter__()

    asyncio.run(run())

    assert calls == ["enter"]


def test_the_loop_says_nothing_of_failures_that_were_raised(capture: Capture) -> None:
    said: list[object] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: said.append(context))
        with suppress(CaptureError):
            async with capture.async_transaction() as tx:
                with suppress(sqlite3.Error):
                    await tx.execute("nonsense")
        del tx
        gc.collect()

    asyncio.run(run())

    assert said == []


@pytest.mark.parametrize("statement", ["nonsense", "rollback", "select 1 -- not awaited"])
def test_a_block_that_failed_is_let_go_at_once(capture: Capture, statement: str) -> None:
    """Not when cycles are collected next: it holds what was sent, and what was read."""
    kept: list[weakref.ref[AsyncCaptureBlock]] = []

    async def run() -> None:
        async with capture.async_transaction() as tx:
            kept.append(weakref.ref(tx))
            if "not awaited" in statement:
                tx.execute(statement).close()
            else:
                await tx.execute(statement)

    async def fails() -> None:
        with suppress(sqlite3.Error, CaptureInDoubt, CaptureError):
            await run()

    gc.disable()
    try:
        asyncio.run(fails())
        at_rest(lambda: kept[0]() is not None)
    finally:
        gc.enable()


def test_a_closed_capture_refuses_it(capture: Capture) -> None:
    capture.close()

    with pytest.raises(CaptureError, match="closed"):
        asyncio.run(place(capture, 1))


def test_threads_end_when_they_were_not_needed_for_a_while(
    capture: Capture, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_block, "THREAD_KEPT_S", 0.05)

    async def several(first: int) -> None:
        await asyncio.gather(*(place(capture, first + number) for number in range(4)))

    for first in (0, 10, 20):
        asyncio.run(several(first))
        at_rest(lambda: capture._threads._started)

    assert len(orders(path)) == 12


def test_a_call_that_nobody_awaits_does_not_commit(capture: Capture, path: Path, log: Log) -> None:
    """Else the block would commit without the message that it was to announce."""

    async def run() -> None:
        async with capture.async_transaction() as tx:
            await tx.execute(INSERT, (1,))
            tx.publish("orders", 1).close()

    with pytest.raises(CaptureError, match="not awaited"):
        asyncio.run(run())

    assert (orders(path), log.keys) == ([], [])


def test_a_call_whose_task_has_not_begun_does_not_commit(capture: Capture, path: Path, log: Log) -> None:
    published: list[asyncio.Task[None]] = []

    async def run() -> None:
        async with capture.async_transaction() as tx:
            await tx.execute(INSERT, (1,))
            published.append(asyncio.create_task(tx.publish("orders", 1)))

    async def both() -> None:
        with pytest.raises(CaptureError, match="its task had not begun"):
            await run()
        with pytest.raises(CaptureError, match="the block is over"):
            await published[0]

    asyncio.run(both())

    assert (orders(path), log.keys) == ([], [])


def test_a_savepoint_that_is_undone_takes_calls_along_that_nobody_awaited(capture: Capture, path: Path) -> None:
    async def run() -> None:
        async with capture.async_transaction() as tx:
            await tx.execute(INSERT, (1,))
            with suppress(ZeroDivisionError):
                async with tx.savepoint():
                    tx.execute(INSERT, (2,)).close()
                    raise ZeroDivisionError

    asyncio.run(run())

    assert orders(path) == [1]


def test_calls_may_be_awaited_later_than_they_were_made(capture: Capture, path: Path) -> None:
    async def run() -> None:
        async with capture.async_transaction() as tx:
            calls = [tx.execute(INSERT, (number,)) for number in range(3)]
            async with tx.savepoint():
                await calls.pop()
            for call in calls:
                await call

    asyncio.run(run())

    assert orders(path) == [0, 1, 2]

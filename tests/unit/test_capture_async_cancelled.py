"""An asynchronous block whose coroutine is cancelled, or ends: what was not told is never committed, and no thread is left."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from relay.capture import async_block
from relay.capture.async_block import AsyncCaptureBlock, _Steps
from relay.capture.block import CaptureBlock
from relay.capture.capture import Capture
from relay.message.errors import CaptureError, CaptureInDoubt, Unreachable
from relay.resources.sqlite import SqliteSession
from relay.world import clock, schedule
from tests.unit.async_capture_site import (
    INSERT,
    WAIT_S,
    Log,
    Pause,
    at_rest,
    begun,
    capture,
    log,
    make,
    orders,
    path,
    place,
    until,
    writable,
)

__all__ = ["begun", "capture", "log", "make", "path"]


async def cancelled_at(event: threading.Event, task: asyncio.Task[Any]) -> None:
    """Cancel a task when an event is set, and let the loop look at it."""
    await until(event)
    task.cancel()
    await asyncio.sleep(0.02)


async def over_at(event: threading.Event, limit: asyncio.Timeout, may_go_on: threading.Event) -> None:
    """Let a time limit be over when an event is set, and what is under way then go on behind that."""
    await until(event)
    limit.reschedule(0.0)
    await asyncio.sleep(0.02)
    may_go_on.set()


class TestCancelled:
    def test_before_its_turn_it_never_begins(self, make: Callable[..., Capture], path: Path) -> None:
        capture = make(async_blocks=1)
        pause = Pause()

        async def holds() -> None:
            async with capture.async_transaction() as tx:
                await tx.run(pause)

        async def run() -> None:
            holding = asyncio.create_task(holds())
            await until(pause.reached)
            waiting = asyncio.create_task(place(capture, 1))
            await asyncio.sleep(0.02)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(waiting, 1.0)
            pause.may_go_on.set()
            await holding
            await place(capture, 2)

        asyncio.run(run())

        assert orders(path) == [2]

    def test_while_it_begins_its_transaction_is_over_when_it_is(self, capture: Capture, path: Path, begun: Pause) -> None:
        async def run() -> None:
            task = asyncio.create_task(place(capture, 1))
            await cancelled_at(begun.reached, task)
            assert not task.done()
            begun.may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            writable(path)

        asyncio.run(run())

        assert orders(path) == []

    def test_in_a_statement_it_is_rolled_back_behind_it(self, capture: Capture, path: Path) -> None:
        pause = Pause()

        async def slow() -> None:
            async with capture.async_transaction() as tx:
                await tx.execute(INSERT, (1,))
                await tx.run(pause)

        async def run() -> None:
            task = asyncio.create_task(slow())
            await cancelled_at(pause.reached, task)
            assert not task.done(), "the thread still works on the block"
            pause.may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            writable(path)

        asyncio.run(run())

        assert orders(path) == []

    @pytest.mark.parametrize("times", [1, 3])
    def test_while_it_commits_it_is_told_when_that_is_known(
        self, capture: Capture, path: Path, log: Log, times: int
    ) -> None:
        blocks: list[AsyncCaptureBlock] = []

        async def slow() -> None:
            async with capture.async_transaction() as tx:
                blocks.append(tx)
                await tx.execute(INSERT, (1,))
                await tx.publish("orders", 1)

        async def run() -> None:
            log.may_go_on.clear()
            task = asyncio.create_task(slow())
            for _ in range(times):
                await cancelled_at(log.reached, task)
            assert not task.done()
            log.may_go_on.set()
            with pytest.raises(asyncio.CancelledError) as raised:
                await task
            assert "it is committed" in raised.value.__notes__[0]

        asyncio.run(run())

        assert blocks[0].is_committed
        assert orders(path) == [1]

    def test_by_a_time_limit_while_it_commits_the_block_says_that_it_is(
        self, capture: Capture, log: Log
    ) -> None:
        async def run() -> AsyncCaptureBlock:
            log.may_go_on.clear()
            tx, over = capture.async_transaction(), list[asyncio.Task[None]]()

            async def slow() -> None:
                async with asyncio.timeout(None) as limit, tx:
                    over.append(asyncio.create_task(over_at(log.reached, limit, log.may_go_on)))
                    await tx.publish("orders", 1)

            with pytest.raises(TimeoutError):
                await slow()
            await over[0]
            return tx

        assert asyncio.run(run()).is_committed

    def test_while_it_commits_in_doubt_the_doubt_is_its_cause(
        self, capture: Capture, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lost(*_: object) -> None:
            raise CaptureInDoubt("the answer was lost")

        monkeypatch.setattr(CaptureBlock, "_decide", lost)

        async def run() -> None:
            log.may_go_on.clear()
            task = asyncio.create_task(place(capture, 1))
            await cancelled_at(log.reached, task)
            log.may_go_on.set()
            with pytest.raises(asyncio.CancelledError) as raised:
                await task
            assert isinstance(raised.value.__cause__, CaptureInDoubt)

        asyncio.run(run())

    def test_a_call_that_was_given_up_does_not_commit(self, capture: Capture, path: Path, log: Log) -> None:
        pause = Pause()

        async def run() -> None:
            async with capture.async_transaction() as tx:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None) as limit:
                        over = asyncio.create_task(over_at(pause.reached, limit, pause.may_go_on))
                        await tx.run(lambda block: (pause(), block.execute(INSERT, (1,))))
                await over
                await tx.publish("orders", 2)

        with pytest.raises(CaptureError, match="was cancelled while it ran, and the block went on"):
            asyncio.run(run())

        assert orders(path) == []
        assert log.keys == []

    def test_one_that_had_not_begun_is_left_out_and_the_block_commits(self, capture: Capture, path: Path) -> None:
        pause = Pause()

        async def run() -> None:
            async with capture.async_transaction() as tx:
                first = asyncio.create_task(tx.run(pause))
                await until(pause.reached)
                second = asyncio.create_task(tx.execute(INSERT, (1,)))
                await asyncio.sleep(0)
                second.cancel()
                with suppress(asyncio.CancelledError):
                    await second
                pause.may_go_on.set()
                await first
                await tx.execute(INSERT, (2,))

        asyncio.run(run())

        assert orders(path) == [2]

    def test_a_savepoint_undoes_what_was_given_up_in_it(self, capture: Capture, path: Path) -> None:
        async def run() -> None:
            async with capture.async_transaction() as tx:
                await tx.execute(INSERT, (1,))
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05), tx.savepoint():
                        await tx.run(lambda block: (clock.sleep(0.2), block.execute(INSERT, (2,))))
                await tx.execute(INSERT, (3,))

        asyncio.run(run())

        assert orders(path) == [1, 3]

    def test_a_savepoint_that_goes_on_after_it_is_undone_all_the_same(self, capture: Capture, path: Path) -> None:
        pause = Pause()

        async def inside(tx: AsyncCaptureBlock) -> None:
            async with tx.savepoint():
                with suppress(TimeoutError):
                    async with asyncio.timeout(None) as limit:
                        over.append(asyncio.create_task(over_at(pause.reached, limit, pause.may_go_on)))
                        await tx.run(lambda block: (pause(), block.execute(INSERT, (2,))))

        over: list[asyncio.Task[None]] = []

        async def run() -> None:
            async with capture.async_transaction() as tx:
                with pytest.raises(CaptureError, match="was cancelled while it ran"):
                    await inside(tx)
                await tx.execute(INSERT, (3,))

        asyncio.run(run())

        assert orders(path) == [3]

    def test_the_savepoint_of_another_task_does_not_undo_what_was_asked_for_before_it(
        self, capture: Capture, path: Path
    ) -> None:
        pause = Pause()

        async def another(tx: AsyncCaptureBlock) -> None:
            with suppress(ValueError):
                async with tx.savepoint():
                    raise ValueError

        async def run() -> None:
            async with capture.async_transaction() as tx:
                first = asyncio.create_task(tx.run(lambda block: (pause(), block.execute(INSERT, (1,)))))
                await until(pause.reached)
                second = asyncio.create_task(another(tx))
                await asyncio.sleep(0.02)
                first.cancel()
                await asyncio.sleep(0.02)
                pause.may_go_on.set()
                await asyncio.wait({first, second})

        with pytest.raises(CaptureError, match="was cancelled while it ran"):
            asyncio.run(run())

        assert orders(path) == []

    def test_one_that_still_ran_where_the_block_was_left_does_not_commit(self, capture: Capture, path: Path) -> None:
        pause = Pause()

        async def run() -> None:
            async with capture.async_transaction() as tx:
                left_behind = asyncio.create_task(tx.run(lambda block: (pause(), block.execute(INSERT, (1,)))))
                await until(pause.reached)
                asyncio.get_running_loop().call_later(0.05, left_behind.cancel)
                asyncio.get_running_loop().call_later(0.2, pause.may_go_on.set)

        with pytest.raises(CaptureError, match="was cancelled while it ran"):
            asyncio.run(run())

        assert orders(path) == []

    def test_behind_a_block_that_could_not_begin_it_is_not_lost(
        self, capture: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who runs the block again after `Unreachable` would not hear of it."""
        undoing = Pause()

        def away() -> NoReturn:
            raise Unreachable("the database is away")

        async def run() -> None:
            task = asyncio.create_task(place(capture, 1))
            reached = asyncio.create_task(asyncio.to_thread(undoing.reached.wait, 0.5))
            await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
            is_cancelled = task.cancel()
            await asyncio.sleep(0.02)
            undoing.may_go_on.set()
            with pytest.raises(asyncio.CancelledError if is_cancelled else Unreachable):
                await task

        monkeypatch.setattr(capture._publisher, "begin", away)
        monkeypatch.setattr(async_block, "_undone", undoing)

        asyncio.run(run())

    def test_while_a_savepoint_is_set_it_is_undone(
        self, capture: Capture, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def run() -> None:
            async with capture.async_transaction() as tx:
                session = tx._block._session
                pause, savepoint = Pause(), session.savepoint
                monkeypatch.setattr(session, "savepoint", lambda number: (savepoint(number), pause()))
                with suppress(TimeoutError):
                    async with asyncio.timeout(None) as limit:
                        over = asyncio.create_task(over_at(pause.reached, limit, pause.may_go_on))
                        async with tx.savepoint():
                            raise AssertionError("it was cancelled before")
                await over
                assert tx._block._savepoints == 0
                await tx.execute(INSERT, (1,))

        asyncio.run(run())

        assert orders(path) == [1]


class TestDropped:
    """Coroutines that end without being awaited to their end."""

    @pytest.mark.parametrize("where", ["between", "in a statement", "in a savepoint", "as it begins", "as it ends"])
    def test_a_coroutine_that_is_closed_rolls_back(
        self, capture: Capture, path: Path, log: Log, where: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pause, begin = Pause(), capture._publisher.begin

        async def forever() -> None:
            await asyncio.get_running_loop().create_future()

        async def block() -> None:
            async with capture.async_transaction() as tx:
                await tx.execute(INSERT, (1,))
                if where == "in a savepoint":
                    async with tx.savepoint():
                        pause.reached.set()
                        await forever()
                if where == "in a statement":
                    await tx.run(pause)
                pause.reached.set()
                await forever()

        if where == "as it begins":
            monkeypatch.setattr(capture._publisher, "begin", lambda: (pause(), begin())[1])
        loop = asyncio.new_event_loop()
        task = loop.create_task(block() if where != "as it ends" else place(capture, 1))
        if where == "as it ends":
            log.may_go_on.clear()
        loop.run_until_complete(until(pause.reached if where != "as it ends" else log.reached))
        loop.close()
        coroutine = task.get_coro()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        begun = clock.monotonic()
        coroutine.close()
        assert clock.monotonic() - begun < WAIT_S / 2, "who ends a coroutine waited for its thread"
        pause.may_go_on.set()
        log.may_go_on.set()

        at_rest(lambda: capture._threads._lent)
        writable(path)
        assert orders(path) == ([1] if where == "as it ends" else [])

    def test_one_that_was_entered_by_hand_gives_its_thread_back(self, capture: Capture, path: Path) -> None:
        async def run() -> None:
            tx = capture.async_transaction()
            await tx.__aenter__()
            await tx.execute(INSERT, (1,))
            del tx
            gc.collect()

        asyncio.run(run())

        at_rest(lambda: capture._threads._lent)
        writable(path)
        assert orders(path) == []

    def test_its_end_may_come_wherever_its_thread_is(self, capture: Capture, path: Path) -> None:
        """What a loop left behind is garbage, and any thread may be the one that collects it, in the middle of anything."""
        left = iter(range(40))
        steps: list[_Steps] = []

        def collected(_frame: object, event: str, _given: object) -> None:
            if steps and event in ("call", "return") and next(left, None) is not None:
                with suppress(CaptureError):
                    steps[0].do(lambda: None)  # as `__del__` does, and the coroutine that is closed

        async def run() -> None:
            async with capture.async_transaction() as tx:
                steps.append(tx._steps)
                await tx.execute(INSERT, (1,))

        def beside() -> None:
            sys.setprofile(None)
            asyncio.run(run())

        threading.setprofile(collected)  # of threads that are started from now on: the block's
        loop = schedule.start_thread("loop", beside)
        try:
            loop.join(WAIT_S)
        finally:
            threading.setprofile(None)  # type: ignore[arg-type]

        assert not loop.is_alive(), "a thread waits for itself"
        assert orders(path) == [1]

    @pytest.mark.parametrize("how", ["a task", "by hand"])
    def test_only_its_thread_ends_it(
        self, capture: Capture, path: Path, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever collects what a loop left behind must not touch its connection, on which the thread works."""
        ended: list[str] = []
        reached = threading.Event()
        roll_back = CaptureBlock._roll_back

        def noted(block: CaptureBlock, **asked: bool) -> bool:
            ended.append(threading.current_thread().name)
            return roll_back(block, **asked)

        async def left(tx: AsyncCaptureBlock) -> None:
            async with tx:
                await tx.execute(INSERT, (1,))
                reached.set()
                await asyncio.get_running_loop().create_future()

        async def by_hand(tx: AsyncCaptureBlock) -> None:
            await tx.__aenter__()
            await tx.execute(INSERT, (1,))
            reached.set()

        def closed(_: SqliteSession) -> None:
            if capture._threads._lent:  # behind that the thread has ended it, and whoever collects it may
                ended.append(threading.current_thread().name)

        gc.collect()  # what tests before have left
        monkeypatch.setattr(CaptureBlock, "_roll_back", noted)
        monkeypatch.setattr(SqliteSession, "__del__", closed)
        loop = asyncio.new_event_loop()
        tx = capture.async_transaction()
        tx.itself = tx  # type: ignore[attr-defined] # all that is in a cycle is finalized at once
        task = loop.create_task(left(tx) if how == "a task" else by_hand(tx))
        loop.run_until_complete(until(reached))
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        del tx, task, loop

        at_rest(lambda: (gc.collect(), capture._threads._lent)[1])
        assert set(ended) == {"capture-block"}
        assert orders(path) == []

    def test_the_next_block_of_its_thread_begins_though_an_interrupt_kept_it_from_its_end(
        self, make: Callable[..., Capture], path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        capture = make(async_blocks=1)
        tx = capture.async_transaction()

        def interrupted(*_: object) -> NoReturn:
            raise KeyboardInterrupt

        async def run() -> None:
            async with tx:
                await tx.execute(INSERT, (1,))
                monkeypatch.setattr(tx._stay, "end", interrupted)

        with pytest.raises(KeyboardInterrupt):
            asyncio.run(run())
        asyncio.run(place(capture, 2))

        assert not tx.is_committed
        assert orders(path) == [2]

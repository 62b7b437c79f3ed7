"""Async handlers: coroutines on one event loop; what blocks is done apart, in threads of their own.

A handler that only waits costs no thread. Its statements, and the commit that decides, are those of any other handler
(`relay.work.running`): they run in a pool with a thread for each database of each coroutine, so that whoever holds a
connection never waits for a thread behind those who wait for a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog

from relay.message.errors import RelayError
from relay.work.desk import OVER, CallOver
from relay.work.desks import Database, LeftToTheRelay
from relay.work.dispatch import Dispatch, Ended, Work
from relay.work.further import FurtherDatabase
from relay.work.hands import UnderWay
from relay.work.running import Call, Runner, check_returned, leave_fork
from relay.work.subscriber import Handler
from relay.world import schedule
from relay.world.crash import crash_point

LAST_S: Final = 5.0
"""So long may last what a handler has for the end of its loop."""
Await = Callable[[Work], Awaitable[Sequence[Ended]]]
"""Runs one `Work` to its end on the event loop; it reports failures as outcomes and never raises for what a handler did."""


class Apart:
    """Runs what blocks in one of so many threads."""

    def __init__(self, threads: int) -> None:
        self._pool = schedule.pool("handler-io", threads)

    def __call__(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Return the future of what the function returns."""
        return asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        """Let the threads end after what they do now."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class StatementNotAwaited(RelayError):
    """A handler returned before a statement of its own had begun: the message would be DONE without it."""

    def __init__(self) -> None:
        super().__init__("a statement was not awaited, or its task had not begun, when the handler returned: await db.execute()")


class AwaitedDatabase(LeftToTheRelay):
    """What an async handler writes with; one statement after the other, also where it asks for several at once."""

    def __init__(self, database: Database | FurtherDatabase, apart: Apart) -> None:
        self._database = database
        self._apart = apart
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[Any] | None = None
        self._over = False
        self._not_begun = 0
        """Statements that the handler has asked for, and that have neither begun nor been given up by who awaits them."""

    def execute(self, query: Any, params: Any = None) -> Coroutine[Any, Any, Any]:
        """Run one statement and return the driver's cursor; placeholders are the driver's."""
        return self._made(partial(self._database.execute, query, params))

    def executemany(self, query: Any, params: Sequence[Any]) -> Coroutine[Any, Any, Any]:
        """Run one statement for each of many parameters."""
        return self._made(partial(self._database.executemany, query, params))

    def check_awaited(self) -> None:
        """Raise StatementNotAwaited if a statement has not begun."""
        if self._not_begun:
            raise StatementNotAwaited

    async def end(self) -> None:
        """Return when no statement runs; none begins any more."""
        self._over = True
        await self._settled()

    def _made(self, statement: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
        self._not_begun += 1
        return self._run(statement)

    async def _run(self, statement: Callable[[], Any]) -> Any:
        has_begun = False
        try:
            async with self._turn:
                await self._settled()
                if self._over:
                    raise CallOver(OVER)
                self._running = self._apart(statement)
                self._not_begun -= 1
                has_begun = True
                self._running.add_done_callback(_looked_at)
                # A cancelled handler does not stop the thread: the statement is waited for before anything is decided.
                return await asyncio.shield(self._running)
        finally:
            if not has_begun:
                self._not_begun -= 1

    async def _settled(self) -> None:
        if self._running is not None:
            await asyncio.wait({self._running})


def _looked_at(statement: asyncio.Future[Any]) -> None:
    """Look at how a statement ended: else the loop prints an error that nobody awaited, and its text may hold a payload."""
    if not statement.cancelled():
        statement.exception()


class AwaitedRunner:
    """Runs works of one async handler on the event loop that calls it, ``concurrency`` at most at once."""

    def __init__(self, handler: Handler, runner: Runner, concurrency: int) -> None:
        self._handler = handler
        self._runner = runner
        self._apart = Apart(concurrency * (1 + len(handler.also)))
        self.handlers_close = handler.close

    async def __call__(self, work: Work) -> Sequence[Ended]:
        """Run a work to its end; raises InDoubt only if nobody answers what became of it."""
        call = self._runner.begin(work)
        databases = [AwaitedDatabase(one, self._apart) for one in call.databases]
        try:
            # In a task of its own, which ends with it: a timer that it left behind cancels neither the commit nor what runs next.
            raised = await asyncio.create_task(self._raised(call, databases))
        except GeneratorExit:
            raise  # the loop has ended
        except BaseException as error:  # noqa: BLE001 - whatever ends a handler is a failure of its message
            raised = error
        for database in databases:
            await database.end()
        return self._end(call, raised) if call.left_nothing else await self._apart(partial(self._end, call, raised))

    def _end(self, call: Call, raised: BaseException | None) -> Sequence[Ended]:
        """Return how a work ends whose handler has returned, or raised this."""
        return self._runner.decide(call) if raised is None else self._runner.failed(call, raised)

    async def _raised(self, call: Call, databases: Sequence[AwaitedDatabase]) -> BaseException | None:
        """Run the handler and return what it raises: of some exceptions a task believes that they are meant for itself."""
        try:
            check_returned(await self._handler(call.given(self._handler), *databases))
            for database in databases:
                database.check_awaited()
            crash_point("work.ran")
        except BaseException as error:  # noqa: BLE001 - GeneratorExit would close whoever waits for the task
            leave_fork(call.messages, error)
            return error
        leave_fork(call.messages, None)
        return None

    def close(self) -> None:
        """Let the threads end."""
        self._apart.close()


class Coroutines:
    """One event loop over one dispatch, in place of `Hands`. ``lock`` guards the dispatch; ``wake`` is set when a coroutine
    finds nothing to go on with. ``last`` is awaited before the loop ends: it closes what the handler has open there.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        run: Await,
        lock: schedule.Lock,
        wake: schedule.Event,
        last: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._run = run
        self._lock = lock
        self._wake = wake
        self._last = last
        self._under_way = UnderWay()
        self.longest = self._under_way.longest
        self._tasks: set[asyncio.Task[None]] = set()
        self.broken: BaseException | None = None
        self._ending = False
        self._loop = asyncio.new_event_loop()
        self._thread = schedule.start_thread("handlers", self._turn)

    def feed(self) -> None:
        """Start what may start; call it with the lock held."""
        if self._dispatch.ready:
            self._loop.call_soon_threadsafe(self._start)

    def close(self, timeout_s: float) -> bool:
        """End the loop, in which nothing runs any more; False if a coroutine does not let go of it in time."""
        if self._last is not None:
            self._await_last(self._last, min(timeout_s, LAST_S))
        self._ending = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._loop.close()
        return True

    def _await_last(self, last: Callable[[], Awaitable[object]], timeout_s: float) -> None:
        async def awaited() -> None:
            async with asyncio.timeout(timeout_s):
                await last()

        ending = asyncio.run_coroutine_threadsafe(awaited(), self._loop)
        try:
            ending.result(timeout_s + 1.0)  # a second for a loop that is busy
        except BaseException as error:  # noqa: BLE001 - everything is decided: what stays open ends with the process
            kind = type(error).__name__
            structlog.get_logger("relay.work").warning("what the handler had open was not closed", kind=kind)

    def _turn(self) -> None:
        """Run the loop until `close`: what a task of a handler raises to end it, or a handler's own stop, ends no other's work.

        asyncio lets SystemExit and KeyboardInterrupt of a task out of the loop after whoever awaits the task was told.
        """
        while not self._ending:
            with suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()

    def _start(self) -> None:
        while (work := self._next(())) is not None:
            task = self._loop.create_task(self._serve(work))
            self._tasks.add(task)
            task.add_done_callback(self._served)

    async def _serve(self, first: Work) -> None:
        work: Work | None = first
        while work is not None:
            number = work.messages[0].ticket.handle
            self._under_way.begin(number, work)
            ends = await self._run(work)
            self._under_way.end(number)
            work = self._next(ends)
        self._wake.set()

    def _next(self, ends: Sequence[Ended]) -> Work | None:
        with self._lock:
            if ends:
                self._dispatch.ended(ends)
            return self._dispatch.next()

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is not None:
            # The worker's thread raises it where it ends the process.
            self.broken = asyncio.CancelledError() if task.cancelled() else task.exception()
            self._wake.set()

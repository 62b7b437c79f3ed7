"""`async with capture.async_transaction()`: a block on an event loop, of which a thread of its own does every step.

Cancelling a coroutine does not stop what its thread does. What was not begun is left out; what was is waited for where the
savepoint or the block ends, and undone with it: nothing of a block goes on behind its `async with`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from contextvars import copy_context
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, Self, TypeVar

from relay.capture.block import CaptureBlock
from relay.capture.flow import Entered
from relay.capture.publisher import Publisher
from relay.message.errors import CaptureError
from relay.message.limits import raise_limit
from relay.message.unfinished import is_unfinished
from relay.world import schedule

THREAD_KEPT_S: Final = 60.0
GIVEN_UP: Final = (
    "a call of the block was cancelled while it ran, and the block went on; it is rolled back: let the cancellation leave "
    "the block, or a tx.savepoint() around the call"
)
NOT_AWAITED: Final = (
    "a call of the block was not awaited, or its task had not begun, when the block came to its end; it is rolled back: await "
    "each tx.execute(), tx.publish() and tx.run()"
)

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Leave = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], Any]


class BlockThreads:
    """Threads that are lent to one block each until it is over; while all are lent, a block waits for its turn.

    With a thread for each step those who wait for a lock could have all of them, and whoever holds it none to go on. They
    end with the process whatever they wait for, and after a minute in which they were not needed. Where the process can have no more,
    those there are serve all.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = schedule.lock()
        self._blocks: schedule.Queue[Callable[[], None]] = schedule.fifo()
        self._lent = 0
        """Blocks that are not over, those that wait among them."""
        self._started = 0

    def lend(self, block: Callable[[], None]) -> None:
        """Have a thread run ``block``, which returns when the block is over. Raises Unreachable if there is none, and none can be started."""
        with self._lock:
            if self._lent >= self._started < self._most:
                self._start()
            self._lent += 1
            self._blocks.put(block)

    def _start(self) -> None:
        try:
            schedule.start_thread("capture-block", self._serve)
        except RuntimeError as error:
            if not self._started:
                raise_limit(error)
                raise
            return  # those that there are serve the block in its turn
        self._started += 1

    def _serve(self) -> None:
        while True:
            try:
                block = self._blocks.get(timeout=THREAD_KEPT_S)
            except schedule.Empty:
                with self._lock:
                    if self._blocks.empty():
                        self._started -= 1
                        return
                continue
            block()
            del block  # an idle thread keeps nothing of it
            with self._lock:
                self._lent -= 1


class _Step(Future[_R]):
    """A step that is asked for, and its place among those of its block."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class _Steps:
    """What one block has its thread do, one step after the other, also where its coroutines ask for several at once."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        # No lock of Python's: the thread that waits here may collect what a loop has left behind, whose end is put here.
        self._queue: schedule.Mailbox[tuple[Future[Any], Callable[[], Any]] | None] = schedule.mailbox()
        self._is_new = True
        self._asked = 0
        self._given_up: list[int] = []
        """Steps that had begun when who waited for them was cancelled, and that nothing has undone since."""
        self._promised: list[int] = []
        """Calls whose coroutines have not begun, and that nothing has undone since."""
        self.is_open = False

    def open(self, threads: BlockThreads, block: CaptureBlock) -> None:
        """Take a thread, or a place among those who wait for one.

        The thread holds the block until it is over: whoever collects what a loop has left behind would close its connection meanwhile.
        """
        self._is_new, self.is_open = False, True
        threads.lend(partial(self._serve, block))

    def check_new(self) -> None:
        """Raise CaptureError if they were opened before."""
        if not self._is_new:
            self._refuse()

    def promise(self) -> int:
        """Note a call whose coroutine has not begun, and return its number: nobody may ever await it."""
        self._asked += 1
        self._promised.append(self._asked)
        return self._asked

    def keep(self, promised: int) -> None:
        """The coroutine of a call has begun."""
        with suppress(ValueError):  # a savepoint around it was undone before
            self._promised.remove(promised)

    def not_kept(self) -> CaptureError | None:
        """Return what ends the block if a call of it has not begun: it would be committed without that."""
        return CaptureError(NOT_AWAITED) if self._promised else None

    def do(self, step: Callable[[], _R]) -> _Step[_R]:
        """Have a step done after those before it. Cancelled before it is begun, it is not done."""
        self._publisher.check_process()  # in a fork there is no such thread
        if not self.is_open:
            self._refuse()
        self._asked += 1
        done: _Step[_R] = _Step(self._asked)
        self._queue.put((done, step))
        return done

    def give_up(self, step: _Step[Any]) -> None:
        """Nobody waits for a step any more: have it left out, or undone with what is around it if it had begun."""
        if not step.cancel():
            self._given_up.append(step.number)

    def refuse_given_up(self, since: int) -> None:
        """Raise CaptureError if a step that was asked for behind step ``since`` was given up."""
        if max(self._given_up, default=0) > since:
            raise CaptureError(GIVEN_UP)

    def undone(self, since: int, until: int) -> None:
        """What was asked for between these two is undone."""
        self._given_up = [number for number in self._given_up if not since < number < until]
        self._promised = [number for number in self._promised if not since < number < until]

    def close(self, abandon: Callable[[], None]) -> None:
        """Give the thread back after the last step: ``abandon``, for what nobody has left."""
        self.is_open = False
        self._queue.put((Future(), abandon))
        self._queue.put(None)

    def _refuse(self) -> NoReturn:
        state = "not entered yet" if self._is_new else "open" if self.is_open else "over"
        raise CaptureError(f"the block is {state}; begin another with capture.async_transaction()")

    def _serve(self, _held: CaptureBlock) -> None:
        while (asked := self._queue.get()) is not None:
            _do(*asked)
            del asked


def _do(done: Future[Any], step: Callable[[], Any]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(step())
    except StopIteration as error:
        done.set_exception(RuntimeError(f"a step of the block raised {error!r}"))  # no future can hold it: PEP 479
    except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the step
        done.set_exception(error)
    del done, step  # or an error's traceback would hold what holds the error


class _Stay:
    """The time between entering and leaving what a thread enters and leaves, for a coroutine that may be cancelled."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self._since = 0

    async def begin(self, enter: Callable[[], Any], leave: _Leave) -> None:
        """Enter, or raise with nothing left of it."""
        entering = self._steps.do(enter)
        self._since = entering.number
        try:
            await asyncio.wrap_future(entering)
        except BaseException as error:
            if not entering.cancel() and not _has_failed(entering):
                await _ended(self._steps.do(partial(_undone, entering, leave, error)), error)
            raise
        finally:
            del entering

    async def end(self, leave: _Leave, error: BaseException | None) -> None:
        """Leave, and raise what that raises; who is cancelled meanwhile hears of it when it is over."""
        leaving = self._steps.do(partial(self._leave, leave, error))
        try:
            cancelled = await _ended(leaving, error)
            if error is not None or _has_failed(leaving):
                self._steps.undone(self._since, leaving.number)
            if cancelled is not None:
                raise cancelled from leaving.exception()
            if not isinstance(error, GeneratorExit):
                leaving.result()
        finally:
            del leaving, error

    def _leave(self, leave: _Leave, error: BaseException | None) -> None:
        if error is None:
            # Here, behind all that was asked for before: some of it may still have run when the coroutine came to its end.
            try:
                self._steps.refuse_given_up(self._since)
            except CaptureError as refused:
                _left(leave, refused)
                raise
        _left(leave, error)


def _has_failed(step: Future[Any]) -> bool:
    return step.done() and step.exception() is not None


def _undone(entering: Future[Any], leave: _Leave, error: BaseException) -> None:
    if not _has_failed(entering):
        _left(leave, error)


def _left(leave: _Leave, error: BaseException | None) -> None:
    leave(type(error) if error else None, error, error.__traceback__ if error else None)


async def _ended(step: Future[Any], error: BaseException | None) -> asyncio.CancelledError | None:
    """Wait until a step is over, and return how the coroutine was cancelled meanwhile; one that ends must not wait."""
    if isinstance(error, GeneratorExit):
        return None
    waited, cancelled = asyncio.wrap_future(step), None
    with ExitStack() as shield:
        while not waited.done():
            try:
                await asyncio.wait({waited})
            except asyncio.CancelledError as again:
                if cancelled is None:
                    shield.enter_context(_shield())
                cancelled = again
    waited.exception()  # looked at, or the loop would print it
    return cancelled


def _shield() -> AbstractContextManager[Any]:
    """Return what has scopes of anyio, which Starlette puts around requests, wait: they cancel at every turn of the loop."""
    scope = getattr(sys.modules.get("anyio"), "CancelScope", None)
    return scope(shield=True) if scope else nullcontext()


class AsyncSavepoint:
    """The block of an ``async with tx.savepoint()``: undone if an exception leaves it, and the outer block may go on."""

    def __init__(self, steps: _Steps, inner: AbstractContextManager[None, Any]) -> None:
        self._stay = _Stay(steps)
        self._inner = inner

    async def __aenter__(self) -> None:
        await self._stay.begin(self._inner.__enter__, self._inner.__exit__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stay.end(self._inner.__exit__, error)


def _by_thread(
    method: Callable[Concatenate[CaptureBlock, _P], _R],
) -> Callable[Concatenate[AsyncCaptureBlock, _P], Coroutine[Any, Any, _R]]:
    """Return what has a method of the block done by the block's thread."""

    @wraps(method)
    def step(block: AsyncCaptureBlock, /, *args: _P.args, **kwargs: _P.kwargs) -> Coroutine[Any, Any, _R]:
        return block.run(method, *args, **kwargs)

    return step


class AsyncCaptureBlock:
    """The block of an ``async with capture.async_transaction()``.

    Its statements are done one after the other, also where several tasks ask for them. A call that is cancelled while it
    runs has the block, or the savepoint around it, rolled back, and one that nobody awaits the block. ``async with`` ends
    when all of it is over: a statement that runs is waited for, and a COMMIT that was sent is found out.
    """

    def __init__(self, publisher: Publisher, threads: BlockThreads) -> None:
        self._publisher = publisher
        self._threads = threads
        self._block = CaptureBlock(publisher)
        self._entered = Entered()
        self._steps = _Steps(publisher)
        self._stay = _Stay(self._steps)
        self._is_committed = False

    execute = _by_thread(CaptureBlock.execute)
    publish = _by_thread(CaptureBlock.publish)

    @property
    def id(self) -> bytes:
        """The capture's id, 16 bytes."""
        return self._block.id

    @property
    def is_committed(self) -> bool:
        """Is it known to be committed? Ask where a time limit or a cancellation came around the block."""
        return self._is_committed

    def run(
        self, function: Callable[Concatenate[CaptureBlock, _P], _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> Coroutine[Any, Any, _R]:
        """Return what ``function(tx, *args, **kwargs)`` does in the block's thread, with the block as of ``transaction``."""
        return self._run(self._steps.promise(), partial(function, self._block, *args, **kwargs))

    async def _run(self, promised: int, call: Callable[[], _R]) -> _R:
        self._steps.keep(promised)
        done = self._steps.do(partial(copy_context().run, self._finished, call))
        try:
            return await asyncio.wrap_future(done)
        except asyncio.CancelledError:
            self._steps.give_up(done)
            raise
        finally:
            del done  # or what it raised would hold it, and all of the block, until they are collected

    def _finished(self, call: Callable[[], _R]) -> _R:
        returned = call()
        if is_unfinished(returned):
            self._block.refuse_unfinished(returned)
        return returned

    def savepoint(self) -> AsyncSavepoint:
        """Undo statements and drop messages of the inner block if an exception leaves it; the outer may go on."""
        return AsyncSavepoint(self._steps, self._block.savepoint())

    async def __aenter__(self) -> Self:
        self._steps.check_new()
        self._publisher.enter(self._entered)
        try:
            self._steps.open(self._threads, self._block)
            await self._stay.begin(self._block.__enter__, self._leave)
        except BaseException:
            self._over()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._publisher.is_here:
            self._leave(kind, error, trace)  # a fork: the thread is the parent's, as all of the block
            return
        refused = self._steps.not_kept() if error is None else None
        try:
            await self._stay.end(self._leave, error or refused)
            if refused is not None:
                raise refused
        except asyncio.CancelledError as cancelled:
            if self._is_committed:
                cancelled.add_note(f"capture {self.id.hex()}: cancelled while it was committed; it is committed")
            raise
        finally:
            self._over()
            del refused  # or its traceback would hold it, and all of the block

    def __del__(self) -> None:
        """End a block that was entered by hand and dropped, whose thread would wait for it."""
        if self._steps.is_open and self._publisher.is_here:
            self._over()

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not as a `with` statement looks it up: dropped, that would end the block in whatever thread collects it.
        CaptureBlock.__exit__(self._block, kind, error, trace)
        self._is_committed = kind is None

    def _over(self) -> None:
        self._steps.close(self._block.abandon)
        self._entered.of = None

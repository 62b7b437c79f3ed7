"""What an application writes: a function for the messages of a queue, and which database its writes belong to."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from relay.message.errors import ConfigError, RelayError

BATCH_DEFAULT: Final = 100
Function = Callable[..., Any]


class Unusable(RelayError):
    """Raised by a handler: this message will never be of use, do not try it again; the text is the cause."""


class Later(RelayError):
    """Raised by a handler: try this message again, but not before ``after_s`` seconds.

    The text is the cause, and stands in the log as well: it names nothing that came in a message. The pause is no longer than the queue's ``retry_max``, give or take, and no shorter than its own. ``counted`` False: something
    else is away, and the message waits for it without using up a try.
    """

    # Also of a class of the application's that says nothing to this one.
    after_s: float = 0.0
    counted: bool = True

    def __init__(self, cause: str, *, after_s: float = 0.0, counted: bool = True) -> None:
        super().__init__(cause)
        # Here, where an error names the handler's line: reckoned with by the worker, it would end that.
        self.after_s = float(after_s)
        self.counted = counted


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler as declared. ``batch`` is how many messages one call gets, 0 for one message and no list.

    ``resource`` is where its writes, and with them its message, are decided; ``also`` names further databases it writes to.
    ``close`` is awaited on the event loop of an async one when its worker ends. Called directly, as a test does, it is the function itself.
    """

    queue: str
    function: Function
    resource: str | None
    batch: int
    order: Literal["queue", "none"]
    also: tuple[str, ...] = ()
    close: Callable[[], Awaitable[object]] | None = None

    @property
    def name(self) -> str:
        """The function's name, or that of the class of what can be called."""
        return _name(self.function)

    @property
    def file(self) -> str | None:
        """The file that the function stands in, as tracebacks name it."""
        code = getattr(inspect.unwrap(_run_by(self.function)), "__code__", None)
        return None if code is None else code.co_filename

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function: it runs on the worker's event loop."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(_run_by(self.function))

    def __call__(self, *arguments: Any) -> Any:
        """Run the function and return what it returns: a coroutine for the event loop if it is async."""
        return self.function(*arguments)


def subscriber(
    queue: str,
    *,
    resource: str | None = None,
    batch: bool | int = False,
    order: Literal["queue", "none"] = "queue",
    also: Sequence[str] = (),
) -> Callable[[Function], Handler]:
    """Declare a function as handler of a queue; `relay work` runs it as the subscriber that it is told.

    The function gets ``(message)``, or ``(message, db)`` where a ``resource`` of the configuration is named: what it
    writes through ``db`` is committed together with the message's DONE, or not at all. With ``batch`` it gets
    a list of messages, up to 100 or the number given. ``order="none"`` runs messages of one lane side by side.
    Returning means done. Raising means that the message is tried again later, or never if `Unusable` is raised.

    An ``async def`` runs on one event loop with the others of its worker, and writes with ``await db.execute(...)``.

    ``also`` names further PostgreSQL resources; the function gets one more argument for each, after ``db``. What it writes
    through them is committed if, and only if, ``resource`` commits (PREPARE TRANSACTION there, which costs two round trips).
    """
    if also and resource is None:
        raise ConfigError(
            f"@subscriber({queue!r}, also={tuple(also)!r}): name the resource that decides as well"
        )
    if batch is not True and batch is not False and batch < 1:
        raise ConfigError(
            f"@subscriber({queue!r}, batch={batch}): give True or how many messages one call gets"
        )
    size = BATCH_DEFAULT if batch is True else int(batch)

    def _declare(function: Function) -> Handler:
        run = _run_by(function)
        if inspect.isgeneratorfunction(run) or inspect.isasyncgenfunction(run):
            raise ConfigError(
                f"@subscriber({queue!r}): {_name(function)} has a yield, so calling it runs nothing of it; use return"
            )
        handler = Handler(queue, function, resource, size, order, tuple(also))
        _check_call(handler)
        return handler

    return _declare


def _bare(function: Function) -> Function:
    while isinstance(function, partial):
        function = function.func
    return function


def _run_by(function: Function) -> Function:
    """Return what a call runs: of what is partial the function, of an object its class's ``__call__``."""
    bare = _bare(function)
    return bare if inspect.isroutine(bare) else type(bare).__call__


def _name(function: Function) -> str:
    bare = _bare(function)
    return str(getattr(bare, "__name__", type(bare).__name__))


def _check_call(handler: Handler) -> None:
    """Refuse a function that cannot take what it will be given: each message would become UNUSABLE, one after the other."""
    words = ["messages" if handler.batch else "message"]
    words += [] if handler.resource is None else ["db", *handler.also]
    try:
        signature = inspect.signature(handler.function)
    except ValueError:
        return  # written in C: nothing tells
    try:
        signature.bind(*words)
    except TypeError as error:
        raise ConfigError(
            f"@subscriber({handler.queue!r}): {handler.name} is called with ({', '.join(words)}), which it cannot take: {error}; "
            "correct its arguments, or resource= and also= of @subscriber"
        ) from None

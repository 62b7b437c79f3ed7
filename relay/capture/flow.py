"""Which blocks are open in a flow of control: a capture inside another one could not wait for the outer decision."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from relay.message.errors import CaptureError


class Entered:
    """A block, as the flow of control remembers it in which it was entered; ``of`` is None before and after."""

    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of: object | None = None


_entered: Final[ContextVar[tuple[Entered, ...]]] = ContextVar("relay_capture_entered", default=())
"""Not by thread: frameworks run each step of a request in whatever thread is free, and the context goes with it."""


def enter(entered: Entered, of: object) -> None:
    """Refuse a block inside a block of the same owner, until its ``of`` is None: it may end in another thread, or flow."""
    around = tuple([one for one in _entered.get() if one.of is not None])
    if any(one.of is of for one in around):
        raise CaptureError("a capture cannot be nested in one that is still open (of a generator: until that is closed); use tx.savepoint()")
    entered.of = of
    _entered.set((*around, entered))

"""Callbacks that a Kafka client keeps without keeping their object.

A client holds its callbacks, one for every record that is not reported yet, and the object that owns the client is what
they are bound to: a circle, which nobody would collect, since workers put that off (``relay.run.process``). A client that
was thrown away would live on, with its threads and connections, and go on with what it was asked for last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a callback that calls ``method`` as long as its object lives."""
    held = WeakMethod(method)

    def call(*given: Any) -> None:
        found = held()
        if found is not None:
            found(*given)

    return call

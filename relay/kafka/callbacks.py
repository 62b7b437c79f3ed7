"""Callbacks that a Kafka client keeps without keeping their object.

A client holds its callbacks, one for every record that is not reported yet, and the object that owns the client is what
they are bound to: a circle, which nobody would collect, since workers put that off (``relay.run.process``). A client that
was thrown away would live on, with its threads and connections, and go on with what it was asked for last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakMethod

from confluent_kafka import KafkaError, Message


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a callback that calls ``method`` as long as its object lives."""
    held = WeakMethod(method)

    def call(*given: Any) -> None:
        found = held()
        if found is not None:
            found(*given)

    return call


class Failures:
    """The first report of each failure, of records that nobody asks for one by one. It keeps no client, and no owner of one."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[KafkaError, Message]] = {}

    def told(self, error: KafkaError | None, message: Message) -> None:
        """Take one report."""
        # Not by the error itself: its hash is its code, and -1 (UNKNOWN) is none to Python, so that the client's call would end with SystemError.
        if error is not None:
            self._first.setdefault(error.code(), (error, message))

    def __iter__(self) -> Iterator[tuple[KafkaError, Message]]:
        """Return them with the record that each was told of."""
        return iter(self._first.values())

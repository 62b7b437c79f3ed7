"""A correlation whose parts are other ones than those that had come: nothing is joined before all of them are there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from relay.queue.message import Taken, Ticket
from relay.resources.schema import statements
from relay.work.correlate import correlate
from relay.work.message import Message
from relay.work.subscriber import Handler


class Memory:
    """A handler's database in memory."""

    kind = "sqlite"

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        for statement in statements("sqlite"):
            self._connection.execute(statement)

    def execute(self, query: str, params: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(query, params)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    made.close()


def joining(*parts: str) -> Handler:
    def join(values: Mapping[str, bytes]) -> bytes:
        return b"+".join(values[part] for part in sorted(values))

    return correlate(
        "parts", to="joined", resource="shop", parts=parts, part_of=lambda message: message.id,
        key_of=lambda message: (message.key or b"").decode(), join=join,
    )  # fmt: skip


def come(handler: Handler, memory: Memory, handle: int, part: str, subscriber: str = "clerk") -> list[bytes | None]:
    """Let a part come and return what is published because of it."""
    message = Message(Taken(Ticket(handle, 1), "p", part, b"k", part.encode(), (), None, None, 0, 0, 0, (), group=subscriber))
    handler(message, memory)
    return [child.value for _, child in message.children]


def test_what_is_declared_no_more_does_not_stand_for_what_is_missing(memory: Memory) -> None:
    assert come(joining("order", "bill"), memory, 1, "bill") == []
    later = joining("order", "payment")

    assert come(later, memory, 2, "order") == []
    assert come(later, memory, 3, "payment") == [b"order+payment"]


def test_a_group_of_more_parts_than_are_declared_now_is_joined_of_those(memory: Memory) -> None:
    earlier, later = joining("order", "bill", "note"), joining("order", "bill")
    assert come(earlier, memory, 1, "order") == []
    assert come(earlier, memory, 2, "note") == []

    assert come(later, memory, 3, "bill") == [b"bill+order"]


def test_each_subscriber_joins_for_itself(memory: Memory) -> None:
    """The one that brought the last part published what was made of both ones', and the other one nothing."""
    both = joining("order", "bill")

    assert [come(both, memory, 1, "order", name) for name in ("billing", "shipping")] == [[], []]
    assert [come(both, memory, 2, "bill", name) for name in ("billing", "shipping")] == [[b"bill+order"], [b"bill+order"]]

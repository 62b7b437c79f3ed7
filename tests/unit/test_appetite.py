"""How much a worker reads: by messages and by bytes, with a pause between too much and too little."""

from __future__ import annotations

from typing import Any

import pytest

from relay.message.record import LogMessage
from relay.run.appetite import Appetite, Bounds

BOUNDS = Bounds(batch_messages=10, batch_bytes=1000, linger_s=0.1, inflight_messages=100)


class Ready:
    """An intake that has so much ready."""

    def __init__(self, messages: int, size: int = 0) -> None:
        self._messages, self._size = messages, size

    def ready(self) -> int:
        return self._messages

    def ready_bytes(self) -> int:
        return self._size


def ready(messages: int, size: int = 0) -> Any:
    return Ready(messages, size)


@pytest.mark.parametrize(
    ("messages", "size", "room"), [(0, 0, 7), (4, 0, 6), (9, 999, 1), (10, 0, 1), (30, 0, 1), (1, 1000, 1)]
)
def test_a_batch_is_polled_in_all_and_one_record_at_least(messages: int, size: int, room: int) -> None:
    assert Appetite(BOUNDS).room(ready(messages, size), 7) == room


@pytest.mark.parametrize(("much", "little"), [((21, 0), (9, 0)), ((1, 2001), (1, 999))])
def test_above_two_batches_nothing_is_read_until_less_than_one_is_left(
    much: tuple[int, int], little: tuple[int, int]
) -> None:
    appetite = Appetite(BOUNDS)
    between = ready(15, 1500)

    looks = [appetite.look(one) for one in (between, ready(*much), between, ready(*little), between)]

    assert looks == [False, True, True, False, False]


def test_what_may_be_in_flight_is_a_bound_as_well() -> None:
    assert Appetite(Bounds(10, 1000, 0.1, 12)).look(ready(13))


def test_large_messages_make_the_next_batches_shorter_and_small_ones_longer_again() -> None:
    appetite = Appetite(BOUNDS)

    def batch(count: int, size: int) -> list[LogMessage]:
        return [LogMessage("t", 0, n, None, b"v" * size, [], b"d" * 16, b"c" * 8, b"", None, 0) for n in range(count)]

    sizes = []
    for messages in (batch(10, 500), [], batch(2, 5000), batch(1, 250), batch(5, 10)):
        appetite.weigh(messages)
        sizes.append(appetite.batch)

    assert sizes[0] == sizes[1] in (1, 2)
    assert sizes[2] == 1, "one goes however large it is"
    assert sizes[3] in (3, 4)
    assert sizes[4] == 10, "never more than its bound"

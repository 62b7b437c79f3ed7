"""The in-doubt list: what any begin names from the position on, minus what is proven, each with since when and why."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay.message.record import LogPartition
from relay.monitor.entries import Begin, InputRange
from relay.monitor.in_doubt import Attempt, Why, in_doubt

PLACE = LogPartition("log", 0)


def attempt(first: int, following: int, why: Why = Why.OPEN, since: int = 100, n: int = 1) -> Attempt:
    begin = Begin("w", f"t{n}", bytes([n]) * 16, n, n - 1, [InputRange("log", 0, first, following)], [])
    return Attempt(begin, since, why)


def test_from_the_position_to_the_end_of_what_is_begun_minus_what_is_proven() -> None:
    found = in_doubt({PLACE: 3}, [attempt(0, 10)], {PLACE: {1, 5, 6, 9, 40}})

    assert [(one.first, one.next, one.offsets) for one in found] == [(3, 5, 2), (7, 9, 2)]
    assert {(one.since_ms, one.why, one.worker, one.n) for one in found} == {(100, Why.OPEN, "t1", 1)}


def test_between_two_attempts_nothing_is_in_doubt() -> None:
    found = in_doubt({}, [attempt(5, 7), attempt(0, 2)], {})

    assert [(one.first, one.next) for one in found] == [(0, 2), (5, 7)]


def test_what_is_below_the_position_or_not_begun_is_not_in_doubt() -> None:
    assert in_doubt({PLACE: 10}, [attempt(0, 10)], {}) == []
    assert in_doubt({PLACE: 3}, [], {}) == []


def test_several_attempts_give_the_first_time_and_the_gravest_reason() -> None:
    found = in_doubt(
        {}, [attempt(0, 10, Why.ABORTED, 50, 1), attempt(4, 6, Why.UNREADABLE, 70, 2), attempt(5, 12, Why.OPEN, 90, 3)], {}
    )

    assert [(one.first, one.next, one.since_ms, one.why, one.n) for one in found] == [
        (0, 4, 50, Why.ABORTED, 1),
        (4, 6, 50, Why.UNREADABLE, 2),
        (6, 10, 50, Why.OPEN, 3),
        (10, 12, 90, Why.OPEN, 3),
    ]
    assert [why for why in Why if why.needs_person] == [Why.UNREADABLE]


@given(
    position=st.integers(0, 20),
    spans=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.sampled_from(Why)), max_size=5),
    proven=st.sets(st.integers(0, 30)),
)
def test_it_names_every_offset_once(position: int, spans: list[tuple[int, int, Why]], proven: set[int]) -> None:
    attempts = [attempt(first, following, why, n=n) for n, (first, following, why) in enumerate(spans)]

    found = in_doubt({PLACE: position}, attempts, {PLACE: proven})

    named = [offset for one in found for offset in range(one.first, one.next)]
    begun = {offset for first, following, _ in spans for offset in range(first, following)}
    assert named == sorted(begun - proven - set(range(position)))

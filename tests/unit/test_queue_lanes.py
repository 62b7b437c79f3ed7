"""Which of the messages that wait may be taken: lanes stay whole and in order."""

from __future__ import annotations

import tracemalloc

from relay.queue.stores.lanes import Candidate, Closed, lane_number
from relay.queue.stores.sql_values import number_of_lane

NOW = 1_000


def row(handle: int, lane: int | None = None, *, again_at: int | None = None, expires_at: int | None = None) -> Candidate:
    return Candidate(handle, 1, lane, 9, again_at, expires_at)


def given(closed: Closed, *rows: Candidate, limit: int = 100) -> list[int]:
    return [candidate.handle for candidate in closed.admit(rows, limit, NOW, NOW + 1000)]


def test_what_has_no_lane_waits_for_nothing_but_its_own_time() -> None:
    rows = (row(1), row(2, again_at=NOW + 1), row(3, again_at=NOW), row(4, expires_at=NOW), row(5, expires_at=NOW + 1))

    assert given(Closed(), *rows) == [1, 3, 5]


def test_a_lane_another_holder_is_in_gives_nothing() -> None:
    closed = Closed()
    closed.hold(1, 7, 3, own=False)

    assert given(closed, row(4, 7), row(5, 8)) == [5]


def test_the_holder_of_a_lane_gets_what_follows_and_nothing_if_something_older_waits() -> None:
    closed = Closed()
    closed.hold(1, 7, 3, own=True)
    assert given(closed, row(4, 7), row(5, 7)) == [4, 5]

    assert given(closed, row(2, 7), row(4, 7), row(5, 8)) == [5]


def test_a_lane_stops_where_one_waits_for_its_retry_or_keeps_its_place() -> None:
    closed = Closed()
    closed.place(1, 8, 5)

    assert given(closed, row(1, 7), row(2, 7, again_at=NOW + 1), row(3, 7), row(4, 8), row(6, 8)) == [1, 4]


def test_of_several_the_newest_in_hand_and_the_oldest_that_keeps_its_place_bound_a_lane() -> None:
    closed = Closed()
    for handle in (3, 5, 4):
        closed.hold(1, 7, handle, own=True)
    for handle in (9, 11, 10):
        closed.place(1, 7, handle)
    lane = (1, 7)

    assert [handle for handle in range(1, 13) if closed.gives(lane, handle)] == [5, 6, 7, 8, 9]
    assert given(closed, row(6, 7), row(9, 7), row(10, 7), row(1, 8)) == [6, 9, 1]
    assert given(closed, row(6, 7)) == [], "it has stopped"


def test_what_is_said_of_a_lane_holds_for_whether_it_gives_too() -> None:
    closed = Closed.without([b"busy"])
    closed.hold(1, 7, 3, own=False)

    assert [closed.gives((1, lane), 4) for lane in (7, 8, lane_number(b"busy"))] == [False, True, False]
    assert closed.gives((2, 7), 4), "another group's"


def test_a_retry_beyond_the_latest_there_can_be_is_not_waited_for() -> None:
    """As when the clock was put back: no retry is as far away."""
    rows = (row(1, again_at=NOW + 1000), row(2, again_at=NOW + 1001), row(3, 7, again_at=NOW + 1001), row(4, 7))

    assert given(Closed(), *rows) == [2, 3, 4]


def test_no_more_is_given_than_is_asked_for() -> None:
    assert given(Closed(), *(row(handle, handle % 3) for handle in range(1, 9)), limit=3) == [1, 2, 3]


def test_an_expired_message_neither_goes_nor_stops_its_lane() -> None:
    assert given(Closed(), row(1, 7, expires_at=NOW - 1), row(2, 7)) == [2]


def test_a_lane_that_stopped_stays_shut_on_the_next_page() -> None:
    closed = Closed()
    assert given(closed, row(1, 7, again_at=NOW + 1)) == []

    assert given(closed, row(2, 7)) == []


def test_lanes_left_out_and_other_groups_lanes_of_the_same_number() -> None:
    closed = Closed.without([b"busy"])
    closed.hold(2, 7, 1, own=False)

    assert given(closed, row(1, lane_number(b"busy")), row(2, 7), limit=1) == [2]


def test_the_names_of_lanes_are_kept_in_bounds() -> None:
    """A lane is named by a key or a source, which may be as long as a message: 65,000 of them would be gigabytes."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(200):
            lane = b"%08d" % number + bytes(100_000)
            assert number_of_lane(lane) == lane_number(lane)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000_000
    assert number_of_lane(b"short") == lane_number(b"short")

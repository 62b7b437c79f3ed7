"""When rows of an inbox may go: never before the monitor has had everything below their position for the whole time."""

from __future__ import annotations

from relay.delivery.table.inbox_ages import RUNGS, InboxMarks, Rungs
from relay.message.record import LogPartition
from relay.transfer.cursor import Claim

P0, P1 = LogPartition("orders", 0), LogPartition("orders", 1)
KEEP_S = 100.0


def test_rows_that_are_kept_for_a_time_are_kept_for_all_of_it_also_the_last_of_a_rung() -> None:
    rungs = Rungs(KEEP_S)
    rungs.note({P0: 5}, 0.0)
    rungs.note({P0: 9, P1: 3}, 0.9)

    assert rungs.take(KEEP_S) == {}
    assert rungs.take(KEEP_S + 0.9) == {P0: 9, P1: 3}
    assert rungs.take(2 * KEEP_S) == {}, "said once"


def test_what_is_remembered_of_a_time_is_bounded() -> None:
    rungs = Rungs(KEEP_S)
    for tenth in range(int(KEEP_S) * 10):
        rungs.note({P0: tenth}, tenth / 10)

    assert len(rungs) <= RUNGS + 1
    assert 480 <= rungs.take(KEEP_S * 1.5)[P0] <= 500, "what is old enough goes, however much is noted meanwhile"


def test_what_is_cleared_lets_nothing_go() -> None:
    rungs = Rungs(KEEP_S)
    rungs.note({P0: 5}, 0.0)
    rungs.clear()

    assert rungs.take(2 * KEEP_S) == {}


def test_rows_that_are_not_kept_go_at_once() -> None:
    rungs = Rungs(None)
    rungs.note({P0: 5}, 0.0)

    assert rungs.take(0.0) == {P0: 5}


def test_what_a_process_noted_holds_once_the_monitor_begins_where_it_ended_then() -> None:
    marks = InboxMarks()
    marks.note({P0: 7}, {0: (0, 50)}, "w")
    rows = marks.note({P0: 20}, {0: (10, 80)}, "w")
    again = InboxMarks()
    left = again.take({P0: Claim(1, 20, rows)})

    assert left[P0].ranges == [], "it is no publisher's"
    assert [again.aged({0: (low, 99)}).get(P0) for low in (49, 50, 79, 80)] == [None, 7, 7, 20]


def test_a_position_that_was_put_back_makes_the_rows_above_it_young_again() -> None:
    marks = InboxMarks()
    marks.note({P0: 20}, {0: (0, 50)}, "w")

    marks.note({P0: 5}, {0: (0, 60)}, "w")

    assert marks.aged({0: (59, 99)}) == {}
    assert marks.aged({0: (60, 99)}) == {P0: 5}

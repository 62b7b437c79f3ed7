"""What is kept in mind of committed transactions until they are seen closed: what is looked for, and how much of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from relay.delivery.topic.sightings import HANGS_AFTER_S, ROWS_MAX, TRANSACTIONS_MAX, Committed, Sightings
from relay.message.record import LogPartition
from relay.monitor.entries import OutputStart

A, B = LogPartition("out", 0), LogPartition("out", 1)


def committed(n: int, ends: Mapping[LogPartition, int], rows: int = 1, begins: Mapping[int, int] | None = None) -> Committed:
    return Committed(n, ends, {place: last - 1 for place, last in ends.items()}, begins or {0: n}, rows)


def noted(*transactions: Committed) -> Sightings:
    sightings = Sightings()
    for one in transactions:
        sightings.committed(one)
    return sightings


@pytest.mark.parametrize(("rows", "times", "is_over"), [(ROWS_MAX // 2, 1, False), (ROWS_MAX // 2 + 1, 1, True), (ROWS_MAX, 2, False)])
def test_messages_that_are_kept_in_mind_have_a_bound(rows: int, times: int, *, is_over: bool) -> None:
    assert noted(committed(1, {A: 10}, rows), committed(2, {A: 20}, rows)).is_over(times) is is_over


@pytest.mark.parametrize(("count", "is_over"), [(TRANSACTIONS_MAX, False), (TRANSACTIONS_MAX + 1, True)])
def test_transactions_that_are_kept_in_mind_have_a_bound(count: int, *, is_over: bool) -> None:
    assert noted(*(committed(n, {A: 10 * n}) for n in range(1, count + 1))).is_over() is is_over


def test_the_last_one_is_kept_whatever_it_holds() -> None:
    sightings = noted(committed(1, {A: 10}, ROWS_MAX + 1))
    assert not sightings.is_over()
    sightings.believe()
    assert sightings.closed == 0

    sightings.committed(committed(2, {A: 20}, ROWS_MAX + 1))
    assert sightings.is_over()
    sightings.believe()
    assert sightings.closed == 1
    assert sightings.unseen() == [OutputStart("out", 0, 19)]


@pytest.mark.parametrize(("count", "rows", "stay"), [(11, ROWS_MAX // 10, 5), (TRANSACTIONS_MAX + 1, 1, TRANSACTIONS_MAX // 2)])
def test_half_of_what_may_be_kept_stays_when_the_older_ones_are_believed(count: int, rows: int, stay: int) -> None:
    sightings = noted(*(committed(n, {A: 10 * n}, rows) for n in range(1, count + 1)))

    assert sightings.is_over()
    sightings.believe()

    assert sightings.closed == count - stay
    assert sightings.unseen() == [OutputStart("out", 0, 10 * (count - stay + 1) - 1)]
    assert not sightings.is_over()


def test_what_was_seen_closed_counts_no_more() -> None:
    half = ROWS_MAX // 2
    sightings = noted(committed(1, {A: 10}, half), committed(2, {A: 20}, half))
    sightings.seen({A: 11})
    sightings.committed(committed(3, {A: 30}, half))

    assert sightings.closed == 1
    assert not sightings.is_over()


def test_a_transaction_is_closed_when_all_its_records_lie_below_the_stable_offsets_and_all_before_it_are() -> None:
    sightings = noted(committed(1, {A: 10, B: 5}, begins={0: 3}), committed(2, {A: 20}, begins={1: 4}))

    for ends, closed in [({A: 10, B: 6}, 0), ({A: 11, B: 5}, 0), ({A: 21}, 0), ({A: 11, B: 6}, 1), ({A: 20}, 1), ({A: 21}, 2)]:
        sightings.seen(ends)
        assert sightings.closed == closed
        assert (sightings.since(0), sightings.since(1)) == (3 if closed < 1 else -1, 4 if closed < 2 else -1)
    assert sightings.unseen() == []


def test_what_was_seen_closed_is_looked_for_no_more() -> None:
    sightings = noted(committed(1, {A: 10}), committed(2, {B: 20}), committed(3, {A: 30}))
    assert sightings.unseen() == [OutputStart("out", 0, 9), OutputStart("out", 1, 19)]

    sightings.seen({A: 11})

    assert sightings.unseen() == [OutputStart("out", 0, 29), OutputStart("out", 1, 19)]


def test_all_but_the_last_one_are_asked_for_before_any_is_believed() -> None:
    """The last one is kept in mind anyhow: nothing that hides it needs to be known."""
    sightings = noted(committed(1, {A: 10}), committed(2, {B: 20}))

    assert sightings.hidden({A: 10}) == {A}
    assert sightings.hidden({B: 21}) == {A}, "not told"
    assert sightings.hidden({A: 11}) == set()


def test_the_oldest_one_is_looked_for_when_it_has_been_hidden_for_long_and_again_as_much_later() -> None:
    sightings = noted(committed(1, {A: 10}), committed(2, {B: 20}))
    looks = [(0.0, []), (HANGS_AFTER_S - 1, []), (HANGS_AFTER_S, [A]), (2 * HANGS_AFTER_S - 1, []), (2 * HANGS_AFTER_S, [A])]

    assert [(at, list(sightings.overdue(at))) for at, _ in looks] == looks

    sightings.seen({A: 11})
    assert not sightings.overdue(2 * HANGS_AFTER_S + 1), "the next one is hidden only since"
    assert list(sightings.overdue(3 * HANGS_AFTER_S + 1)) == [B]


def test_what_has_written_nothing_is_closed_at_once() -> None:
    sightings = noted(committed(1, {A: 10}), committed(2, {}))
    assert sightings.closed == 0
    sightings.seen({A: 11})
    assert sightings.closed == 2
    assert noted(committed(1, {})).closed == 1

"""Publisher ranges: what closes a number, what a closed number proves, and what it never does."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from relay.message.numbers import Number, NumberRun
from relay.message.schemas import UnknownRecord
from relay.monitor.entries import Begin, Seal, SettleSeal, decode, encode
from relay.monitor.evidence import Evidence
from relay.monitor.index import Change, Kind
from relay.monitor.ranges import (
    MARKS_MAX,
    Closing,
    Closings,
    Mark,
    RangeEntry,
    RangeKey,
    RangeLimits,
    Ranges,
    Standing,
    note,
    note_claim,
    thinned,
)
from tests.memory_index import memory_index

ONE = RangeKey("orders", b"/shop", b"first")
TWO = RangeKey("orders", b"/shop", b"second")
INSTANCE = b"i" * 16


def batch(numbers: Iterable[int], key: RangeKey = ONE, claims: Iterable[tuple[int, int]] = (), seen: int = 0) -> Closings:
    found: Closings = {}
    for number in numbers:
        note(found, key.topic, Number(key.source, key.incarnation, number), seen or number)
    for first, last in claims:
        note_claim(found, key.topic, NumberRun(key.source, key.incarnation, first, last))
    return found


def closed(ranges: Ranges, upto: int = 30, key: RangeKey = ONE) -> list[int]:
    return [n for n in range(upto) if ranges.standing(key, n) is not Standing.OPEN]


def one_entry(ranges: Ranges, closings: Closings, n: int = 1) -> RangeEntry:
    (entry,) = ranges.entries(closings, worker="w", instance=INSTANCE, n=n)
    return entry


def aged(upto: int) -> Ranges:
    """Numbers 1 to ``upto`` are closed, and their entries have left the monitor."""
    ranges = Ranges()
    ranges.close(batch(range(1, upto + 1)))
    ranges.mark(100, exact=True)
    ranges.is_complete_from(100)
    return ranges


def test_a_million_closed_numbers_are_one_run() -> None:
    ranges = Ranges()
    for start in range(1, 1_000_000, 100_000):
        ranges.close(batch(range(start, start + 100_000)))

    entry = one_entry(ranges, batch([]) | {ONE: Closing()})
    assert entry.closed == [1, 1_000_000]
    assert len(encode(entry)[1]) < 100


def test_several_threads_close_their_numbers_in_any_order() -> None:
    ranges = Ranges()
    for numbers in ([2, 5], [1], [4], [3]):
        ranges.close(batch(numbers))

    assert one_entry(ranges, {ONE: Closing()}).closed == [1, 5]


def test_a_restarted_publisher_begins_again_at_one_under_its_own_incarnation() -> None:
    ranges = aged(10)

    assert ranges.standing(ONE, 1) is Standing.AGED
    assert ranges.standing(TWO, 1) is Standing.OPEN


def test_topics_count_apart() -> None:
    assert aged(10).standing(RangeKey("payments", b"/shop", b"first"), 1) is Standing.OPEN


def test_inside_the_horizon_an_unknown_digest_under_a_closed_number_is_a_conflict() -> None:
    ranges = Ranges()
    ranges.close(batch(range(1, 11)))
    ranges.mark(100, exact=True)
    ranges.is_complete_from(99)

    assert ranges.standing(ONE, 5) is Standing.CONFLICT


def test_beyond_the_horizon_the_number_decides() -> None:
    ranges = aged(10)
    ranges.close(batch([11, 12]))

    assert [ranges.standing(ONE, n) for n in (1, 10, 11, 13)] == [
        Standing.AGED, Standing.AGED, Standing.CONFLICT, Standing.OPEN,
    ]  # fmt: skip


def test_without_knowing_where_the_index_begins_nothing_has_aged() -> None:
    ranges = Ranges()
    ranges.close(batch([1]))
    ranges.mark(0, exact=True)

    assert ranges.standing(ONE, 1) is Standing.CONFLICT


def test_while_the_index_keeps_what_has_left_the_monitor_the_digest_decides() -> None:
    ranges = aged(10)
    ranges.close(batch([11]))
    ranges.mark(150, exact=True)
    ranges.is_complete_from(200)
    assert [ranges.standing(ONE, n) for n in (10, 11)] == [Standing.AGED, Standing.CONFLICT]

    ranges.is_complete_only_from(149)
    assert ranges.standing(ONE, 11) is Standing.CONFLICT
    ranges.is_complete_only_from(150)
    assert ranges.standing(ONE, 11) is Standing.AGED
    ranges.is_complete_only_from(120)
    assert ranges.standing(ONE, 11) is Standing.AGED, "the index does not get back what was let go of"


def test_what_was_never_read_is_in_no_index() -> None:
    ranges = aged(10)
    ranges.close(batch([11]))
    ranges.mark(150, exact=True)

    ranges.is_complete_from(200, has_gap=True)

    assert ranges.standing(ONE, 11) is Standing.AGED


def test_a_number_closed_late_in_an_old_gap_has_not_aged_with_its_neighbours() -> None:
    ranges = Ranges()
    ranges.close(batch([1, 2, 4, 5]))
    ranges.mark(100, exact=True)
    ranges.close(batch([3]))
    ranges.is_complete_from(100)

    assert [ranges.standing(ONE, n) for n in (2, 3, 5)] == [Standing.AGED, Standing.CONFLICT, Standing.CONFLICT]


def test_what_is_under_way_at_a_mark_ages_only_with_the_next_one() -> None:
    ranges = Ranges()
    ranges.is_complete_from(100)
    ranges.close(batch([1]))
    ranges.mark(50, exact=False)
    assert ranges.standing(ONE, 1) is Standing.CONFLICT

    ranges.mark(60, exact=False)
    assert ranges.standing(ONE, 1) is Standing.AGED


def test_marks_stay_few_and_keep_telling_old_from_new() -> None:
    ranges = Ranges()
    for n in range(1, 200):
        ranges.close(batch([n]))
        ranges.mark(n * 10, exact=True)
    entry = one_entry(ranges, {ONE: Closing()})
    assert len(entry.marks) == 3 * MARKS_MAX

    ranges.is_complete_from(1000)
    assert ranges.standing(ONE, 1) is Standing.AGED
    assert ranges.standing(ONE, 101) is Standing.CONFLICT


def test_aborted_numbers_of_dropped_messages_close_like_any_other() -> None:
    ranges = Ranges()
    ranges.close(batch([1, 3]))
    ranges.close(batch([2]))

    assert closed(ranges) == [1, 2, 3]


def test_a_marker_closes_numbers_of_which_nothing_arrived_once_the_log_has_gone_past_them() -> None:
    ranges = Ranges()
    ranges.close(batch([1], claims=[(2, 4)]))
    assert closed(ranges) == [1]

    ranges.close(batch([5]))
    assert closed(ranges) == [1, 2, 3, 4, 5]


def test_a_marker_closes_nothing_that_may_still_be_published() -> None:
    ranges = Ranges()
    ranges.close(batch(range(1, 5), claims=[(5, 1000)]))
    ranges.mark(10, exact=True)
    ranges.is_complete_from(10)

    assert ranges.standing(ONE, 5) is Standing.OPEN
    assert ranges.suspects(batch([5])) == set()


@pytest.mark.parametrize("claim", [(5, 5), (4, 6)])
def test_a_marker_does_not_close_the_very_next_number_either(claim: tuple[int, int]) -> None:
    ranges = Ranges()
    ranges.close(batch(range(1, 5), claims=[claim]))

    assert closed(ranges) == [1, 2, 3, 4]


def test_what_markers_claim_is_bounded_and_the_lowest_is_kept() -> None:
    ranges = Ranges(RangeLimits(gaps=3))
    for first in range(100, 200, 2):
        ranges.close(batch([1], claims=[(first, first)]))

    assert one_entry(ranges, {ONE: None}).claimed == [100, 100, 102, 102, 104, 104]


def test_only_what_does_not_go_on_is_looked_at_one_by_one() -> None:
    ranges = Ranges()
    ranges.close(batch([1, 2, 3]))

    assert ranges.suspects(batch([4, 5, 9])) == set()
    assert ranges.suspects(batch([1], TWO)) == set()
    for numbers in ([3, 4], [5, 4], [4, 4]):
        assert ranges.suspects(batch(numbers)) == {ONE}


def test_a_range_survives_as_a_monitor_record() -> None:
    ranges = aged(3)
    ranges.close(batch([7, 8], claims=[(20, 21)], seen=44))
    entry = one_entry(ranges, batch([4], claims=[(30, 30)], seen=50))

    key, value = encode(entry)
    assert key == (
        b"r" + (5).to_bytes(4, "big") + b"/shop" + (5).to_bytes(4, "big") + b"first" + (6).to_bytes(4, "big") + b"orders"
    )
    assert decode(key, value) == entry
    assert (entry.closed, entry.closing, entry.claimed, entry.seen) == ([1, 3, 7, 8], [4, 4], [20, 21, 30, 30], 50)
    with pytest.raises(UnknownRecord):
        decode(key + b"x", value)


@pytest.mark.parametrize("bad", [{"closed": [1]}, {"closing": [3, 2]}, {"marks": [1, 2]}, {"claimed": [5, 4]}])
def test_a_broken_record_is_told_apart(bad: dict[str, list[int]]) -> None:
    entry = one_entry(Ranges(), batch([1]))
    broken = RangeEntry(**{name: bad.get(name, getattr(entry, name)) for name in RangeEntry.__slots__})

    with pytest.raises(UnknownRecord):
        decode(*encode(broken))


def fold(*entries: Begin | Seal | SettleSeal | RangeEntry) -> tuple[Ranges, Evidence]:
    ranges = Ranges()
    evidence = Evidence(on_range=ranges.restore, on_closing=ranges.restore_closing)
    for offset, entry in enumerate(entries):
        evidence.add(offset, entry)
    return ranges, evidence


def written(before: int, adds: Iterable[int], n: int) -> RangeEntry:
    ranges = Ranges()
    ranges.close(batch(range(1, before + 1)))
    return one_entry(ranges, batch(adds), n)


def begin(n: int) -> Begin:
    return Begin("w", "t", INSTANCE, n, n - 1, [], [])


def test_a_torn_transactions_numbers_are_not_closed_but_those_before_it_are() -> None:
    torn = (begin(2), written(3, [4, 5], 2))
    assert closed(fold(*torn)[0]) == [1, 2, 3]
    assert closed(fold(*torn, SettleSeal("w", INSTANCE, 2))[0]) == [1, 2, 3]
    assert closed(fold(*torn, SettleSeal("w", INSTANCE, 2), written(3, [9], 2))[0]) == [1, 2, 3]


def test_a_sealed_transactions_numbers_are_closed() -> None:
    ranges, evidence = fold(begin(2), written(3, [4, 5], 2), Seal("w", INSTANCE, 2))
    assert closed(ranges) == [1, 2, 3, 4, 5]
    assert evidence.unsealed() == []


def test_a_range_of_a_compacted_monitor_counts_by_its_seal_alone() -> None:
    assert closed(fold(written(3, [4, 5], 2), Seal("w", INSTANCE, 2))[0]) == [1, 2, 3, 4, 5]
    assert closed(fold(written(3, [4, 5], 2), begin(3))[0]) == [1, 2, 3, 4, 5]


def test_a_checkpoint_gives_ranges_back() -> None:
    index = memory_index(0)
    index.keep_journal()
    index.ranges.close(batch([1, 2, 5], claims=[(9, 9)]))
    index.ranges.mark(40, exact=True)
    (change,) = index.take_journal()
    assert change.kind is Kind.RANGES
    assert index.take_journal() == []

    for changes in ([change], list(index.chunks())):
        again = memory_index(0)
        for one in changes:
            again.apply(Change(one.kind, one.data))
        assert closed(again.ranges) == [1, 2, 5]
        again.ranges.is_complete_from(40)
        assert again.ranges.standing(ONE, 2) is Standing.AGED

    index.ranges.mark(60, exact=True)
    assert index.take_journal(), "what is marked later, too"


def test_whoever_reads_every_record_keeps_few_marks_that_tell_old_from_new() -> None:
    ranges, again = Ranges(), Ranges()
    for n in range(1, 200):
        ranges.close(batch([n]))
        ranges.mark(n * 10, exact=True)
        again.restore(one_entry(ranges, {ONE: None}))
    assert len(one_entry(again, {ONE: None}).marks) == 3 * MARKS_MAX

    again.is_complete_from(1000)
    assert again.standing(ONE, 1) is Standing.AGED
    assert again.standing(ONE, 101) is Standing.CONFLICT


@pytest.mark.parametrize(
    ("then", "has_gap", "standing"),
    [(20, False, Standing.CONFLICT), (20, True, Standing.CONFLICT), (50, False, Standing.AGED), (30, True, Standing.AGED), (29, True, Standing.CONFLICT)],
)
def test_an_index_that_was_filled_from_further_back_knows_what_it_holds(then: int, *, has_gap: bool, standing: Standing) -> None:
    ranges = Ranges()
    ranges.close(batch([1]))
    ranges.mark(30, exact=True)
    ranges.is_complete_from(40)
    assert ranges.standing(ONE, 1) is Standing.AGED

    ranges.is_complete_from(then, has_gap=has_gap)

    assert ranges.standing(ONE, 1) is standing


def test_a_batch_of_claims_alone_is_no_suspect_and_takes_nothing_back_of_what_was_seen() -> None:
    ranges = Ranges()
    ranges.close(batch([1, 2, 3]))
    claimed = batch([], claims=[(4, 4)])

    assert ranges.suspects(claimed) == set()
    assert one_entry(ranges, claimed).seen == 3


def test_what_is_not_followed_closes_nothing_when_it_is_proven() -> None:
    ranges = Ranges(RangeLimits(incarnations=1))
    ranges.close(batch([1]))

    ranges.restore_closing(one_entry(Ranges(), batch([1], TWO)))

    assert (len(ranges), ranges.refused, closed(ranges, key=TWO)) == (1, 1, [])


def test_of_too_many_marks_those_that_stay_are_spread_over_all() -> None:
    marks: list[Mark] = []
    for n in range(1, 1_001):
        marks = thinned([*marks, Mark(n, 1, n)])

    gaps = [after.below - before.below for before, after in pairwise(marks)]
    assert len(marks) == MARKS_MAX
    assert (marks[0].below, marks[-1].below) == (1, 1_000)
    assert max(gaps) <= 4 * 1_000 / MARKS_MAX


def test_an_older_record_takes_no_mark_away() -> None:
    older, ranges = Ranges(), aged(3)
    older.close(batch([1]))

    ranges.restore(one_entry(older, {ONE: None}))

    assert ranges.standing(ONE, 3) is Standing.AGED


def test_gaps_are_bounded_and_the_longest_runs_are_kept() -> None:
    ranges = Ranges(RangeLimits(gaps=3))
    ranges.close(batch([1, 2, 3, 10, 20, 21, 22, 30, 31, 32, 33]))

    assert closed(ranges, 40) == [1, 2, 3, 20, 21, 22, 30, 31, 32, 33]


def test_past_the_bound_new_incarnations_are_not_followed_and_nobody_is_forgotten() -> None:
    ranges = Ranges(RangeLimits(incarnations=2))
    for name in (b"a", b"b", b"c"):
        ranges.close(batch([1], RangeKey("orders", b"/shop", name), seen=5))

    assert (len(ranges), ranges.refused) == (2, 1)
    assert ranges.forget({"orders": 5}) == [], "their messages are still in the log"
    assert len(ranges) == 2


def test_at_the_bound_the_oldest_whose_messages_left_the_log_are_forgotten() -> None:
    ranges = Ranges(RangeLimits(incarnations=3))
    for seen, name in ((7, b"living"), (2, b"dead"), (1, b"older")):
        ranges.close(batch([1], RangeKey("orders", b"/shop", name), seen=seen))

    assert [key.incarnation for key in ranges.forget({"orders": 5})] == [b"older"]
    assert ranges.forget({"orders": 5}) == [], "there is room again"
    ranges.close(batch([1], TWO))
    assert (len(ranges), ranges.refused) == (3, 0)


def test_whoever_is_forgotten_is_in_no_later_checkpoint() -> None:
    ranges = Ranges(RangeLimits(incarnations=1))
    ranges.close(batch([1]))

    assert ranges.forget({"orders": 5}) == [ONE]
    assert ranges.take_changes() == b""


def test_numbers_that_only_a_marker_names_make_nobody_older() -> None:
    ranges = Ranges(RangeLimits(incarnations=1))
    ranges.close(batch([1], seen=9))
    ranges.close(batch([], claims=[(2, 3)]))

    assert ranges.forget({"orders": 5}) == []
    assert one_entry(ranges, {ONE: None}).seen == 9


def test_at_the_bound_what_came_from_a_topic_that_the_route_reads_no_more_makes_room() -> None:
    """Nobody asks where that begins by now: it would keep its place for ever, and new incarnations be followed no more."""
    ranges = Ranges(RangeLimits(incarnations=2))
    ranges.close(batch([1], RangeKey("taken out", b"/shop", b"former"), seen=9))
    ranges.close(batch([1], RangeKey("orders", b"/shop", b"living"), seen=7))

    assert [key.incarnation for key in ranges.forget({"orders": 5})] == [b"former"]


def test_ranges_are_due_in_the_order_in_which_they_were_written() -> None:
    ranges = Ranges()
    ranges.close(batch([1]))
    ranges.close(batch([1], TWO))
    assert list(ranges.due(before=0.0, limit=5)) == [ONE, TWO]
    ranges.wrote([ONE], now=10.0)

    assert list(ranges.due(before=5.0, limit=5)) == [TWO]
    ranges.wrote([TWO], now=20.0)
    assert list(ranges.due(before=15.0, limit=5)) == [ONE]
    assert list(ranges.due(before=30.0, limit=1)) == [ONE]

"""Holds: who waits, who goes on, and what is asked when."""

from __future__ import annotations

import pytest

from relay.log.ended import Decision
from relay.log.holds import HoldBudget, PartitionHolds, Waiting
from relay.message.envelope import ResourceName
from relay.message.record import LogMessage, LogPartition

PARTITION = LogPartition("orders", 0)
SHOP = ResourceName("shop", "u")
A, B = b"A" * 16, b"B" * 16


def message(offset: int, lane: bytes = b"/p", capture: bytes | None = None) -> LogMessage:
    digest = offset.to_bytes(16, "big")
    return LogMessage("orders", 0, offset, b"k", b"x" * 10, [], digest, b"c" * 8, lane, capture, 0)


def holds(limit: int = 10_000) -> PartitionHolds:
    return PartitionHolds(PARTITION, 0, HoldBudget(limit), marker_wait_s=3)


def offsets(found: PartitionHolds) -> list[int]:
    return [m.offset for m in found.take_ready(1000)]


def test_a_message_without_capture_is_ready_at_once() -> None:
    h = holds()

    h.take(message(0), None, 0)

    assert offsets(h) == [0]
    assert h.position() == 1


def test_only_the_lane_of_an_undecided_capture_waits() -> None:
    h = holds()
    h.take(message(0, b"/p", A), SHOP, 0)
    h.take(message(1, b"/p"), None, 0)
    h.take(message(2, b"/q"), None, 0)

    assert offsets(h) == [2]
    assert h.position() == 0

    h.decide(A, Decision.COMMITTED)

    assert offsets(h) == [0, 1]
    assert h.position() == 3


def test_what_is_still_to_be_handed_on_is_unread_or_ready_and_never_what_waits_or_is_over() -> None:
    h = holds()
    assert h.still_to_hand_on(4) == 4
    for offset, capture in enumerate((A, None, None)):
        h.take(message(offset, b"/%d" % offset, capture), SHOP, 0)
    assert h.still_to_hand_on(4) == 2 + 1
    assert h.still_to_hand_on(2) == 1

    assert offsets(h) == [1, 2]

    assert h.still_to_hand_on(4) == 1
    assert h.still_to_hand_on(3) == h.still_to_hand_on(0) == 0
    h.decide(A, Decision.COMMITTED)
    assert h.still_to_hand_on(3) == 1


@pytest.mark.parametrize("part", ["key", "headers"])
@pytest.mark.parametrize("together", [1, 100])
def test_what_is_ready_is_weighed_with_keys_and_headers(part: str, together: int) -> None:
    large = {"key": {"key": b"k" * 1000}, "headers": {"headers": [("ce_subject", b"s" * 1000), ("none", None)]}}[part]
    h = holds()
    for offset in range(100):
        h.take(message(offset)._replace(**large), None, 0)
        if offset % together == together - 1:
            h.ready_bytes()

    assert 100_000 < h.ready_bytes() < 105_000
    h.take_ready(99)
    assert 1000 < h.ready_bytes() < 1050


def test_an_aborted_capture_is_dropped_and_what_waited_behind_it_goes_on() -> None:
    h = holds()
    h.take(message(0, capture=A), SHOP, 0)
    h.take(message(1), None, 0)

    h.decide(A, Decision.ABORTED)

    assert offsets(h) == [1]
    assert h.aborted == 1


def test_two_captures_in_one_lane_keep_their_order_whatever_is_decided_first() -> None:
    h = holds()
    h.take(message(0, capture=A), SHOP, 0)
    h.take(message(1, capture=B), SHOP, 0)

    h.decide(B, Decision.COMMITTED)
    assert offsets(h) == []

    h.decide(A, Decision.COMMITTED)
    assert offsets(h) == [0, 1]


def test_the_first_valid_marker_wins_and_a_contradicting_one_alarms() -> None:
    h = holds()
    h.take(message(0, capture=A), SHOP, 0)

    h.mark(A, Decision.COMMITTED, trusted=True, now=0)
    for decision in (Decision.ABORTED, Decision.ABORTED, Decision.COMMITTED):
        h.mark(A, decision, trusted=True, now=0)

    assert offsets(h) == [0]
    assert h.alarms == 2


def test_an_aborted_marker_is_only_a_reason_to_ask_at_once() -> None:
    h = holds()
    h.take(message(0, capture=A), SHOP, 0)

    h.mark(A, Decision.ABORTED, trusted=False, now=0.5)

    assert h.held == 1
    assert [hold.capture for hold in h.due(0.5)] == [A]


def test_a_marker_is_lacked_only_by_a_capture_of_that_resource_until_any_came() -> None:
    h = holds()
    h.take(message(0, capture=A), SHOP, 0)
    another = ResourceName("shop", "another database under this name")

    assert (h.lacks_marker(A, SHOP), h.lacks_marker(A, another), h.lacks_marker(B, SHOP)) == (True, False, False)

    h.mark(A, Decision.ABORTED, trusted=False, now=0)
    assert not h.lacks_marker(A, SHOP)


def test_the_resource_is_asked_only_after_the_scan_to_the_high_watermark() -> None:
    h = holds()
    h.take(message(0, capture=A), SHOP, 0)
    assert not h.wants_watermark(2.9)
    assert h.wants_watermark(3.0)

    h.scan_to(5, 3.0)
    assert not h.wants_watermark(3.0), "it is asked for once"
    h.take(message(1, b"/q", B), SHOP, 2.5)  # not overdue: its own scan comes later
    h.scan_to(6, 3.0)
    assert [hold.scan_to for hold in h.holds()] == [5, None]
    assert not h.wants_watermark(3.0)
    assert h.due(3.0) == []

    h.read_to = 5
    assert [hold.capture for hold in h.due(3.1)] == [A]
    assert h.due(3.2) == [], "one question at a time"

    h.postpone(A, Waiting.RESOURCE, 4.0)
    assert h.due(4.5) == []
    assert [hold.capture for hold in h.due(5.0)] == [A]


def test_past_the_budget_offsets_are_kept_and_read_again_after_the_outcome() -> None:
    h = holds(limit=25)
    seen = [message(i, capture=A) for i in range(5)]
    for m in seen:
        h.take(m, SHOP, 0)
    h.take(message(5, b"/q"), None, 0)
    assert h.held == 5
    assert offsets(h) == [5]

    h.decide(A, Decision.COMMITTED)
    assert offsets(h) == [0, 1]
    assert h.position() == 2
    ((lane, spilled),) = h.reloads()
    assert (spilled.first, spilled.last, spilled.count) == (2, 4, 3)

    h.reloaded(lane, seen[2:4], read_to=4)
    assert h.position() == 2, "reloaded and not handed on"
    assert offsets(h) == [2, 3]
    assert h.position() == 4, "where the rest of the range begins"
    h.reloaded(lane, [seen[4], message(5, b"/q")], read_to=6)

    assert offsets(h) == [4]
    assert h.held == 0
    assert h.position() == 6


@pytest.mark.parametrize("lost", [1, 2])
def test_a_held_payload_that_left_the_log_is_said_to_be_lost(lost: int) -> None:
    h = holds(limit=0)
    seen = [message(0, capture=A), message(1, capture=A)]
    for one in seen:
        h.take(one, SHOP, 0)
    h.decide(A, Decision.COMMITTED)
    ((lane, _),) = h.reloads()

    with pytest.raises(LookupError, match=f"{lost} held messages"):
        h.reloaded(lane, seen[lost:], read_to=2)


def test_headers_count_too_or_messages_without_a_value_would_be_kept_without_end() -> None:
    h = holds(limit=10_000)
    headers = [("ce_relaycapture", b"0" * 32), ("baggage", b"x" * 1_000), ("empty", None)]
    for n in range(100):
        h.take(message(n, capture=A)._replace(key=None, value=None, headers=headers), SHOP, 0)  # type: ignore[arg-type]

    assert h.held == 100
    h.decide(A, Decision.COMMITTED)
    assert len(h.take_ready(1000)) < 10, "the rest is kept as offsets, and read again"
    assert h.reloads()


def test_an_aborted_capture_past_the_budget_needs_no_second_reading() -> None:
    h = holds(limit=0)
    h.take(message(0, capture=A), SHOP, 0)

    h.decide(A, Decision.ABORTED)

    assert h.reloads() == []
    assert h.held == 0


def test_the_position_never_passes_what_is_ready_and_not_taken() -> None:
    h = holds()
    for i in range(4):
        h.take(message(i), None, 0)

    assert [m.offset for m in h.take_ready(2)] == [0, 1]
    assert h.position() == 2


def lost_to_retention() -> tuple[PartitionHolds, bytes]:
    """Messages 0 to 4 of one lane, payload let go, committed; the log now begins at 3."""
    h = holds(limit=0)
    for i in range(5):
        h.take(message(i, capture=A), SHOP, 0)
    h.take(message(5, b"/q"), None, 0)
    h.decide(A, Decision.COMMITTED)
    ((lane, _),) = h.reloads()
    h.lose(lane, 3)
    return h, lane


def test_a_lane_stops_at_what_left_the_log_and_shows_it_while_others_go_on() -> None:
    h, _ = lost_to_retention()

    assert (h.lost(), h.reloads(), h.held) == ((0, 3), [], 5)
    assert offsets(h) == [5]
    assert h.position() == 0, "the position waits for a person"


def test_what_a_person_lets_go_is_passed_and_counted_and_the_rest_is_read() -> None:
    h, lane = lost_to_retention()
    offsets(h)

    assert h.pass_lost() == 0, "how many is known when the rest was read"
    ((_, spilled),) = h.reloads()
    assert (spilled.first, h.position(), h.lost()) == (3, 3, None)
    assert h.reloaded(lane, [message(3, capture=A), message(4, capture=A)], read_to=5) == 3

    assert offsets(h) == [3, 4]
    assert (h.held, h.position()) == (0, 6)


def test_the_last_of_a_range_is_read_if_it_alone_is_still_there() -> None:
    h = holds(limit=0)
    seen = [message(offset, capture=A) for offset in range(3)]
    for m in seen:
        h.take(m, SHOP, 0)
    h.decide(A, Decision.COMMITTED)
    ((lane, _),) = h.reloads()
    h.lose(lane, 2)

    assert h.pass_lost() == 0
    assert h.reloaded(lane, seen[2:], read_to=3) == 2

    assert offsets(h) == [2]
    assert (h.held, h.position()) == (0, 3)


def test_what_was_dropped_within_a_range_is_not_handed_on_with_it() -> None:
    h = holds(limit=0)
    h.decide(B, Decision.ABORTED)
    seen = [message(0, capture=A), message(1, capture=B), message(2, capture=A)]
    for m in seen:
        h.take(m, SHOP, 0)
    h.decide(A, Decision.COMMITTED)
    ((lane, spilled),) = h.reloads()
    assert (spilled.first, spilled.last, spilled.count) == (0, 2, 2)

    h.reloaded(lane, seen, read_to=3)

    assert offsets(h) == [0, 2]
    assert (h.held, h.aborted, h.position()) == (0, 1, 3)


def test_a_range_that_is_wholly_gone_is_passed_and_what_waits_behind_it_goes_on() -> None:
    h = holds(limit=0)
    h.take(message(0, capture=A), SHOP, 0)
    h.take(message(1, capture=A), SHOP, 0)
    h.take(message(2, capture=B), SHOP, 0)
    h.decide(A, Decision.COMMITTED)
    ((lane, _),) = h.reloads()
    h.lose(lane, 9)
    assert h.lost() == (0, 2)

    assert h.pass_lost() == 2

    assert [hold.capture for hold in h.holds()] == [B]
    assert h.position() == 2


@pytest.mark.parametrize("limit", [0, 20], ids=["kept as a range, too", "kept"])
def test_what_waits_decided_behind_a_range_that_is_wholly_gone_goes_on(limit: int) -> None:
    h = holds(limit=limit)
    filling = [message(0, b"/other", B)] * bool(limit)
    for m in [*filling, message(1, capture=A)]:
        h.take(m, SHOP, 0)
    h.decide(B, Decision.ABORTED)
    h.take(message(2), None, 0)
    h.decide(A, Decision.COMMITTED)
    ((lane, _),) = h.reloads()
    h.lose(lane, 2)

    assert h.pass_lost() == 1

    assert [(one.first, one.last) for _, one in h.reloads()] == ([] if limit else [(2, 2)])
    assert offsets(h) == ([2] if limit else [])


def test_what_is_lost_is_shown_from_the_first_lane_that_stops_to_where_the_last_one_goes_on() -> None:
    h = holds(limit=0)
    for offset, lane in [(0, b"/p"), (1, b"/q"), (2, b"/p"), (3, b"/q")]:
        h.take(message(offset, lane, A), SHOP, 0)
    h.decide(A, Decision.COMMITTED)
    for lane, _ in sorted(h.reloads()):
        h.lose(lane, 9)

    assert h.lost() == (0, 4)


def test_what_only_a_person_can_decide_is_asked_often_enough_to_be_obeyed_soon() -> None:
    h = holds()
    h.take(message(0, capture=A), SHOP, 0)
    now = 0.0
    for _ in range(10):
        h.postpone(A, Waiting.STUCK, now)
        (hold,) = h.holds()
        assert hold.ask_at - now <= 10
        now = hold.ask_at


@pytest.mark.parametrize(
    ("waiting", "waits"),
    [
        (Waiting.UNREACHABLE, [1, 2, 4, 8, 16, 32, 60, 60]),
        (Waiting.STUCK, [1, 2, 4, 8, 10, 10, 10, 10]),
        (Waiting.RESOURCE, [1] * 8),
    ],
)
def test_a_resource_that_does_not_answer_is_asked_ever_less_and_one_that_only_waits_each_second(
    waiting: Waiting, waits: list[float]
) -> None:
    h = holds()
    h.take(message(0, capture=A), SHOP, 0)
    (hold,) = h.holds()

    for wait in waits:
        h.postpone(A, waiting, 100.0)
        assert hold.ask_at == 100.0 + wait

    h.postpone(A, Waiting.RESOURCE, 100.0)
    h.postpone(A, waiting, 100.0)
    assert hold.ask_at == 101.0, "whoever answered is asked soon again"


@pytest.mark.parametrize("limit", [0, 10_000])
def test_an_outcome_is_not_forgotten_while_messages_of_its_capture_wait(limit: int) -> None:
    h = PartitionHolds(PARTITION, 0, HoldBudget(limit), marker_wait_s=3, outcomes_max=3)
    h.take(message(0, capture=A), SHOP, 0)
    for n in range(1, 11):  # each with its marker, behind an earlier capture that nobody decides for long
        capture = n.to_bytes(16, "big")
        h.take(message(n, capture=capture), SHOP, 0)
        h.mark(capture, Decision.COMMITTED, trusted=True, now=0)

    h.decide(A, Decision.COMMITTED)
    while h.reloads():
        ((lane, head),) = h.reloads()
        h.reloaded(lane, [message(head.first, capture=head.capture)], head.last + 1)

    assert h.holds() == [], "nothing is asked for again, least of all of a person"
    assert offsets(h) == list(range(11))
    assert len(h._ended_captures) <= 3


@pytest.mark.parametrize("limit", [0, 10_000])
def test_an_outcome_that_came_before_its_message_is_not_forgotten_while_it_waits(limit: int) -> None:
    h = PartitionHolds(PARTITION, 0, HoldBudget(limit), marker_wait_s=3, outcomes_max=3)
    h.take(message(0, capture=A), SHOP, 0)
    h.decide(B, Decision.COMMITTED)  # decided in another partition, of which it has messages too
    h.take(message(1, capture=B), SHOP, 0)
    for n in range(10):
        h.decide(n.to_bytes(16, "big"), Decision.COMMITTED)

    h.decide(A, Decision.COMMITTED)
    while h.reloads():
        ((lane, head),) = h.reloads()
        h.reloaded(lane, [message(head.first, capture=head.capture)], head.last + 1)

    assert h.holds() == [], "nothing is asked for again, least of all of a person"
    assert offsets(h) == [0, 1]

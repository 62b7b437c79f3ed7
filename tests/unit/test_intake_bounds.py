"""What an intake keeps in mind is bounded, whatever waits in it; what comes behind is read again."""

from __future__ import annotations

import tracemalloc

import pytest
from structlog.testing import capture_logs

from relay.log.ended import Decision
from relay.log.holds import HoldBudget
from relay.log.intake import Intake
from relay.message.record import LogPartition
from tests.unit.test_intake import PLACE, SHOP, TOPIC_ID, Fake, captured, intake, marker


def test_a_new_start_gives_the_bytes_of_holds_back() -> None:
    budget = HoldBudget(1000)
    made = Intake([], "publisher", budget=budget, marker_wait_s=1, askable=frozenset())
    made.start({PLACE: 0}, {"orders": TOPIC_ID})
    made.take([captured(0), captured(1)], 0)
    assert budget.used > 4

    made.start({PLACE: 0}, {"orders": TOPIC_ID})

    assert budget.used == 0


def test_what_comes_behind_too_many_ranges_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.log.intake.RANGES_KEPT", 2)
    monkeypatch.setattr("relay.log.intake.RANGES_LEAST", 2)
    made = Intake([], "publisher", budget=HoldBudget(0), marker_wait_s=1, askable=frozenset({"shop"}))
    made.start({PLACE: 0}, {"orders": TOPIC_ID})
    captures = [bytes([n]) * 16 for n in range(3)]
    held = [captured(n, capture) for n, capture in enumerate(captures)]
    free = Fake(4, [("ce_source", b"/other")])

    made.take([*held, marker(3, None, captures[2]), free], 0)
    assert made.ready() == 0, "nothing overtakes what was not taken in"
    with capture_logs() as logs:
        assert not any(made.go_back() for _ in range(9))
    assert len(logs) == 1, "said once, however often it is asked"
    for capture in captures[:2]:
        made.decide(capture, SHOP, Decision.ABORTED)
    assert made.lanes_blocked() == 0
    made.take([Fake(5, [("ce_source", b"/other")])], 0)
    assert made.ready() == 0, "nor when its lanes are free"
    assert made.positions() == {PLACE: 2}

    assert made.go_back()
    assert made.reached() == {PLACE: 2}
    made.decide(captures[2], SHOP, Decision.COMMITTED)
    made.take([held[2], free], 0)
    assert [message.offset for message in made.take_ready(10)] == [2, 4]


def test_what_is_remembered_of_outcomes_does_not_grow_with_the_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.log.intake.OUTCOMES_REMEMBERED", 40)
    monkeypatch.setattr("relay.log.intake.OUTCOMES_LEAST", 2)
    made = Intake([], "publisher", budget=HoldBudget(10), marker_wait_s=1, askable=frozenset())
    made.start({LogPartition("orders", number): 0 for number in range(10)}, {"orders": TOPIC_ID})

    for number in range(100):
        for held in made.partitions.values():
            held.decide(number.to_bytes(16, "big"), Decision.COMMITTED)

    assert sum(len(held._ended_captures) for held in made.partitions.values()) == 40


def test_what_is_kept_of_ranges_does_not_grow_with_the_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.log.intake.RANGES_KEPT", 40)
    monkeypatch.setattr("relay.log.intake.RANGES_LEAST", 2)
    made = Intake([], "none", budget=HoldBudget(0), marker_wait_s=1, askable=frozenset())
    places = [LogPartition("orders", number) for number in range(10)]
    made.start(dict.fromkeys(places, 0), {"orders": TOPIC_ID})

    for place in places:
        made.take([Fake(n, captured(n).headers(), place=place) for n in range(10)], 0)

    assert made.held() == 40


@pytest.mark.parametrize("order", ["publisher", "key"])
def test_names_of_lanes_and_resources_take_no_memory_past_the_budget(order: str) -> None:
    """Past it only offsets are kept, and a source, a key or a resource's name may be as long as a message."""
    made = intake(order)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for n in range(200):
            long = b"%08d" % n + bytes(100_000)
            named = [("ce_id", b"%d" % n), ("ce_source", long), ("ce_relaycapture", b"%032x" % n), ("ce_relayresource", long + b"/u")]
            made.take([Fake(n, named, key=long)], 0)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made.held() == 200
    assert after - before < 1_000_000

"""Numbers that the documents promise, and that nothing else in the tests would miss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from relay.control.status_reading import StatusReader, _retention
from relay.delivery.queue.mapping import QueueMapping
from relay.message.record import LogPartition
from relay.queue.settings import QueueSettings
from relay.setup.migrate import wanted_topics
from relay.work.subscriber import subscriber
from tests.unit.test_config_check import TEXT, config_of, faults_with, topic
from tests.unit.test_queue_mapping import AUDIENCE, QUEUE, mapped, message

DAY_MS = 86_400_000
NOW = 100 * DAY_MS


def test_a_retry_is_waited_for_up_to_twice_the_longest_pause_and_five_minutes() -> None:
    assert QueueSettings("credit", AUDIENCE, pause_max_ms=7_000).wait_max_ms == 2 * 7_000 + 5 * 60_000


def test_a_message_may_be_delayed_for_a_leap_year() -> None:
    assert mapped(("ce_relaydelay", b"%d" % (366 * DAY_MS))).delay_ms == 366 * DAY_MS
    assert QueueMapping(QUEUE, dict).map([message(("ce_relaydelay", b"%d" % (366 * DAY_MS + 1)))], tuple).rows == []  # type: ignore[arg-type]


def test_a_batch_of_no_given_size_has_up_to_a_hundred_messages() -> None:
    assert subscriber("credit", batch=True)(lambda messages: None).batch == 100
    assert subscriber("credit", batch=7)(lambda messages: None).batch == 7


def test_dead_letters_are_kept_as_long_as_evidence_and_inquiries_for_a_day() -> None:
    config = config_of(TEXT + '[timing]\ndedup_horizon = "7d"\nmonitor_retention = "30d"\n')
    made = {plan.name: plan.settings for plan in wanted_topics(config, {"orders": topic("orders"), "returns": topic("returns")}, 1)}

    kept = {name: made[name]["retention.ms"] for name in ("shop.deadletter", "shop.r.monitor", "shop.inquiries")}
    assert kept == {"shop.deadletter": str(30 * DAY_MS), "shop.r.monitor": str(30 * DAY_MS), "shop.inquiries": str(DAY_MS)}


@pytest.mark.parametrize(("settings", "is_fault"), [({"retention_ms": "60000"}, True), ({"retention_ms": "60001"}, False)])
def test_an_output_keeps_its_records_for_longer_than_the_alarm(settings: dict[str, str], *, is_fault: bool) -> None:
    assert (faults_with(ledger=topic("ledger", **settings)) == ["topic ledger retention.ms"]) is is_fault


@pytest.mark.parametrize(("lag", "is_fault"), [("60000", True), ("60001", False)])
def test_an_output_that_is_compacted_waits_for_longer_than_the_alarm(lag: str, *, is_fault: bool) -> None:
    compacted = topic("ledger", cleanup_policy="compact", min_compaction_lag_ms=lag)

    assert (faults_with(ledger=compacted) == ["topic ledger cleanup.policy"]) is is_fault


class Log:
    """A log of 100 records, of which the first 30 are older than ``since``, and its second partition than anything."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def offsets_at(self, _topic: str, partitions: Iterable[int], since: int) -> dict[int, int | None]:
        self.asked.append(since)
        return {number: None if number else 30 for number in partitions}

    def watermarks(self, _topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        return dict.fromkeys(partitions, (50, 100))


def aged(monkeypatch: pytest.MonkeyPatch, log: Log, settings: Mapping[str, str]) -> dict[LogPartition, int]:
    monkeypatch.setattr("relay.world.clock.wall_ms", lambda: NOW)
    reader: Any = StatusReader.__new__(StatusReader)
    reader._topics, reader._retention = log, {"orders": _retention(settings)}
    ends = {LogPartition("orders", number): 100 for number in range(3)}
    return reader._aged_below(ends, {LogPartition("orders", 0): 10, LogPartition("orders", 1): 99, LogPartition("orders", 2): 100})  # type: ignore[no-any-return]


def test_what_waits_nears_its_retention_when_four_fifths_of_it_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()

    found = aged(monkeypatch, log, {"retention.ms": str(10 * DAY_MS)})

    assert log.asked == [NOW - 8 * DAY_MS]
    assert found == {LogPartition("orders", 0): 30, LogPartition("orders", 1): 100}, "where all is older, all of it; and nothing waits in the third"


def test_of_a_log_that_is_kept_by_size_the_first_fifth_goes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    assert aged(monkeypatch, Log(), {"retention.bytes": "5000", "max.message.bytes": "100"}) == {
        LogPartition("orders", 0): 60,
        LogPartition("orders", 1): 60,
    }
    assert set(aged(monkeypatch, Log(), {"retention.bytes": "5100", "max.message.bytes": "100"}).values()) == {0}, "it is not full yet"
    assert aged(monkeypatch, Log(), {}) == {}

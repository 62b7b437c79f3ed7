"""Markers are written by a thread that nothing ends but its publisher."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from relay.capture.marking import GATHER_S, TRAVELLERS_MAX, TRIES, Ended, Marking
from relay.capture.outcomes import Placed
from relay.kafka.appender import Receipt, Record
from relay.message.envelope import ResourceName
from relay.message.errors import CaptureError, Unreachable
from relay.resources.port import RowLocked
from relay.world import clock, schedule

CANARY = "a canary"


class Faulty:
    """An appender that fails once in a way that nobody foresaw."""

    def __init__(self) -> None:
        self.marking: Marking
        self.appended: list[Record] = []
        self.calls = 0

    def append(self, records: Sequence[Record], _receipt: Receipt, _deadline: float) -> None:
        self.calls += 1
        if self.calls == 1:
            self.marking.submit(ended(2))
            raise ZeroDivisionError(CANARY)
        self.appended += records
        self.marking._stop = True


def ended(number: int) -> Ended:
    return Ended(b"%016d" % number, b"nonce" * 3, [Placed("orders", 0, number, 1)], "i")


def test_what_nobody_foresaw_ends_no_marking_and_is_brought_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schedule, "start_thread", lambda *_: SimpleNamespace())
    appender = Faulty()
    appender.marking = Marking(cast("Any", appender), lambda: cast("Any", None), b"/shop", ResourceName("shop", "u"), 1.0)
    appender.marking.submit(ended(1))

    appender.marking._run()

    assert [record.key for record in appender.appended] == [ended(2).capture]
    assert appender.marking.given_up, "the upkeep brings the first again"
    assert "ZeroDivisionError" in caplog.text
    assert CANARY not in caplog.text


class Slow:
    """Decision rows of a database that has time for so many in one statement."""

    def __init__(self, able: int) -> None:
        self.able = able
        self.marked: list[bytes] = []

    def mark(self, captures: Sequence[bytes]) -> None:
        if len(captures) > self.able:
            raise Unreachable("canceling statement due to statement timeout")
        self.marked += captures

    def close(self) -> None:
        pass


class Acknowledging:
    """An appender whose brokers acknowledge at once."""

    def append(self, records: Sequence[Record], receipt: Receipt, _deadline: float) -> None:
        for _ in records:
            receipt.told(None, None)


def test_captures_that_gathered_while_the_database_was_away_are_noted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "start_thread", lambda *_: SimpleNamespace())
    database = Slow(3_000)
    marking = Marking(cast("Any", Acknowledging()), lambda: cast("Any", database), b"/shop", ResourceName("shop", "u"), 1.0)
    for number in range(20_000):
        marking.submit(ended(number))

    for _ in range(10):
        marking.run_once()
        marking._noted_at -= 1.0

    assert sorted(database.marked) == [ended(number).capture for number in range(20_000)]
    assert marking.backlog == 0


class Reporting(Acknowledging):
    """An appender whose brokers report when they are told to."""

    def __init__(self) -> None:
        self.receipts: list[Receipt] = []

    def append(self, records: Sequence[Record], receipt: Receipt, _deadline: float) -> None:
        self.receipts.append(receipt)


def test_only_what_the_log_has_acknowledged_is_noted_as_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "start_thread", lambda *_: SimpleNamespace())
    log, database = Reporting(), Slow(10)
    marking = Marking(cast("Any", log), lambda: cast("Any", database), b"/shop", ResourceName("shop", "u"), 1.0)
    marking._closing = True
    marking.submit(ended(1))

    for report in (None, KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)):
        marking.run_once()
        if report is not None:
            log.receipts[-1].told(report, None)
        marking.run_once()
        assert database.marked == []
    marking.run_once()
    assert len(log.receipts) == 2, "it is written once more"
    log.receipts[-1].told(None, None)
    marking.run_once()

    assert database.marked == [ended(1).capture]
    assert marking.backlog == 0


def test_what_could_not_be_noted_is_noted_at_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "start_thread", lambda *_: SimpleNamespace())
    failures: list[Exception] = [RowLocked("another writer holds the file"), Unreachable("away")]
    database = Slow(10)
    mark = database.mark

    def fails_first(captures: Sequence[bytes]) -> None:
        if failures:
            raise failures.pop(0)
        mark(captures)

    monkeypatch.setattr(database, "mark", fails_first)
    marking = Marking(cast("Any", Acknowledging()), lambda: cast("Any", database), b"/shop", ResourceName("shop", "u"), 1.0)
    marking.submit(ended(1))
    for _ in range(4):
        marking.run_once()
        marking._noted_at -= 1.0
        marking._leave_behind(float("inf"))

    assert database.marked == [ended(1).capture]
    assert marking.backlog == 0


class Noting:
    """An appender that notes which captures' markers it was given, in which calls, and how long each might wait."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.calls: list[list[bytes]] = []
        self.waits: list[float] = []

    def append(self, records: Sequence[Record], _receipt: Receipt, deadline: float) -> None:
        self.calls.append([record.key for record in records if record.key])
        self.waits.append(deadline - clock.monotonic())
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def noting() -> Noting:
    return Noting()


class Now:
    """The monotonic clock, standing still."""

    seconds = 1000.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    standing = Now()
    monkeypatch.setattr(clock, "monotonic", lambda: standing.seconds)
    return standing


@pytest.fixture
def marking(noting: Noting, now: Now, monkeypatch: pytest.MonkeyPatch) -> Marking:
    monkeypatch.setattr(schedule, "start_thread", lambda *_: SimpleNamespace())
    return Marking(cast("Any", noting), lambda: cast("Any", None), b"/shop", ResourceName("shop", "u"), 1.0)


def test_a_marker_travels_with_the_next_messages_to_its_partition(marking: Marking, noting: Noting) -> None:
    marking.submit(ended(1))
    marking.submit(ended(2)._replace(placed=[Placed("orders", 7, 2, 1)]))

    marking.send_with([("orders", 1), ("payments", 0)])
    assert noting.calls == []
    marking.send_with([("orders", 0)])
    assert noting.calls == [[ended(1).capture]]
    assert noting.waits == [0.0], "the lock of all appends is held meanwhile"
    marking.send_with([("orders", 0)])
    assert len(noting.calls) == 1


def test_a_marker_goes_at_once_where_none_was_sent_lately(marking: Marking, noting: Noting, now: Now) -> None:
    marking.submit(ended(1))
    marking.run_once()
    assert noting.calls == [[ended(1).capture]]

    marking.submit(ended(2))
    marking.run_once()
    assert len(noting.calls) == 1, "where they come fast it waits for company"
    now.seconds += 2 * GATHER_S
    marking.submit(ended(3))
    marking.run_once()
    assert noting.calls[1:] == [[ended(2).capture, ended(3).capture]]


def test_a_marker_that_no_messages_take_along_goes_by_itself(marking: Marking, noting: Noting, now: Now) -> None:
    marking._sent_at = now.seconds + GATHER_S  # the others are sent all the time
    marking.submit(ended(1))
    now.seconds += GATHER_S / 2
    marking.submit(ended(2)._replace(placed=[Placed("orders", 7, 2, 1)]))
    marking.run_once()
    assert noting.calls == []

    now.seconds += GATHER_S / 2
    marking.run_once()
    assert noting.calls == [[ended(1).capture]]
    marking._closing = True
    marking.run_once()
    assert noting.calls == [[ended(1).capture], [ended(2).capture]]


def test_a_capture_in_several_partitions_is_marked_in_one_go(marking: Marking, noting: Noting) -> None:
    marking.submit(ended(1)._replace(placed=[Placed("orders", 0, 1, 1), Placed("orders", 1, 1, 1)]))

    marking.send_with([("orders", 0), ("orders", 1)])
    marking.run_once()

    assert noting.calls == [[ended(1).capture] * 2]


def test_what_an_earlier_process_left_does_not_travel(marking: Marking, noting: Noting) -> None:
    left = [ended(number) for number in range(TRAVELLERS_MAX + 1)]
    for one in left:
        marking.submit(one)

    marking.send_with([("orders", 0)])
    assert noting.calls == [], "a capture would wait for all of them"
    marking.run_once()
    assert noting.calls == [[one.capture for one in left]]


@pytest.mark.parametrize(
    ("failure", "sent"), [(CaptureError("the producer's queue stays full"), 2), (ZeroDivisionError(CANARY), 1)]
)
def test_a_marker_that_cannot_travel_fails_no_capture(
    marking: Marking, noting: Noting, failure: Exception, sent: int
) -> None:
    noting.failure = failure
    marking.submit(ended(1))

    marking.send_with([("orders", 0)])

    noting.failure = None
    marking.run_once()
    assert noting.calls == [[ended(1).capture]] * sent
    assert marking.given_up == (sent == 1), "what nobody foresaw is brought again by the upkeep"


def test_taking_a_capture_runs_no_code_that_an_interrupt_would_leave_locked(marking: Marking) -> None:
    """An event's lock, given back in Python, stays held for ever when a signal's handler raises just before."""
    entered: set[str] = set()
    sys.settrace(lambda frame, _event, _argument: entered.add(frame.f_code.co_filename))
    try:
        marking.submit(ended(1))
        marking._wake()
    finally:
        sys.settrace(None)

    assert not [name for name in entered if name.endswith("threading.py")]
    assert any(name.endswith("marking.py") for name in entered)


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_that_the_log_does_not_take_is_tried_a_few_times_and_left_to_the_upkeep(
    now: Now, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    monkeypatch.setattr(schedule, "start_thread", lambda *_: SimpleNamespace())
    log = Noting(CaptureError("the log takes nothing"))
    marking = Marking(cast("Any", log), lambda: cast("Any", None), b"/shop", ResourceName("shop", "u"), 1.0)
    marking.submit(ended(1) if committed else ended(1)._replace(nonce=None))

    for _ in range(50):
        now.seconds += 60.0
        marking.run_once()

    assert log.calls == [[ended(1).capture]] * (TRIES + 1)
    assert marking.given_up is committed, "of an aborted one the log's readers find out by themselves"
    assert marking.backlog == 0

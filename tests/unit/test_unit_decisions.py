"""Decisions of units without a database: the first commit stands, an abort closes one run, absence says nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from relay.capture.decisions import (
    Attempt,
    UnitDecision,
    UnitDecisions,
    batch_unit,
    decode_decision,
    encode_decision,
    named_unit,
    standing,
    unit_called,
    unit_of,
)
from relay.capture.outcomes import encode_marker, marker_headers
from relay.capture.resolver import Resolution, State
from relay.kafka.decisions import DecisionLog
from relay.log.holds import HoldBudget
from relay.log.intake import Intake
from relay.message.envelope import CAPTURE, RESOURCE, ResourceName
from relay.message.errors import Unreachable
from relay.message.identity import capture_id
from relay.message.record import LogPartition
from relay.run.units import AskingUnits
from tests.unit.test_intake import Fake

UNIT = batch_unit("q", 7)
MINE, OTHER = b"m" * 16, b"o" * 16


def attempt(nonce: bytes) -> Attempt:
    return Attempt(nonce, 3, (LogPartition("orders", 0), LogPartition("orders", 2), LogPartition("bills", 1)))


def commit(nonce: bytes, run: str = "a") -> UnitDecision:
    return UnitDecision(UNIT, run, True, (attempt(nonce),))


def folded(*decisions: UnitDecision) -> UnitDecisions:
    made = UnitDecisions()
    for decision in decisions:
        made.add(decision)
    return made


def test_a_decision_is_read_as_it_was_written() -> None:
    written = UnitDecision(UNIT, "a", True, (attempt(MINE), attempt(OTHER)), previous=12, at=99, why="it was told")

    key, value = encode_decision(written)

    assert key == b"q/7"
    assert decode_decision(value) == written
    assert decode_decision(b"else") is None
    assert decode_decision(None) is None
    assert written.rows == 6


def test_a_unit_is_found_again_by_its_name() -> None:
    assert unit_called("q/7") == UNIT
    assert unit_called("load/2026-11-21") == named_unit("load/2026-11-21")
    assert unit_called("load") == named_unit("load")
    for name in ("load/٣", "load/03", "load/+3", "load/²", f"load/{10**18}"):
        assert unit_called(name) == named_unit(name), "relay unit would close another one"


def test_a_write_whose_name_ends_in_other_digits_is_no_batch_of_a_query() -> None:
    decisions = UnitDecisions()
    decisions.add(UnitDecision(named_unit("load/٣"), "run", committed=True))
    assert not decisions.has_batches_of("load")

    decisions.add(UnitDecision(batch_unit("load", 3), "run", committed=True))
    assert [decisions.has_batches_of("load", behind=number) for number in (2, 3)] == [True, False]


def test_an_aborted_marker_of_a_unit_is_only_a_reason_to_ask() -> None:
    intake = Intake([], "none", budget=HoldBudget(1 << 20), marker_wait_s=60, askable=frozenset())
    place = LogPartition("orders", 0)
    intake.start({place: 0}, {"orders": b"i" * 16})
    capture, resource = capture_id(MINE), UNIT.resource("run")
    headers = [(CAPTURE, capture.hex().encode()), (RESOURCE, resource.encode())]
    intake.take([Fake(0, headers)], 0)

    intake.take([Fake(1, marker_headers(capture, b"/s", resource), encode_marker(capture, None, None, []), capture)], 0)

    assert intake.partitions[place].held == 1
    assert [hold.capture for hold in intake.due(0)] == [capture]


def test_a_unit_has_one_commit_and_a_run_one_abort() -> None:
    abort = UnitDecision(UNIT, "a", False)

    assert standing([], UNIT, "a") is None
    assert standing([abort], UNIT, "b") is None
    assert standing([abort], UNIT, "a") == abort
    assert standing([commit(MINE), abort], UNIT, "a") == commit(MINE)
    assert standing([commit(MINE)], UNIT, "b") == commit(MINE), "a batch that is run again finds it, under a run of its own"
    assert standing([abort, commit(MINE, "b")], UNIT, "a") == commit(MINE, "b")
    assert standing([commit(MINE)], batch_unit("q", 8), "a") is None


def test_the_messages_of_an_attempt_end_as_the_decision_lists() -> None:
    decided = folded(commit(MINE))

    assert decided.resolve(capture_id(MINE), "q/7", "a") == Resolution(State.COMMITTED, MINE)
    assert decided.resolve(capture_id(OTHER), "q/7", "b").state is State.ABORTED
    assert decided.resolve(capture_id(OTHER), "q/8", "a").state is State.UNDECIDED


def test_an_abort_closes_its_own_run_only() -> None:
    decided = folded(UnitDecision(UNIT, "a", False))

    assert decided.resolve(capture_id(MINE), "q/7", "a").state is State.ABORTED
    assert decided.resolve(capture_id(OTHER), "q/7", "b").state is State.UNDECIDED


def test_a_second_commit_changes_nothing_and_is_counted() -> None:
    decided = folded(commit(MINE), commit(OTHER, "b"))

    assert decided.contradictions == 1
    assert decided.resolve(capture_id(MINE), "q/7", "a").state is State.COMMITTED
    assert decided.resolve(capture_id(OTHER), "q/7", "b").state is State.ABORTED


def test_a_commit_behind_the_abort_of_its_run_changes_nothing_and_is_counted() -> None:
    decided = folded(UnitDecision(UNIT, "a", False), commit(MINE), commit(OTHER, "b"))

    assert decided.contradictions == 1
    assert decided.resolve(capture_id(MINE), "q/7", "a").state is State.ABORTED
    assert decided.resolve(capture_id(OTHER), "q/7", "b").state is State.COMMITTED


def test_what_contradicts_is_not_kept() -> None:
    decided = UnitDecisions()
    for offset, decision in enumerate([commit(MINE), commit(OTHER, "b"), commit(OTHER, "b")]):
        decided.add(decision, offset)
    assert len(decided) == 1

    decided.forget_below(3)

    assert len(decided) == 0
    assert decided.resolve(capture_id(MINE), "q/7", "a").state is State.UNDECIDED


def test_a_query_has_batches_once_one_of_its_own_is_committed() -> None:
    assert folded(commit(MINE)).has_batches_of("q")
    assert not folded(commit(MINE)).has_batches_of("another")
    assert not folded(UnitDecision(UNIT, "a", False)).has_batches_of("q")
    assert not folded(UnitDecision(named_unit("q/x"), "a", True, (attempt(MINE),))).has_batches_of("q")


def test_batches_behind_one_are_those_of_greater_numbers() -> None:
    known = folded(*(UnitDecision(batch_unit("q", number), "a", True, (attempt(MINE),)) for number in (9, 10)))

    assert known.has_batches_of("q", behind=9)
    assert not known.has_batches_of("q", behind=10)


def test_the_resource_of_a_message_names_its_unit() -> None:
    named = ResourceName.decode(named_unit("load/2026/11").resource("run").encode())

    assert named is not None
    assert unit_of(named) == "load/2026/11"
    assert named.uuid == "run"
    assert unit_of(ResourceName("shop", "uuid")) is None


class Database:
    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def resolve(self, captures: Sequence[tuple[bytes, ResourceName]]) -> dict[bytes, Resolution]:
        self.asked += [capture for capture, _ in captures]
        return {capture: Resolution(State.COMMITTED) for capture, _ in captures}


class Log:
    def __init__(self, *decisions: UnitDecision) -> None:
        self.found = folded(*decisions)
        self.away = False

    def decisions(self) -> UnitDecisions:
        if self.away:
            raise Unreachable("the brokers are away")
        return self.found


def test_only_units_are_asked_for_in_the_decisions_and_nothing_is_decided_when_those_cannot_be_read() -> None:
    database, log = Database(), Log(commit(MINE))
    asks = AskingUnits(database, lambda: log)  # type: ignore[arg-type,return-value]
    asked = [(capture_id(MINE), UNIT.resource("a")), (b"d" * 16, ResourceName("shop", "uuid"))]

    both = asks.resolve(asked)
    log.away = True
    away = asks.resolve(asked)

    assert [both[capture].state for capture, _ in asked] == [State.COMMITTED, State.COMMITTED]
    assert away[capture_id(MINE)].state is State.UNREACHABLE
    assert database.asked == [b"d" * 16] * 2


class Topic:
    """The topic of decisions, with a reader that is asked for both ends and for what is committed."""

    def __init__(self) -> None:
        self.records: list[Fake] = []
        self.low = 0
        self.asked: list[tuple[int, int]] = []

    def write(self, decision: UnitDecision) -> None:
        self.records.append(Fake(len(self.records), None, encode_decision(decision)[1]))

    def watermarks(self, _: LogPartition) -> tuple[int, int]:
        return self.low, len(self.records)

    def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[list[Fake]]:
        ((first, end),) = ranges.values()
        self.asked.append((first, end))
        yield self.records[first:end]


def test_what_has_left_the_topic_is_forgotten_and_the_rest_stands() -> None:
    topic: Any = Topic()
    log = DecisionLog(lambda _: topic, "shop")
    for number in range(1000):
        unit = batch_unit("q", number)
        topic.write(UnitDecision(unit, "a", committed=False))
        topic.write(UnitDecision(unit, "b", True, (attempt(MINE),)))
        topic.write(UnitDecision(unit, "a", committed=False))
        topic.low = max(0, len(topic.records) - 30)
        log.decisions()

    known = log.decisions()
    assert len(known) == 30
    assert len(list(known.captures())) == 10
    assert known.resolve(capture_id(MINE), "q/999", "b").state is State.COMMITTED
    assert known.resolve(capture_id(OTHER), "q/999", "a").state is State.ABORTED
    topic.low = len(topic.records) - 1
    left = log.decisions()
    assert left.resolve(capture_id(OTHER), "q/999", "a").state is State.ABORTED, "its last closing is still there"
    topic.low = len(topic.records)
    assert log.decisions().resolve(capture_id(OTHER), "q/999", "a").state is State.UNDECIDED
    assert len(left) == 0


def test_where_kafka_went_back_what_was_decided_since_is_undecided_again() -> None:
    topic: Any = Topic()
    log = DecisionLog(lambda _: topic, "shop")
    topic.write(UnitDecision(batch_unit("q", 0), "a", True, (attempt(MINE),)))
    log.decisions()
    topic.write(UnitDecision(batch_unit("q", 1), "a", True, (attempt(MINE),)))
    log.decisions()

    del topic.records[1:]
    assert log.decisions().resolve(capture_id(MINE), "q/1", "a").state is State.UNDECIDED
    topic.write(UnitDecision(batch_unit("q", 1), "b", True, (attempt(OTHER),)))
    topic.write(UnitDecision(batch_unit("q", 2), "b", True, (attempt(OTHER),)))

    known = log.decisions()
    assert known.resolve(capture_id(OTHER), "q/1", "b").state is State.COMMITTED
    assert known.resolve(capture_id(MINE), "q/0", "a").state is State.COMMITTED
    assert known.contradictions == 0


@pytest.mark.parametrize("cut_to", [0, 1, 2])
def test_where_kafka_went_back_and_has_grown_beyond_before_anybody_asks_what_stands_there_now_counts(cut_to: int) -> None:
    topic: Any = Topic()
    log = DecisionLog(lambda _: topic, "shop")
    for number in range(3):
        topic.write(UnitDecision(batch_unit("q", number), "a", True, (attempt(MINE),)))
    log.decisions()

    del topic.records[cut_to:]
    for number in range(cut_to, 5):
        topic.write(UnitDecision(batch_unit("q", number), "b", True, (attempt(OTHER),)))

    known = log.decisions()
    states = [known.resolve(capture_id(OTHER), f"q/{number}", "b").state for number in range(5)]
    assert states == [State.ABORTED] * cut_to + [State.COMMITTED] * (5 - cut_to)
    assert known.contradictions == 0
    assert log.decisions().resolve(capture_id(OTHER), "q/4", "b").state is State.COMMITTED


def test_what_was_read_is_known_although_the_last_of_it_has_left_the_topic() -> None:
    topic: Any = Topic()
    log = DecisionLog(lambda _: topic, "shop")
    topic.write(UnitDecision(batch_unit("q", 0), "a", True, (attempt(MINE),)))
    log.decisions()
    topic.write(UnitDecision(batch_unit("q", 1), "a", True, (attempt(MINE),)))
    topic.low = 1

    assert log.decisions().resolve(capture_id(MINE), "q/1", "a").state is State.COMMITTED
    assert topic.asked == [(0, 1), (1, 2)]

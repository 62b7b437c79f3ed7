"""Answering inquiries: what whoever may write the topic of inquiries can ask for, and what it cannot hold up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from relay.capture import inquiries
from relay.capture.inquiries import Answering, Inquiry, decode_inquiry, encode_inquiry
from relay.capture.outcomes import decode_marker
from relay.kafka.appender import Receipt, Record
from relay.message.envelope import ResourceName
from relay.message.errors import CaptureError
from relay.message.record import LogPartition
from relay.resources.port import DecisionRow, RowLocked
from relay.world import clock

SHOP = ResourceName("shop", "uuid")


class Topic:
    def __init__(self) -> None:
        self.asked: list[Inquiry] = []

    def poll(self) -> list[tuple[bytes | None, bytes | None]]:
        found, self.asked = self.asked, []
        return [encode_inquiry(inquiry) for inquiry in found]

    def close(self) -> None:
        pass


class Log:
    """Takes records for "orders"; every other topic refuses them."""

    partitions = 2

    def __init__(self) -> None:
        self.records: list[Record] = []

    def topic(self, _name: str) -> Log:
        return self

    def append(self, records: list[Record], receipt: Receipt, _deadline: float) -> None:
        for record in records:
            if record.topic != "orders":
                raise CaptureError("refused")
            self.records.append(record)
            receipt.told(None, None)


class Table:
    """Says of all that they are aborted; some row may have kept its nonce."""

    def read(self, captures: list[bytes]) -> dict[bytes, DecisionRow]:
        return {capture: DecisionRow(False, b"n" * 16, proved=False) for capture in captures}


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def answering(topic: Topic, log: Log) -> Answering:
    given: Any = log
    return Answering(lambda: topic, given, b"/a", SHOP, 0.1)


def ask(number: int, *places: LogPartition) -> Inquiry:
    return Inquiry(number.to_bytes(16, "big"), SHOP, list(places), "relay")


def table() -> Any:
    return Table()


def test_what_cannot_be_answered_does_not_keep_the_place_of_what_can(
    topic: Topic, log: Log, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inquiries, "WAITING_MAX", 3)
    topic.asked = [ask(n, LogPartition("elsewhere", 0)) for n in range(3)]
    answering.turn(table)
    topic.asked = [ask(7, LogPartition("orders", 1))]
    answering.turn(table)
    assert [(record.key, record.partition) for record in log.records] == [(ask(7).capture, 1)]


def test_a_partition_that_cannot_be_is_passed_over(topic: Topic, log: Log, answering: Answering) -> None:
    topic.asked = [ask(1, LogPartition("orders", -1), LogPartition("orders", 0), LogPartition("orders", 2))]
    answering.turn(table)
    assert [record.partition for record in log.records] == [0]


def test_each_who_asks_about_a_capture_is_answered_where_it_reads(
    topic: Topic, log: Log, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.asked = [ask(1, LogPartition("orders", 1)), ask(1, LogPartition("orders", 0)), ask(1, LogPartition("orders", 1))]
    answering.turn(table)
    assert sorted(record.partition for record in log.records) == [0, 1]

    monkeypatch.setattr(inquiries, "PLACES_MAX", 1)
    topic.asked = [ask(2, LogPartition("orders", 1)), ask(2, LogPartition("orders", 0))]
    answering.turn(table)
    assert [record.partition for record in log.records[2:]] == [0]


class Held:
    """Decision rows of which some are held by open blocks: a question about one of those waits a second."""

    def __init__(self, held: int, wait: Callable[[float], None]) -> None:
        self.held = {number.to_bytes(16, "big") for number in range(held)}
        self._wait = wait

    def read(self, captures: list[bytes]) -> dict[bytes, DecisionRow]:
        """Nothing is decided; after ``abort_if_undecided`` one is asked for alone, and aborted by then."""
        return {} if len(captures) > 1 else {capture: DecisionRow(False, None, proved=False) for capture in captures}

    def abort_if_undecided(self, capture: bytes) -> None:
        if capture in self.held:
            self._wait(1.0)
            raise RowLocked("held")


def test_blocks_that_are_open_hold_up_neither_the_upkeep_nor_the_answers_about_others(
    topic: Topic, log: Log, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: passed[0])
    table: Any = Held(60, lambda seconds: passed.__setitem__(0, passed[0] + seconds))
    topic.asked = [ask(number, LogPartition("orders", 0)) for number in range(61)]

    answering.turn(lambda: table)
    first = passed[0]
    for _ in range(15):
        answering.turn(lambda: table)

    assert first <= 10.0, "the upkeep has more to do"
    assert [record.key for record in log.records] == [ask(60).capture]


def test_only_the_database_that_a_capture_names_is_asked_and_only_for_what_lies_under_its_own_key(
    topic: Topic, log: Log, answering: Answering
) -> None:
    place = LogPartition("orders", 0)
    copied = Inquiry(ask(1).capture, ResourceName("shop", "a copy's"), [place], "relay")
    topic.asked = [copied, ask(2, place)]
    answering.turn(table)

    assert [record.key for record in log.records] == [ask(2).capture]
    key, value = encode_inquiry(ask(3, place))
    assert decode_inquiry(key, value) == ask(3, place)
    assert decode_inquiry(ask(4).capture, value) is decode_inquiry(key, b"else") is decode_inquiry(None, value) is None


def test_what_is_aborted_is_never_answered_with_a_nonce_which_would_prove_a_commit(
    topic: Topic, log: Log, answering: Answering
) -> None:
    topic.asked = [ask(1, LogPartition("orders", 0))]
    answering.turn(table)

    (record,) = log.records
    marker = decode_marker(record.key, record.value, record.headers)
    assert marker is not None
    assert (marker.committed, marker.nonce) == (False, None)


def test_no_more_inquiries_are_kept_than_there_is_room_for(
    topic: Topic, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inquiries, "WAITING_MAX", 3)
    asked: list[int] = []

    class Open(Held):
        def read(self, captures: list[bytes]) -> dict[bytes, DecisionRow]:
            asked.append(len(captures))
            return super().read(captures)

    blocks: Any = Open(5, lambda _: None)
    for numbers in (range(2), range(5)):
        topic.asked = [ask(number, LogPartition("orders", 0)) for number in numbers]
        answering.turn(lambda: blocks)

    assert [count for count in asked if count > 1] == [2, 3]

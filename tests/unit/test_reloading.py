"""What was let go while it was held is read again: each piece of the log once, whoever waits for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Self

import pytest

from relay.log.ended import Decision
from relay.log.holds import HoldBudget
from relay.log.intake import Intake
from relay.message.record import LogMessage, LogPartition
from relay.run import reloading
from relay.run.reloading import Reloading
from tests.unit.test_intake import PLACE, SHOP, Fake

CAPTURES = [b"A" * 16, b"B" * 16]


class FakeReader:
    """A reader of the same records, which counts what it is asked for."""

    reads = widest = 0

    def __init__(self, records: list[Fake]) -> None:
        self._records = records

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def watermarks(self, _: LogPartition) -> tuple[int, int]:
        return 0, len(self._records)

    def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[list[Fake]]:
        ((place, (low, end)),) = ranges.items()
        FakeReader.reads += 1
        FakeReader.widest = max(FakeReader.widest, end - low)
        found = [one for one in self._records if one.partition() == place.partition and low <= one.offset() < end]
        for first in range(0, len(found), 100):
            yield found[first : first + 100]


def record(offset: int, key: int, value: bytes = b"v") -> Fake:
    """Of two captures in turn, in the lane of ``key``."""
    capture = CAPTURES[offset % 2].hex().encode()
    headers: list[tuple[str, bytes | None]] = [("ce_relaycapture", capture), ("ce_relayresource", SHOP.encode())]
    return Fake(offset, headers, value, key=b"%d" % key)


@pytest.mark.parametrize(("lanes", "limit"), [(300, 0), (1, 0), (7, 0), (7, 40)])
def test_a_piece_is_read_once_for_all_lanes_and_ranges_in_it(lanes: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading, "OFFSETS_PER_PIECE", 100)
    records = [record(n, n % lanes) for n in range(300)]
    intake = Intake([], "key", budget=HoldBudget(limit), marker_wait_s=3, askable=frozenset({"shop"}))
    intake.start({PLACE: 0}, {"orders": b"i" * 16})
    intake.take(records, 0.0)
    for capture in CAPTURES:
        intake.decide(capture, SHOP, Decision.COMMITTED)
    one = Reloading(lambda: FakeReader(records))
    FakeReader.reads = FakeReader.widest = 0

    for _ in range(3):
        one.turn(intake, 1000, 1 << 20)

    assert FakeReader.reads <= 3
    assert FakeReader.widest <= 100
    assert one.lost == intake.held() == 0
    found = intake.take_ready(1000)
    assert sorted(message.offset for message in found) == list(range(300))
    for lane in range(lanes):
        offsets = [message.offset for message in found if message.lane == b"%d" % lane]
        assert offsets == sorted(offsets)


def test_a_turn_that_has_its_fill_leaves_the_other_partitions_to_the_next() -> None:
    places = [PLACE, LogPartition(PLACE.topic, PLACE.partition + 1)]
    records = [Fake(n, record(0, 0).headers(), place=place) for place in places for n in range(10)]
    intake = Intake([], "partition", budget=HoldBudget(0), marker_wait_s=3, askable=frozenset({"shop"}))
    intake.start(dict.fromkeys(places, 0), {"orders": b"i" * 16})
    intake.take(records, 0.0)
    intake.decide(CAPTURES[0], SHOP, Decision.COMMITTED)
    one = Reloading(lambda: FakeReader(records))

    one.turn(intake, 5, 1 << 20)
    assert intake.ready() == 10
    one.turn(intake, 5, 1 << 20)
    assert intake.ready() == 20


@pytest.mark.parametrize("low", [1, 3])
def test_what_has_left_the_log_is_passed_at_a_persons_word_and_never_before(low: int) -> None:
    records = [Fake(n, record(0, 0).headers()) for n in range(10)]
    intake = Intake([], "partition", budget=HoldBudget(0), marker_wait_s=3, askable=frozenset({"shop"}))
    intake.start({PLACE: 0}, {"orders": b"i" * 16})
    intake.take(records, 0.0)
    intake.decide(CAPTURES[0], SHOP, Decision.COMMITTED)
    asked: list[tuple[LogPartition, int, int]] = []
    told: list[bool] = []

    class Shorter(FakeReader):
        def watermarks(self, _: LogPartition) -> tuple[int, int]:
            return low, 10

    def may_pass(place: LogPartition, first: int, following: int) -> bool:
        asked.append((place, first, following))
        return bool(told)

    one = Reloading(lambda: Shorter(records[low:]), may_pass)
    for _ in range(3):
        one.turn(intake, 100, 1 << 20)
    assert (intake.ready(), one.lost, intake.positions()[PLACE]) == (0, 0, 0)
    assert set(asked) == {(PLACE, 0, low)}

    told.append(True)
    one.turn(intake, 100, 1 << 20)
    assert [message.offset for message in intake.take_ready(100)] == list(range(low, 10))
    assert (one.lost, intake.positions()[PLACE]) == (low, 10)


@pytest.mark.parametrize("part", ["value", "headers"])
def test_large_messages_are_read_again_a_few_at_a_time(part: str) -> None:
    large = b"v" * 100_000
    records = [record(n, n % 7, large if part == "value" else b"v") for n in range(2000)]
    for one_record in records if part == "headers" else ():
        one_record.headers().append(("ce_subject", large))
    intake = Intake([], "key", budget=HoldBudget(1 << 20), marker_wait_s=3, askable=frozenset({"shop"}))
    intake.start({PLACE: 0}, {"orders": b"i" * 16})
    intake.take(records, 0.0)
    for capture in CAPTURES:
        intake.decide(capture, SHOP, Decision.COMMITTED)
    one = Reloading(lambda: FakeReader(records))
    found: list[LogMessage] = []

    while intake.held() or intake.ready():
        for _ in range(3):
            one.turn(intake, 100_000, 1 << 24)
        ready = sum(message.size for message in intake.partitions[PLACE].ready)
        assert 0 < ready <= 1 << 26, "it goes on, and a destination that waits fills no memory"
        found += intake.take_ready(10)

    assert sorted(message.offset for message in found) == list(range(2000))
    for lane in range(7):
        offsets = [message.offset for message in found if message.lane == b"%d" % lane]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("length", [10, 50_000])
def test_a_lane_is_one_and_keeps_its_order_however_long_its_name_is(length: int) -> None:
    names = [bytes(length) + b"%d" % n for n in range(2)]
    headers: list[tuple[str, bytes | None]] = [("ce_relaycapture", CAPTURES[0].hex().encode()), ("ce_relayresource", SHOP.encode())]
    records = [Fake(0, headers, key=names[0]), Fake(1, key=names[1]), Fake(2, key=names[0]), Fake(3, key=names[1])]
    intake = Intake([], "key", budget=HoldBudget(0), marker_wait_s=3, askable=frozenset({"shop"}))
    intake.start({PLACE: 0}, {"orders": b"i" * 16})
    intake.take(records, 0.0)
    assert [message.offset for message in intake.take_ready(10)] == [1, 3]

    intake.decide(CAPTURES[0], SHOP, Decision.COMMITTED)
    Reloading(lambda: FakeReader(records)).turn(intake, 100, 1 << 20)

    assert [message.offset for message in intake.take_ready(10)] == [0, 2]
    assert intake.positions()[PLACE] == 4

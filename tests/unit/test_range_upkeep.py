"""Ranges over time: marks say nothing of what is still under way, and what is written again goes a few at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from relay.delivery import numbering
from relay.delivery.numbering import HORIZON_S, MARKS_PER_HORIZON, ROOM_PERIOD_S, RangeUpkeep, kept_rows
from relay.message.numbers import Number
from relay.message.record import LogPartition
from relay.monitor.ranges import Closing, Closings, RangeKey, RangeLimits, Standing, decode_value, note
from tests.memory_index import memory_index

KEYS = [RangeKey("orders", b"/shop", b"%d" % n) for n in range(5)]


class Ports:
    """The monitor ends at 50, whenever it is asked."""

    asked = 0

    @contextmanager
    def reader(self, *, committed: bool) -> Iterator[Any]:
        yield self

    def watermarks(self, _: LogPartition) -> tuple[int, int]:
        self.asked += 1
        return 0, 50


def view(limits: RangeLimits | None = None) -> Any:
    made = SimpleNamespace(partition=0, index=memory_index(0))
    made.index.ranges.limits = limits or RangeLimits()
    closings: Closings = {}
    for key in KEYS:
        note(closings, key.topic, Number(key.source, key.incarnation, 1), 0)
    made.index.ranges.close(closings)
    return made


def test_what_was_closed_since_the_last_mark_may_not_be_entered_yet_and_is_left_to_the_next() -> None:
    one, ports = view(), Ports()
    upkeep = RangeUpkeep(ports, "monitor", HORIZON_S)  # type: ignore[arg-type]
    one.index.ranges.is_complete_from(100)
    found = []
    for mark in range(3):
        upkeep.tend(mark * HORIZON_S / MARKS_PER_HORIZON, [one], ["orders"])
        upkeep.tend(mark * HORIZON_S / MARKS_PER_HORIZON, [one], ["orders"])
        found.append((one.index.ranges.standing(KEYS[0], 1), ports.asked))

    assert found == [(Standing.CONFLICT, 0), (Standing.CONFLICT, 1), (Standing.AGED, 2)]


def test_what_is_written_again_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "REWRITTEN_AT_ONCE", 3)
    one = view()
    upkeep = RangeUpkeep(Ports(), "monitor", HORIZON_S)  # type: ignore[arg-type]

    found = upkeep.due(HORIZON_S, [one])
    one.index.ranges.wrote(found[0], HORIZON_S)
    rest = upkeep.due(HORIZON_S, [one])

    assert (len(found[0]), len(rest[0])) == (3, 2)


def test_while_there_is_no_room_the_log_is_not_asked_with_every_turn() -> None:
    one, ports = view(RangeLimits(incarnations=len(KEYS))), Ports()
    upkeep = RangeUpkeep(ports, "monitor", HORIZON_S)  # type: ignore[arg-type]
    asked = []
    for now in (0.0, 1.0, ROOM_PERIOD_S - 1, ROOM_PERIOD_S):
        assert upkeep.tend(now, [one], ["orders"]).get(0, []) == []
        asked.append(ports.asked)

    assert asked == [1, 1, 1, 2]


def test_whoever_was_forgotten_and_publishes_again_keeps_its_row() -> None:
    ranges = memory_index(0).ranges

    closes = {0: {KEYS[0]: Closing([7], seen=9)}}
    rows = kept_rows({0: ranges}, closes, {0: KEYS[:2]}, {}, 0.0, worker="w", topics=["orders"])

    kept, dropped = sorted(rows, key=lambda row: row.state is None)
    assert (decode_value(kept.state or b"").key, dropped.state) == (KEYS[0], None)
    assert kept.publisher != dropped.publisher

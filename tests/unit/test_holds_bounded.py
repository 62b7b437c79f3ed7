"""Holds within their bounds: whatever may be kept, every lane's committed messages come once, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.log.ended import Decision
from relay.log.holds import HoldBudget, PartitionHolds, Spilled
from relay.message.envelope import ResourceName
from relay.message.numbers import NumberRun
from relay.message.record import LogMessage, LogPartition

SHOP = ResourceName("shop", "u")
CAPTURES = [bytes([n]) * 16 for n in range(5)]
Marker = tuple[bytes, Decision]


def message(offset: int, lane: bytes, capture: bytes | None) -> LogMessage:
    digest = offset.to_bytes(16, "big")
    return LogMessage("orders", 0, offset, None, b"x" * 10, [], digest, b"c" * 8, lane, capture, 0)


def log_of(drawn: list[tuple[int, int]], order: list[int], aborted: set[int]) -> list[LogMessage | Marker]:
    """Messages as (lane, capture or none), then each capture's marker somewhere behind its last message."""
    log: list[LogMessage | Marker] = []
    left = {n: sum(capture == n for _, capture in drawn) for n in range(len(CAPTURES))}
    late = list(order)
    for lane, capture in drawn:
        log.append(message(len(log), b"%d" % lane, CAPTURES[capture] if capture < len(CAPTURES) else None))
        if capture in left:
            left[capture] -= 1
        while late and not left[late[0]]:
            n = late.pop(0)
            log.append((CAPTURES[n], Decision.ABORTED if n in aborted else Decision.COMMITTED))
    return log


@dataclass
class Reader:
    """Reads a log on into holds, goes back when told to, and reads again what is asked for, as the worker does."""

    log: list[LogMessage | Marker]
    holds: PartitionHolds
    found: list[LogMessage] = field(default_factory=list)
    gone_back: int = 0
    at: int = 0
    position: int = 0

    def step(self, piece: int) -> None:
        self.gone_back += self.holds.go_back()
        self.at = min(self.at, self.holds.read_to)
        for offset in range(self.at, min(self.at + piece, len(self.log))):
            self._one(offset)
        self.at = min(self.at + piece, len(self.log))
        for lane, spilled in self.holds.reloads():
            again = [m for m in self.log[spilled.first : spilled.last + 1] if isinstance(m, LogMessage)]
            assert self.holds.reloaded(lane, again, spilled.last + 1) == 0
        ready = self.holds.take_ready(1000)
        assert all(m.offset >= self.position for m in ready), "the position passes nothing that was not handed on"
        self.found += ready
        assert self.holds.position() >= self.position, "nor does it go back"
        self.position = self.holds.position()
        self._is_counted()

    def _is_counted(self) -> None:
        """What the holds keep count of is what their lanes have."""
        items = [item for lane in self.holds._lanes.values() for item in lane]
        assert self.holds.held == sum(item.count if isinstance(item, Spilled) else 1 for item in items)
        firsts = [item.first if isinstance(item, Spilled) else item.offset for item in [*items, *self.holds.ready]]
        until = self.holds.read_to if self.holds.untaken_from is None else self.holds.untaken_from
        assert self.holds.position() == min([*firsts, until])

    def _one(self, offset: int) -> None:
        entry = self.log[offset]
        if isinstance(entry, LogMessage):
            self.holds.take(entry, SHOP if entry.capture else None, 0.0)
        else:
            self.holds.read_to = offset + 1
            self.holds.mark(*entry, trusted=True, now=0.0)
        self._is_counted()

    def is_over(self) -> bool:
        return self.at == len(self.log) and self.holds.untaken_from is None and not self.holds.held


DRAWN = st.lists(st.tuples(st.integers(0, 4), st.integers(0, len(CAPTURES))), max_size=40)


@settings(max_examples=400)
@given(
    drawn=DRAWN,
    order=st.permutations(range(len(CAPTURES))),
    aborted=st.sets(st.integers(0, len(CAPTURES) - 1)),
    bytes_kept=st.sampled_from([0, 25, 1000]),
    ranges_max=st.integers(1, 3),
    piece=st.integers(1, 7),
)
def test_every_lane_comes_once_and_in_order(
    drawn: list[tuple[int, int]], order: list[int], aborted: set[int], bytes_kept: int, ranges_max: int, piece: int
) -> None:
    log = log_of(drawn, order, aborted)
    holds = PartitionHolds(LogPartition("orders", 0), 0, HoldBudget(bytes_kept), 3.0, 3, ranges_max)
    reader = Reader(log, holds)

    for _ in range(50 * (len(log) + 1)):
        if reader.is_over():
            break
        reader.step(piece)
    assert reader.is_over(), "it ends once everything is decided"

    gone = {CAPTURES[n] for n in aborted}
    for lane in range(5):
        wanted = [m for m in log if isinstance(m, LogMessage) and m.lane == b"%d" % lane and m.capture not in gone]
        assert [m.offset for m in reader.found if m.lane == b"%d" % lane] == [m.offset for m in wanted]
    assert holds.position() == len(log)
    assert holds._budget.used == holds._ranges == 0


@pytest.mark.parametrize("lanes", [1, 100])
def test_the_number_of_ranges_is_bounded(lanes: int) -> None:
    holds = PartitionHolds(LogPartition("orders", 0), 0, HoldBudget(0), 3.0, ranges_max=10)

    for n in range(1000):  # a capture for each, so that no two share a range
        holds.take(message(n, b"%d" % (n % lanes), n.to_bytes(16, "big")), SHOP, 0.0)

    assert holds.held == 10
    assert holds.lanes_blocked <= 10
    assert len(holds.holds()) <= 11
    assert (holds.position(), holds.untaken_from, holds.read_to) == (0, 10, 1000)
    assert not holds.go_back(), "not before half of them are gone"

    for n in range(5):
        holds.decide(n.to_bytes(16, "big"), Decision.ABORTED)

    assert holds.go_back()
    assert (holds.untaken_from, holds.read_to) == (None, 10)


def test_numbers_of_a_capture_that_was_not_taken_in_are_not_claimed_by_its_marker() -> None:
    holds = PartitionHolds(LogPartition("orders", 0), 0, HoldBudget(0), 3.0, ranges_max=1)
    run = NumberRun(b"/shop", b"i" * 8, 1, 1)
    for n in range(3):
        holds.take(message(n, b"%d" % n, CAPTURES[n]), SHOP, 0.0)

    holds.mark(CAPTURES[2], Decision.ABORTED, trusted=False, now=0.0, claims=[run])

    assert holds.take_aborted().claims == [], "whose word it is, is known when its messages have been read"

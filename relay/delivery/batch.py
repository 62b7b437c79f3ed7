"""What the worker hands to a destination, and what it learns back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from relay.log.anchor import Anchor
from relay.log.holds import Aborted
from relay.message.record import LogMessage, LogPartition


@dataclass(slots=True)
class Batch:
    """Messages in delivery order with the position that holds once they have their effect.

    ``first`` and ``positions`` name every partition of the assignment: the range [first, position) is what this
    batch moves, equal where nothing moved. ``reached`` is where the reader stands: above the position lie messages
    that were handed on although an earlier one is held. ``membership`` is the group metadata captured with the batch.
    ``meanwhile`` may be called again and again while the destination waits: the worker reads ahead a little in it and
    says whether it found anything. ``numbered`` is False only if there is certainly no captured message; ``aborted``
    are numbers that close with it without a message. ``anchors`` say which record lies below a position, where one is
    known. With ``replays`` all messages are dead ones that a person has redriven, each by its digest with the number of
    this redrive, and were judged by their entries; such a batch moves no position.
    """

    generation: int
    messages: list[LogMessage]
    first: Mapping[LogPartition, int]
    positions: Mapping[LogPartition, int]
    reached: Mapping[LogPartition, int]
    membership: bytes
    meanwhile: Callable[[], bool] | None = None
    numbered: bool = True
    aborted: Mapping[LogPartition, Aborted] = field(default_factory=dict)
    anchors: Mapping[LogPartition, Anchor] = field(default_factory=dict)
    replays: Mapping[bytes, int] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """What became of messages; added up per worker."""

    delivered: int = 0
    duplicates: int = 0
    conflicts: int = 0
    dead: int = 0
    transactions: int = 0
    recoveries: int = 0
    settled: int = 0
    resent: int = 0
    told: int = 0
    causes: dict[str, int] = field(default_factory=dict)

    def died(self, code: str) -> None:
        """Count a dead letter under its cause."""
        self.dead += 1
        self.causes[code] = self.causes.get(code, 0) + 1

    def add(self, other: Counts) -> None:
        """Add what a batch that took effect has counted."""
        self.delivered += other.delivered
        self.duplicates += other.duplicates
        self.conflicts += other.conflicts
        self.dead += other.dead
        self.told += other.told
        for code, count in other.causes.items():
            self.causes[code] = self.causes.get(code, 0) + count

"""The ledger: which messages the log holds, each once, and which of them their publisher took back.

Built from the log alone. A message without a capture counts at once; one of a capture waits for its outcome.
Records of one identity are one message, the first of the first partition; memory is 170 to 210 bytes a message, and up to
100 more where a table knows messages by something else, or where one lies in two partitions. ``tests/unit/test_audit_memory.py`` holds it down.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from relay.message.record import LogPartition


class Outcome(Enum):
    """How a capture ended, as far as the evidence goes."""

    COMMITTED = "committed"
    ABORTED = "aborted"


class Place(NamedTuple):
    """Where a record lies."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class Fact(NamedTuple):
    """One record of the log: ``lane`` orders it, ``content`` tells other content, ``match`` finds it in a table.

    ``shared`` names the row that a table keeps of it and of others, where it keeps one row of several messages.
    """

    partition: int
    offset: int
    digest: bytes
    lane: bytes
    content: int
    match: bytes | None
    shared: bytes | None = None


class Ledger:
    """Messages by digest; row ``i`` of the columns belongs to the i-th digest of ``index``."""

    def __init__(self, partitions: Sequence[LogPartition], *, matches: bool = False) -> None:
        self.partitions = list(partitions)
        self.index: dict[bytes, int] = {}
        self.matches: dict[bytes, int] = {}
        """What a destination knows a message by, where that is not the digest."""
        self.namesakes: dict[bytes, list[int]] = {}
        self.sharing: dict[bytes, list[int]] = {}
        """The messages of one row, where there are several."""
        self.nameless: set[int] = set()
        self.lane = array("i")
        self.content = array("I")
        self.offset = array("q")
        self.partition = array("i")
        self.aborted: dict[bytes, tuple[int, int]] = {}
        self.undecided: dict[bytes, tuple[int, int]] = {}
        self.refused: dict[bytes, bytes] = {}
        """Digests of aborted and undecided messages by what a destination would know them by."""
        self.repeats = 0
        self.conflicts: list[Place] = []
        self.conflict_count = 0
        self.scattered: set[int] = set()
        """The messages in more than one partition: which of their records a delivery was of, and so their order, nothing tells."""
        self.astray: list[Place] = []
        self.astray_count = 0
        self._matching = matches
        self._shared: dict[bytes, int] = {}
        self._lanes: dict[tuple[int, bytes], int] = {}
        self._held: dict[bytes, list[Fact]] = {}
        self._resources: dict[bytes, bytes] = {}
        self._committed: set[bytes] = set()
        self._hints: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.index)

    def add(self, fact: Fact) -> None:
        """Take a message that counts: without a capture, or of a committed one."""
        partition, offset, digest, lane, content, match, shared = fact
        row = self.index.get(digest)
        if row is not None:
            self._repeat(row, fact)
            return
        row = self.index[digest] = len(self.offset)
        self.lane.append(self._lane(partition, lane))
        self.content.append(content)
        self.offset.append(offset)
        self.partition.append(partition)
        if self._matching:
            self._name(row, digest if match == digest else match)  # one object for both
        if shared is not None and (first := self._shared.setdefault(shared, row)) != row:
            self.sharing.setdefault(shared, [first]).append(row)

    def hold(self, fact: Fact, capture: bytes, resource: bytes) -> None:
        """Take a message of a capture; it counts when the capture is known to be committed."""
        if capture in self._committed:
            self.add(fact)
        else:
            self._held.setdefault(capture, []).append(fact)
            self._resources.setdefault(capture, resource)

    def marker(self, capture: bytes, outcome: Outcome) -> None:
        """Take an outcome marker; a committed one must have been checked against its nonce, an aborted one is a hint."""
        if outcome is Outcome.ABORTED:
            self._hints.add(capture)
            return
        self._committed.add(capture)
        for fact in self._held.pop(capture, ()):
            self.add(fact)

    def open_captures(self) -> dict[bytes, bytes]:
        """Return the captures that no valid committed marker has decided, with the resource each names."""
        return {capture: self._resources[capture] for capture in self._held}

    def hints(self, capture: bytes) -> bool:
        """Is there an aborted marker, which anyone may have written?"""
        return capture in self._hints

    def decide(self, outcomes: Iterable[tuple[bytes, Outcome | None]]) -> None:
        """Close the held captures; None is undecided. A digest that counts through another record stays captured."""
        refused: list[tuple[Fact, dict[bytes, tuple[int, int]]]] = []
        for capture, outcome in outcomes:
            facts = self._held.pop(capture, [])
            if outcome is Outcome.COMMITTED:
                for fact in facts:
                    self.add(fact)
            else:
                into = self.aborted if outcome is Outcome.ABORTED else self.undecided
                refused += [(fact, into) for fact in facts]
        for fact, into in refused:
            if fact.digest not in self.index:
                into.setdefault(fact.digest, (fact.partition, fact.offset))
                self.refused.setdefault(fact.match or fact.digest, fact.digest)

    def place(self, row: int) -> Place:
        """Return where the first record of a message lies."""
        return self.place_of(self.partition[row], self.offset[row])

    def place_of(self, partition: int, offset: int) -> Place:
        """Return a record's place; ``partition`` counts the ledger's own partitions."""
        name = self.partitions[partition]
        return Place(name.topic, name.partition, offset)

    def _repeat(self, row: int, fact: Fact) -> None:
        self.repeats += 1
        here, first = (fact.partition, fact.offset), (self.partition[row], self.offset[row])
        if fact.content != self.content[row]:
            self.conflict_count += 1
            self.conflicts.append(self.place_of(*max(here, first)))
            del self.conflicts[5:]
        if fact.partition != self.partition[row]:
            self.scattered.add(row)
            self.astray_count += 1
            self.astray.append(self.place_of(*max(here, first)))
            del self.astray[5:]
        if here < first:
            # It waited for its capture's outcome, or partitions are read side by side: chance must not choose.
            (self.partition[row], self.offset[row]), self.content[row] = here, fact.content
            self.lane[row] = self._lane(fact.partition, fact.lane)

    def _lane(self, partition: int, lane: bytes) -> int:
        return self._lanes.setdefault((partition, lane), len(self._lanes))

    def _name(self, row: int, match: bytes | None) -> None:
        if match is None:
            self.nameless.add(row)
        elif match in self.matches:
            self.namesakes.setdefault(match, [self.matches[match]]).append(row)
        else:
            self.matches[match] = row

"""Captures without a database: a unit of work has one decision, which lists the attempts whose messages count.

Each attempt draws a nonce of its own and its messages carry the capture id made of it, so holds and markers are those
of any capture. A committed decision is final; an aborted one closes one run of the unit, and another may commit
(design section 4).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from relay.capture.resolver import Resolution, State
from relay.message.envelope import ResourceName
from relay.message.errors import Stopped
from relay.message.identity import NONCE_BYTES, capture_id
from relay.message.record import LogPartition
from relay.message.schemas import OtherVersion, UnknownRecord, codec

PREFIX: Final = "decisions:"
"""What a message names as its resource begins so; no configured resource's name has a colon."""
NO_PREVIOUS: Final = -1
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,17}")
"""As ``batch_unit`` writes it: other digits, and leading zeros, are of a name."""
_COMMITTED: Final = "COMMITTED"
_ABORTED: Final = "ABORTED"


class Unit(NamedTuple):
    """A piece of work that takes effect once, however often it is run; ``ordinal`` never descends within a writer."""

    writer: str
    name: str
    ordinal: int = 0

    @property
    def is_named(self) -> bool:
        """Has its user named it, so that it is no batch of the query which may have the same name?"""
        return self.name == self.writer

    def resource(self, run: str) -> ResourceName:
        """Return what the messages of one run of this unit name as their resource."""
        return ResourceName(PREFIX + self.name, run)


def batch_unit(query: str, batch: int) -> Unit:
    """Return the unit of a streaming query's micro-batch; the query decides its batches one after the other."""
    return Unit(query, f"{query}/{batch}", batch)


def named_unit(name: str) -> Unit:
    """Return the unit of a batch write that its user has named."""
    return Unit(name, name)


def unit_called(name: str) -> Unit:
    """Return the unit that messages call so."""
    query, _, batch = name.rpartition("/")
    return batch_unit(query, int(batch)) if query and _NUMBER.fullmatch(batch) else named_unit(name)


def unit_of_writer(name: str, writer: str) -> Unit | None:
    """Return the unit of this name as this writer decides it; None if another one does."""
    return next((unit for unit in (named_unit(name), unit_called(name)) if unit.writer == writer), None)


def unit_of(resource: ResourceName) -> str | None:
    """Return the unit's name if the decisions topic decides for this resource, else None."""
    return resource.name.removeprefix(PREFIX) if resource.name.startswith(PREFIX) else None


class Attempt(NamedTuple):
    """One task's completed attempt: its secret, and the log partitions in which its messages lie, acknowledged."""

    nonce: bytes
    rows: int
    places: tuple[LogPartition, ...]

    @property
    def capture(self) -> bytes:
        """The capture id that its messages carry."""
        return capture_id(self.nonce)


@dataclass(frozen=True, slots=True)
class UnitDecision:
    """How one run of a unit ended. ``previous`` is the offset of the writer's decision before, ``at`` wall time in ms,
    ``why`` the words of a person who closed the run."""

    unit: Unit
    run: str
    committed: bool
    attempts: tuple[Attempt, ...] = ()
    previous: int = NO_PREVIOUS
    at: int = 0
    why: str | None = None

    @property
    def rows(self) -> int:
        """How many messages count."""
        return sum(attempt.rows for attempt in self.attempts)

    @property
    def topics(self) -> list[str]:
        """The topics in which they may lie, each once."""
        return sorted({place.topic for attempt in self.attempts for place in attempt.places})


def encode_decision(decision: UnitDecision) -> tuple[bytes, bytes]:
    """Return key and value of a decision's record."""
    unit = decision.unit
    record = {
        "writer": unit.writer,
        "unit": unit.name,
        "ordinal": unit.ordinal,
        "run": decision.run,
        "outcome": _COMMITTED if decision.committed else _ABORTED,
        "attempts": [
            {"nonce": one.nonce, "rows": one.rows, "places": _by_topic(one.places)}
            for one in decision.attempts
        ],
        "previous": decision.previous,
        "at": decision.at,
        "why": decision.why,
    }
    return unit.name.encode(), codec("decision").encode(record)


def decode_decision(value: bytes | None) -> UnitDecision | None:
    """Return the decision that a record holds; None for anything else. Raises OtherVersion."""
    try:
        record = codec("decision").decode(value or b"")
    except OtherVersion:
        raise  # passed over, a unit that it has committed would be decided once more
    except UnknownRecord:
        return None
    attempts = tuple(
        Attempt(
            one["nonce"],
            one["rows"],
            tuple(
                LogPartition(place["topic"], number)
                for place in one["places"]
                for number in place["partitions"]
            ),
        )
        for one in record["attempts"]
    )
    unit = Unit(record["writer"], record["unit"], record["ordinal"])
    committed = record["outcome"] == _COMMITTED
    return UnitDecision(unit, record["run"], committed, attempts, record["previous"], record["at"], record["why"])


def unit_in_key(key: bytes | None) -> str | None:
    """Return the name of the unit that a record is about, whatever version wrote it; None if its key is no name."""
    try:
        return (key or b"").decode() or None
    except UnicodeDecodeError:
        return None


def standing(known: Iterable[UnitDecision], unit: Unit, run: str) -> UnitDecision | None:
    """Return the decision that leaves this run nothing to decide: the unit's commit, else the run's own abort."""
    closed = None
    for decision in known:
        if decision.unit.name == unit.name:
            if decision.committed:
                return decision
            if decision.run == run:
                closed = decision
    return closed


class UnitDecisions:
    """Every decision that the topic holds, for whoever holds messages. Of each unit only what answers a question is kept.

    Whoever asks for a unit of which another version wrote, before anything that stands, gets Stopped.
    """

    def __init__(self) -> None:
        self._unread: dict[str, tuple[int, str]] = {}
        self._committed: dict[str, bytes] = {}
        self._closed: dict[tuple[str, str], int] = {}
        self._kept: deque[tuple[int, UnitDecision]] = deque()
        self.contradictions = 0

    def __len__(self) -> int:
        """How many decisions are kept."""
        return len(self._kept)

    def add(self, decision: UnitDecision, offset: int = 0) -> None:
        """Take a decision in the order of the topic: the first commit of a unit stands."""
        name = decision.unit.name
        if name in self._unread:
            return  # what cannot be read may be the commit that stands
        if not decision.committed:
            self._closed[name, decision.run] = offset
        elif name in self._committed or (name, decision.run) in self._closed:
            self.contradictions += 1
            return
        else:
            self._committed[name] = b"".join(attempt.nonce for attempt in decision.attempts)
        self._kept.append((offset, replace(decision, attempts=())))

    def add_unread(self, name: str, why: str, offset: int = 0) -> None:
        """Take what another version wrote of a unit: what stood before stands, and nobody knows what else does."""
        if name not in self._committed:
            self._unread.setdefault(name, (offset, why))

    def forget_below(self, low: int) -> None:
        """Let go of what has left the topic: it is kept for longer than the messages that anybody may ask about."""
        while self._kept and self._kept[0][0] < low:
            offset, decision = self._kept.popleft()
            closed = decision.unit.name, decision.run
            if decision.committed:
                del self._committed[decision.unit.name]
            elif self._closed.get(closed) == offset:
                del self._closed[closed]
        for name in [name for name, (offset, _) in self._unread.items() if offset < low]:
            del self._unread[name]

    def has_batches_of(self, query: str, *, behind: int = -1) -> bool:
        """Has a batch of this query been committed that comes behind the one of this number?"""

        def is_behind(name: str) -> bool:
            unit = unit_called(name)
            return unit.writer == query and not unit.is_named and unit.ordinal > behind

        if any(is_behind(name) for name in self._committed):
            return True
        self._stop_over(name for name in self._unread if is_behind(name))
        return False

    def captures(self) -> Iterator[bytes]:
        """Yield the capture ids of every attempt that counts."""
        self._stop_over(self._unread)
        for nonces in self._committed.values():
            for first in range(0, len(nonces), NONCE_BYTES):
                yield capture_id(nonces[first : first + NONCE_BYTES])

    def resolve(self, capture: bytes, unit: str, run: str) -> Resolution:
        """Say how the messages of one attempt ended. Absence of a decision says nothing, however long it lasts."""
        nonces = self._committed.get(unit)
        if nonces is None:
            if (unit, run) in self._closed:
                return Resolution(State.ABORTED, detail=f"run {run} of unit {unit} was closed")
            self._stop_over((unit,))
            return Resolution(State.UNDECIDED, detail=f"unit {unit} has no decision yet")
        for first in range(0, len(nonces), NONCE_BYTES):
            nonce = nonces[first : first + NONCE_BYTES]
            if capture_id(nonce) == capture:
                return Resolution(State.COMMITTED, nonce)
        return Resolution(State.ABORTED, detail=f"unit {unit} was decided without this attempt")

    def _stop_over(self, units: Iterable[str]) -> None:
        for name in units:
            if name in self._unread:
                raise Stopped(self._unread[name][1])


def _by_topic(places: Sequence[LogPartition]) -> list[dict[str, object]]:
    topics: dict[str, list[int]] = {}
    for place in places:
        topics.setdefault(place.topic, []).append(place.partition)
    return [{"topic": topic, "partitions": sorted(numbers)} for topic, numbers in topics.items()]

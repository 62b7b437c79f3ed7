"""The in-doubt list: what was attempted from the committed position on and is not proven, since when and why.

A transaction that is sealed or settled leaves nothing in doubt: what it attempted has an entry that counts, or was
found not to have happened. What remains are the transactions that are open, were aborted, or have no seal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from relay.message.record import LogPartition
from relay.monitor.entries import Begin


class Why(Enum):
    """Why a message is in doubt, the gravest last."""

    ABORTED = "its delivery transaction was aborted and is not settled yet: the next owner delivers it"
    OPEN = "its delivery transaction is open: a worker is at it, or the broker ends it at its timeout"
    UNSEALED = "its delivery transaction has no seal: the next owner asks the outputs and settles it"
    UNREADABLE = "its delivery transaction has no seal and the outputs cannot tell any more: a person must decide"

    @property
    def needs_person(self) -> bool:
        """Can no evidence decide any more?"""
        return self is Why.UNREADABLE


@dataclass(frozen=True, slots=True)
class Attempt:
    """A begun delivery transaction that is neither sealed nor settled; ``since_ms`` is its begin's wall time."""

    begin: Begin
    since_ms: int
    why: Why


@dataclass(frozen=True, slots=True)
class Doubt:
    """Offsets of one log partition from ``first`` up to but not including ``next``: all alike, none proven.

    ``worker`` and ``n`` name the gravest attempt at them, ``since_ms`` is the first attempt's wall time. Among the
    offsets may be some that were never attempted: markers, and messages that are held or belong to aborted captures.
    """

    place: LogPartition
    first: int
    next: int
    since_ms: int
    why: Why
    worker: str
    n: int

    @property
    def offsets(self) -> int:
        """How many offsets."""
        return self.next - self.first


_GRAVITY = {why: rank for rank, why in enumerate(Why)}


def in_doubt(
    positions: Mapping[LogPartition, int],
    attempts: Iterable[Attempt],
    proven: Mapping[LogPartition, Collection[int]],
) -> list[Doubt]:
    """Return what is in doubt, by partition and offset.

    ``positions`` are the committed ones (a partition without one is read from 0), ``proven`` the log offsets whose
    entries count.
    """
    named: dict[LogPartition, list[tuple[int, int, Attempt]]] = {}
    for attempt in attempts:
        for one in attempt.begin.inputs:
            place = LogPartition(one.topic, one.partition)
            first = max(one.first, positions.get(place, 0))
            if first < one.next:
                named.setdefault(place, []).append((first, one.next, attempt))
    found: list[Doubt] = []
    for place in sorted(named):
        known = sorted(proven.get(place, ()))
        for doubt in _attributed(place, named[place]):
            found.extend(_without(doubt, known))
    return found


def _attributed(place: LogPartition, spans: list[tuple[int, int, Attempt]]) -> Iterator[Doubt]:
    """Cut overlapping attempts where their offsets begin and end; each piece has its first and its gravest one."""
    edges = sorted({edge for first, following, _ in spans for edge in (first, following)})
    last: Doubt | None = None
    for first, following in pairwise(edges):
        over = [attempt for low, high, attempt in spans if low <= first and following <= high]
        if not over:
            continue
        gravest = max(over, key=lambda attempt: (_GRAVITY[attempt.why], attempt.since_ms, attempt.begin.n))
        since = min(attempt.since_ms for attempt in over)
        piece = Doubt(
            place, first, following, since, gravest.why, gravest.begin.transactional_id, gravest.begin.n
        )
        if last is not None and last.next == first and replace(piece, first=last.first) == replace(last, next=following):
            last = replace(last, next=following)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def _without(doubt: Doubt, proven: list[int]) -> Iterator[Doubt]:
    at = doubt.first
    for offset in proven[bisect_left(proven, doubt.first) : bisect_left(proven, doubt.next)]:
        if offset > at:
            yield replace(doubt, first=at, next=offset)
        at = offset + 1
    if at < doubt.next:
        yield replace(doubt, first=at)

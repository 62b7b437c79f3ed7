"""Publisher ranges: which numbers of an incarnation are closed, in constant size and for as long as it lives.

A number is closed when its message has its effect (or is dead, or a proven repeat), or was aborted by its capture's
outcome. A number proves nothing alone: inside the horizon the digest decides, and an unknown digest under a closed
number is another message, a conflict. Only where the entry has provably left the monitor does the number decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from relay.message.numbers import Number, NumberRun
from relay.message.schemas import UnknownRecord, codec
from relay.monitor.runs import Runs, is_increasing

MARKS_MAX: Final = 16
"""Marks kept for one incarnation: the horizon is known to about a sixteenth of itself."""
_NONE: Final = -1
_LENGTH_BYTES: Final = 4


class RangeKey(NamedTuple):
    """Whose numbers: they count per log topic and partition, and a ``Ranges`` is of one partition number."""

    topic: str
    source: bytes
    incarnation: bytes


class Mark(NamedTuple):
    """The entries of the closed numbers ``first`` to ``last`` lie below this monitor offset."""

    below: int
    first: int
    last: int


def thinned(marks: list[Mark]) -> list[Mark]:
    """Return marks without the one that tells least, if they are too many."""
    if len(marks) <= MARKS_MAX:
        return marks
    width = [after.below - before.below for before, after in zip(marks, marks[2:], strict=False)]
    least = 1 + min(range(len(width)), key=width.__getitem__)
    return [*marks[:least], *marks[least + 1 :]]


class Standing(Enum):
    """What the ranges say of a message whose digest is unknown."""

    OPEN = "its number is not closed"
    AGED = "its number was closed, and the entry has left the monitor since"
    CONFLICT = "its number is closed, and nothing shows that it was this message"


@dataclass(frozen=True, slots=True)
class RangeLimits:
    """Bounds for one log partition: incarnations that are followed, and runs (gaps and one) kept for each."""

    incarnations: int = 10_000
    gaps: int = 64


@dataclass(frozen=True, slots=True)
class RangeEntry:
    """A range as it is written; the fields are those of ``schemas/monitor_range.avsc``."""

    worker: str
    instance: bytes
    n: int
    topic: str
    source: bytes
    incarnation: bytes
    closed: list[int]
    closing: list[int]
    claimed: list[int]
    marks: list[int]
    seen: int

    @property
    def key(self) -> RangeKey:
        """Whose numbers these are."""
        return RangeKey(self.topic, self.source, self.incarnation)


@dataclass(slots=True)
class Closing:
    """What one batch closes of one incarnation: ``numbers`` in delivery order, runs that a marker claims."""

    numbers: list[int] = field(default_factory=list)
    claimed: list[int] = field(default_factory=list)
    seen: int = _NONE


Closings = dict[RangeKey, Closing]


@dataclass(slots=True)
class _Range:
    closed: Runs = field(default_factory=Runs)
    claimed: Runs = field(default_factory=Runs)
    marks: list[Mark] = field(default_factory=list)
    candidate: tuple[int, int] | None = None
    seen: int = _NONE
    written_at: float = float("-inf")

    def close(self, flat: Sequence[int], claimed: Sequence[int], seen: int, gaps: int) -> None:
        self.closed.update(flat)
        if claimed:
            self.claimed.update(claimed)
        if len(self.claimed):
            # A marker is a stranger's word at worst: it may only fill a gap that the log itself has gone past, since
            # numbers are given in the order of the log. Otherwise it could close what is not even published yet.
            self.closed.update(self.claimed.take_below(self.closed.highest))
            self.claimed.drop_highest(gaps)
        if len(self.closed) > gaps:
            self.closed.shorten(gaps)
        self.seen = max(self.seen, seen)

    def mark(self, monitor_end: int, *, exact: bool) -> None:
        """Note that what was closed at the last call (with ``exact``: now) is entered below ``monitor_end``."""
        found = self.closed.lowest_run if exact else self.candidate
        self.candidate = self.closed.lowest_run
        if found is None or (self.marks and self.marks[-1][1:] == found):
            return
        self.marks = thinned([*self.marks, Mark(monitor_end, *found)])

    def is_aged(self, number: int, complete_from: int) -> bool:
        return any(one.below <= complete_from and one.first <= number <= one.last for one in self.marks)

    def restore(self, entry: RangeEntry, gaps: int) -> None:
        self.close(entry.closed, entry.claimed, entry.seen, gaps)
        flat = entry.marks
        self.marks = sorted({Mark(*flat[i : i + 3]) for i in range(0, len(flat) - 2, 3)} | set(self.marks))
        while len(self.marks) > MARKS_MAX:
            self.marks = thinned(self.marks)  # the newest alone would not tell what has aged


class Ranges:
    """The ranges of one monitor partition, in the order in which they were last written.

    ``complete_from`` is the monitor offset from which on every entry is in the deduplication index; None: unknown,
    so nothing is known to have aged. Past the bound new incarnations are not followed, which is ``refused``: their
    repeats are known by the digest alone.
    """

    def __init__(self, limits: RangeLimits | None = None) -> None:
        self.limits = limits or RangeLimits()
        self.complete_from: int | None = None
        self.refused = 0
        self._by_key: dict[RangeKey, _Range] = {}
        self._changed: set[RangeKey] = set()

    def __len__(self) -> int:
        """How many incarnations are followed."""
        return len(self._by_key)

    @property
    def is_full(self) -> bool:
        """Is the bound on incarnations reached?"""
        return len(self._by_key) >= self.limits.incarnations

    def is_complete_from(self, monitor_low: int, *, has_gap: bool = False) -> None:
        """The index is filled from this monitor offset on; it keeps what ages out of the monitor afterwards.

        ``has_gap``: some of what lay below was never read, and has left the monitor.
        """
        known = self.complete_from
        self.complete_from = monitor_low if known is None or has_gap else min(known, monitor_low)

    def is_complete_only_from(self, monitor_offset: int) -> None:
        """Entries below this monitor offset, which have left the monitor, were let go of."""
        if self.complete_from is not None:
            self.complete_from = max(self.complete_from, monitor_offset)

    def suspects(self, closings: Closings) -> set[RangeKey]:
        """Return the incarnations of a batch that do not simply go on above everything closed before."""
        found = set()
        for key, closing in closings.items():
            known = self._by_key.get(key)
            numbers = closing.numbers
            goes_on = known is None or not numbers or numbers[0] > known.closed.highest
            if not goes_on or not is_increasing(numbers):
                found.add(key)
        return found

    def standing(self, key: RangeKey, number: int) -> Standing:
        """Judge a number whose message's digest is unknown."""
        known = self._by_key.get(key)
        if known is None or number not in known.closed:
            return Standing.OPEN
        if self.complete_from is not None and known.is_aged(number, self.complete_from):
            return Standing.AGED
        return Standing.CONFLICT

    def close(self, closings: Closings) -> None:
        """Close what a batch that took effect has closed."""
        for key, closing in closings.items():
            known = self._admit(key)
            if known is not None:
                flat = Runs()
                flat.add_numbers(closing.numbers)
                known.close(flat.flat, closing.claimed, closing.seen, self.limits.gaps)

    def entries(
        self, closings: Mapping[RangeKey, Closing | None], *, worker: str, instance: bytes, n: int
    ) -> Iterator[RangeEntry]:
        """Yield what to write for these incarnations: what is closed, and apart from it what the batch closes.

        Both as far as they would be kept: a record of whatever numbers a batch has is more than a broker takes.
        """
        for key, closing in closings.items():
            known = self._by_key.get(key)
            if known is None:
                if self.is_full:
                    continue
                known = _Range()
            adds, claims, seen = Runs(), Runs(known.claimed.flat), known.seen
            if closing is not None:
                adds.add_numbers(closing.numbers)
                adds.shorten(self.limits.gaps)
                claims.update(closing.claimed)
                claims.drop_highest(self.limits.gaps)
                seen = max(seen, closing.seen)
            yield _entry(key, known, worker, instance, n, adds.flat, claims.flat, seen)

    def due(self, before: float, limit: int) -> dict[RangeKey, None]:
        """Return up to ``limit`` incarnations that were last written before a (monotonic) time."""
        found: dict[RangeKey, None] = {}
        for key, known in self._by_key.items():
            if len(found) == limit or known.written_at >= before:
                break
            found[key] = None
        return found

    def wrote(self, keys: Iterable[RangeKey], now: float) -> None:
        """Note that these were written again."""
        for key in keys:
            known = self._by_key.get(key)
            if known is not None:
                self._wrote(key, known, now)

    def restore(self, entry: RangeEntry) -> None:
        """Take what a written range says by itself; it only ever adds."""
        known = self._admit(entry.key)
        if known is not None:
            known.restore(entry, self.limits.gaps)

    def restore_closing(self, entry: RangeEntry) -> None:
        """Take what a written range closes with its transaction, once that is proven."""
        known = self._admit(entry.key)
        if known is not None and entry.closing:
            known.close(entry.closing, (), entry.seen, self.limits.gaps)

    def mark(self, monitor_end: int, *, exact: bool) -> None:
        """Note how far the monitor reaches. Without ``exact``, what is closed now may not be entered there yet."""
        for key, known in self._by_key.items():
            known.mark(monitor_end, exact=exact)
            self._changed.add(key)

    def forget(self, low: Mapping[str, int]) -> list[RangeKey]:
        """At the bound, let go of the oldest incarnations none of whose messages is in the log any more.

        ``low`` is the low watermark of this partition by topic, of those that the route reads: of others no message comes.
        A tenth of the bound becomes free at most; returns who is forgotten. Whoever still has messages in the log stays,
        however old.
        """
        if not self.is_full:
            return []
        gone = [(one.seen, key) for key, one in self._by_key.items() if one.seen < low.get(key.topic, one.seen + 1)]
        count = len(self._by_key) - self.limits.incarnations + max(1, self.limits.incarnations // 10)
        oldest = [key for _, key in sorted(gone)[:count]]
        for key in oldest:
            del self._by_key[key]
            self._changed.discard(key)
        return oldest

    def take_changes(self) -> bytes:
        """Return what has changed since the last call, for a checkpoint."""
        changed, self._changed = self._changed, set()
        return self._pack(changed)

    def pack(self) -> bytes:
        """Return everything, for a checkpoint."""
        return self._pack(self._by_key)

    def unpack(self, data: bytes) -> None:
        """Take what a checkpoint holds. Raises UnknownRecord if it is broken."""
        at = 0
        while at < len(data):
            length = int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
            self.restore(decode_value(data[at + _LENGTH_BYTES : at + _LENGTH_BYTES + length]))
            at += _LENGTH_BYTES + length

    def clear(self) -> None:
        """Forget everything."""
        self._by_key, self._changed, self.refused = {}, set(), 0

    def _admit(self, key: RangeKey) -> _Range | None:
        known = self._by_key.get(key)
        if known is None:
            if self.is_full:
                self.refused += 1
                return None
            known = self._by_key[key] = _Range()
        self._changed.add(key)
        return known

    def _wrote(self, key: RangeKey, known: _Range, now: float) -> None:
        """Keep the order: whoever was written last stands at the end."""
        known.written_at = now
        del self._by_key[key]
        self._by_key[key] = known

    def _pack(self, keys: Iterable[RangeKey]) -> bytes:
        packed: list[bytes] = []
        for key in keys:
            known = self._by_key[key]
            value = encode_value(_entry(key, known, "", bytes(16), 0, [], known.claimed.flat, known.seen))
            packed += (len(value).to_bytes(_LENGTH_BYTES, "big"), value)
        return b"".join(packed)


def note(closings: Closings, topic: str, number: Number, offset: int) -> None:
    """Note that a batch closes the number of a message, handed on or aborted, at a log offset (-1: unknown)."""
    closing = _closing(closings, RangeKey(topic, number.source, number.incarnation))
    closing.numbers.append(number.sequence)
    closing.seen = max(closing.seen, offset)


def note_claim(closings: Closings, topic: str, run: NumberRun) -> None:
    """Note the numbers that an aborted capture's marker names."""
    _closing(closings, RangeKey(topic, run.source, run.incarnation)).claimed += (run.first, run.last)


def _closing(closings: Closings, key: RangeKey) -> Closing:
    found = closings.get(key)
    if found is None:
        found = closings[key] = Closing()
    return found


def encode_key(key: RangeKey) -> bytes:
    """Return the monitor key: ``r``, then each part with its length in front."""
    parts = (key.source, key.incarnation, key.topic.encode())
    return b"r" + b"".join(len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in parts)


def encode_value(entry: RangeEntry) -> bytes:
    """Return the Avro record."""
    record = {name: getattr(entry, name) for name in RangeEntry.__slots__}
    return codec("monitor_range").encode(record)


def decode_value(value: bytes) -> RangeEntry:
    """Read an Avro record; UnknownRecord if it is none, or its runs are none."""
    record: dict[str, Any] = codec("monitor_range").decode(value)
    entry = RangeEntry(**record)
    for flat in (entry.closed, entry.closing, entry.claimed):
        pairs = list(zip(flat[::2], flat[1::2], strict=False))
        if len(flat) % 2 or any(first > last for first, last in pairs):
            raise UnknownRecord("the runs of a range are not pairs of first and last")
    if len(entry.marks) % 3:
        raise UnknownRecord("the marks of a range are not triples")
    return entry


def _entry(
    key: RangeKey, known: _Range, worker: str, instance: bytes, n: int, closing: list[int], claimed: list[int], seen: int
) -> RangeEntry:
    marks = [part for mark in known.marks for part in mark]
    return RangeEntry(
        worker, instance, n, key.topic, key.source, key.incarnation, known.closed.flat, closing, claimed, marks, seen
    )

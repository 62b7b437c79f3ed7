"""What a seal calls delivered and no output shows: the transaction hung in an output, and was aborted there since.

A recovery looks for it before it claims. Begins say up to where an instance has seen its own outputs closed, so only the
last transactions of whoever claimed a partition last are in question: whatever was there before that claim, the recovery
that made it has looked for. What is missing is read from the log again, and written again in the transaction that
claims: its entries stand, positions and publisher ranges stay as they are. In its lane nothing is behind it yet, since an
abort takes all that the instance has written to a partition since what hung there.

Outputs are shared. What a stranger's open transaction hides, and what lies too far back, is taken for shown, as its seal
says: nobody can tell whether it hangs, and whoever waited for strangers would recover without end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

import structlog

from relay.delivery.deadletter import DeadRecord
from relay.delivery.evidence_reading import MonitorView, entries
from relay.delivery.ports import Reader
from relay.delivery.topic.position_note import Stored
from relay.message.envelope import OUT_DIGEST, OUT_INSTANCE, OUT_N
from relay.message.identity import CONTENT_BYTES
from relay.message.record import LogMessage, LogPartition, Record, headers_if_any
from relay.monitor.entries import DEAD, Begin, Entry, OutputStart, Page, Proof, Seal, SettleSeal
from relay.monitor.rows import split

log = structlog.get_logger("relay.recovery")
READ_MAX: Final = 1_000_000
"""So many offsets of an output are read at most, counted from its end: others may have written much there since."""
Derive = Callable[[Record, str, int], LogMessage | None]


class Row(NamedTuple):
    """An entry whose output, or dead letter, must show."""

    digest: bytes
    content: bytes
    place: LogPartition
    offset: int
    is_dead: bool
    replay: int
    n: int


class Missing(NamedTuple):
    """What must be written again: the entry, and its message if the log still has it."""

    row: Row
    message: LogMessage | None


class Outputs(NamedTuple):
    """Where the route delivers to today, dead letters among it, and the id of the topic that is no dead letter's."""

    places: Collection[LogPartition]
    deads: Collection[LogPartition]
    topic_id: bytes

    def is_another(self, place: LogPartition, begin: Begin) -> bool:
        """Is it of a namesake of the topic that this transaction's instance wrote to?"""
        return begin.output_id not in (b"", self.topic_id) and place not in self.deads

    def has(self, place: LogPartition, scanner: Reader) -> bool:
        """Is it one of them, or still there? A route may have delivered elsewhere, or to more partitions."""
        return place in self.places or place.partition < scanner.partitions(place.topic)


@dataclass(slots=True)
class Again:
    """What a claim writes again, as parts of its transaction."""

    outputs: Mapping[LogPartition, Sequence[LogMessage]] = field(default_factory=dict)
    pages: list[tuple[int, Page]] = field(default_factory=list)
    dead: list[DeadRecord] = field(default_factory=list)
    dead_pages: list[tuple[int, Page]] = field(default_factory=list)
    taken_back: list[DeadRecord] = field(default_factory=list)


@dataclass(slots=True)
class Question:
    """The last claimant of one monitor partition, as far as it has not seen its outputs closed."""

    view: MonitorView
    begin: Begin
    since: int
    rows: dict[bytes, Row] = field(default_factory=dict)

    @property
    def places(self) -> list[OutputStart]:
        """Where outputs in question may lie."""
        return [*self.begin.unseen, *self.begin.outputs]

    def take(self, page: Page) -> None:
        """Take the entries of a page that its seal alone proves; those that a person told of have no outputs."""
        begin = self.begin
        if page.instance != begin.instance or page.n <= begin.closed or page.proof is not Proof.SEALED or page.is_told:
            return
        if page.n >= begin.n and not self.view.evidence.is_sealed(page.instance, page.n):
            return  # what has no seal is settled
        self.rows.update((row.digest, row) for row in rows_of(page))


def question(view: MonitorView) -> Question | None:
    """Return what is in question in a monitor partition; None where nobody has claimed, or an earlier version did."""
    found = since_last_claim(view)
    if not found or not _has_claimed(view, found[0][1]):
        return None
    offset, begin = found[0]
    return Question(view, begin, offset if begin.since < 0 else begin.since) if begin.closed >= 0 else None


def since_last_claim(view: MonitorView) -> list[tuple[int, Begin]]:
    """Return the last begins of instances with their offsets: that of whoever claimed the partition last, if anybody did, and
    those behind what shows of it.

    What was begun last tells nothing of who claimed last: where each transaction has a client of its own, a former owner
    that stood still begins behind its heir's claim. What shows was the owner's, since the group refuses others' positions.
    """
    last = sorted(view.last_begins, key=itemgetter(0))
    shown = {begin.instance: view.evidence.begun_at(begin.instance) for _, begin in last}
    claimed = [one for one in last if _has_claimed(view, one[1])]
    if not claimed:
        return last
    owner = max(claimed, key=lambda one: (shown[one[1].instance], one[0]))
    known = shown[owner[1].instance]
    since = owner[0] if known < 0 else known
    return [owner, *(one for one in last if one[0] > since and one is not owner)]


def _has_claimed(view: MonitorView, begin: Begin) -> bool:
    """A claim is the first transaction of an instance, and was seen committed before the second was begun."""
    return begin.n > 1 or view.evidence.is_sealed(begin.instance, 1)


class Shown:
    """What outputs show of some instances, by the marks of the records; ``hidden`` is what lies there and nobody can read yet."""

    def __init__(self, instances: Iterable[bytes]) -> None:
        self._instances = {instance.hex().encode(): instance for instance in instances}
        self._exact: set[tuple[bytes, int, bytes]] = set()
        self._digests: set[bytes] = set()
        self._numbers: set[tuple[bytes, int]] = set()
        self._hidden: set[tuple[bytes, int, bytes]] = set()

    def take(self, record: Record, *, hidden: bool) -> None:
        """Note a record; nothing for whatever else may lie in the topic."""
        headers = dict(headers_if_any(record))
        instance = self._instances.get(headers.get(OUT_INSTANCE) or b"")
        if instance is None:
            return
        try:
            digest, n = bytes.fromhex((headers.get(OUT_DIGEST) or b"").decode()), int(headers.get(OUT_N) or b"")
        except ValueError:
            return  # a stranger's
        if hidden:
            self._hidden.add((instance, n, digest))
        else:
            self._exact.add((instance, n, digest))
            self._digests.add(digest)
            self._numbers.add((instance, n))

    def has_any(self, begin: Begin) -> bool:
        """Does anything of a transaction show?"""
        return (begin.instance, begin.n) in self._numbers

    def has(self, row: Row, instance: bytes) -> bool:
        """Does it show? Of what was redriven, or died, one record of several counts: that of its own transaction."""
        if row.is_dead or row.replay:
            return (instance, row.n, row.digest) in self._exact
        return row.digest in self._digests

    def hides(self, row: Row, instance: bytes) -> bool:
        """Does it lie where nobody can read yet?"""
        return (instance, row.n, row.digest) in self._hidden


def unshown(
    scanner: Reader,
    reader: Reader,
    monitor: str,
    views: Sequence[MonitorView],
    highs: Mapping[int, tuple[int, int]],
    outputs: Outputs,
) -> tuple[list[Row], set[LogPartition]]:
    """Return what does not show, and the places that have lost what they might have shown.

    All partitions were read to ``highs`` before.
    """
    asked = {one.view.partition: one for one in map(question, views) if one is not None}
    since = {number: (max(highs[number][0], one.since), highs[number][1]) for number, one in asked.items()}
    for number, _, entry in entries(reader, monitor, since):
        if isinstance(entry, Page):
            asked[number].take(entry)
    asked = {number: one for number, one in asked.items() if one.rows}
    if not asked:
        return [], set()
    begun = {begin.instance for view in views for _, begin in view.last_begins}
    gone = {place for one in asked.values() for place in outputs.places if outputs.is_another(place, one.begin)}
    found = {of_letters: Shown(begun) for of_letters in (False, True)}
    for of_letters, shown in found.items():
        starts = [start for one in asked.values() for start in one.places]
        mine = [s for s in starts if (LogPartition(s.topic, s.partition) in outputs.deads) is of_letters]
        spans = _spans(scanner, mine, outputs, READ_MAX, gone)
        _look(scanner, reader, spans, shown)
    left = [(row, one) for one in asked.values() for row in one.rows.values() if not found[row.is_dead].has(row, one.begin.instance)]
    rows = [row for row, one in left if not found[row.is_dead].hides(row, one.begin.instance)]
    if len(rows) < len(left):
        log.warning("outputs are hidden by somebody's open transaction and taken for shown", messages=len(left) - len(rows))
    if rows:
        log.warning("sealed and not shown", messages=len(rows), first=f"{rows[0].place.topic}@{rows[0].offset}")
    return rows, gone


def _look(scanner: Reader, reader: Reader, spans: Mapping[LogPartition, tuple[int, int]], shown: Shown) -> None:
    """Read what shows, and behind it what nobody can read yet."""
    stable = reader.ends(spans)
    below = {place: (first, min(stable[place], high)) for place, (first, high) in spans.items()}
    above = {place: (max(first, stable[place]), high) for place, (first, high) in spans.items()}
    for hidden, records in chain(
        ((False, records) for records in reader.read(below)), ((True, records) for records in scanner.read(above))
    ):
        for record in records:
            shown.take(record, hidden=hidden)


def _spans(
    scanner: Reader, starts: Iterable[OutputStart], outputs: Outputs, most: int, gone: set[LogPartition]
) -> dict[LogPartition, tuple[int, int]]:
    """Return what is to be read, the last ``most`` offsets; ``gone`` gets the places whose beginnings cannot be, or that are no more."""
    floors: dict[LogPartition, int] = {}
    for start in starts:
        place = LogPartition(start.topic, start.partition)
        floors[place] = min(start.offset, floors.get(place, start.offset))
    spans: dict[LogPartition, tuple[int, int]] = {}
    for place, floor in floors.items():
        if not outputs.has(place, scanner):
            gone.add(place)
            continue
        low, high = scanner.watermarks(place)
        first = max(low, floor, high - most)
        if first > floor or floor > high:  # taken away, or another topic by now
            gone.add(place)
        spans[place] = first, high
    return spans


@dataclass(slots=True)
class Vanished:
    """A committed transaction of which a monitor partition shows nothing, and what it had entered there; ``offset`` is its begin's."""

    partition: int
    offset: int
    begin: Begin
    pages: list[Page] = field(default_factory=list)
    settled: set[tuple[bytes, int]] = field(default_factory=set)
    """What its claim has settled, so that its pages tell of that."""
    is_read: bool = False

    def take(self, offset: int, entry: Entry | None) -> None:
        """Take an entry that lies there, up to the seal: behind it are those of others, who may have settled the same."""
        mine = self.begin.instance, self.begin.n
        if isinstance(entry, Page) and (entry.instance, entry.n) == mine:
            self.pages.append(entry)
        elif isinstance(entry, SettleSeal) and offset > self.offset and not self.is_read:
            self.settled.add((entry.instance, entry.n))
        elif isinstance(entry, Seal):
            self.is_read |= (entry.instance, entry.n) == mine

    def mended(self, present: Collection[bytes]) -> Iterator[tuple[bytes, int]]:
        """Yield what this claim has written again, or found so written, by digest and replay number: its marks are on it now."""
        for page in self.pages if self.begin.n == 1 else ():
            for row in rows_of(page):
                if page.proof is Proof.PROVEN or (page.proof is Proof.SEALED and row.digest in present):
                    yield row.digest, row.replay


def vanished(
    scanner: Reader,
    reader: Reader,
    monitor: str,
    views: Sequence[MonitorView],
    highs: Mapping[int, tuple[int, int]],
    stored_by: Collection[tuple[bytes, int]],
    outputs: Outputs,
) -> list[Vanished]:
    """Return what was aborted where it hung in the monitor, and so has neither begin nor seal there, but was committed.

    It has stored the positions, or an output shows it. All partitions were read to ``highs`` before. Its records still lie
    there, for whoever reads uncommitted. What was there before the last claim, its recovery has looked at.
    """
    found: list[Vanished] = []
    was_committed = trace_of(scanner, reader, outputs, READ_MAX, stored_by)
    for view in views:
        seen = {(begin.instance, begin.n) for begin in view.evidence.unsealed()}
        for offset, begin in since_last_claim(view):
            key = begin.instance, begin.n
            if key in seen or view.evidence.is_ended(*key):
                continue
            if was_committed(begin):
                found.append(Vanished(view.partition, offset, begin))
    found.sort(key=attrgetter("offset"))
    spans: dict[int, tuple[int, int]] = {}
    for one in found:
        spans.setdefault(one.partition, (one.offset, highs[one.partition][1]))
    for number, offset, entry in entries(scanner, monitor, spans):
        for one in found:
            if one.partition == number:
                one.take(offset, entry)
    return found


def trace_of(
    scanner: Reader, reader: Reader, outputs: Outputs, most: int, stored_by: Collection[tuple[bytes, int]]
) -> Callable[[Begin], bool]:
    """Return what tells whether a transaction has stored positions, or an output shows it (`shows`).

    Outputs are read once for each transaction: its begins in all monitor partitions name the same ones.
    """
    known = dict.fromkeys(stored_by, True)

    def left_one(begin: Begin) -> bool:
        number = begin.instance, begin.n
        if number not in known:
            known[number] = shows(scanner, reader, begin, outputs, most)
        return known[number]

    return left_one


def shows(scanner: Reader, reader: Reader, begin: Begin, outputs: Outputs, most: int) -> bool:
    """Does any output of the transaction show, among the last ``most`` offsets of each partition? What a stranger hides does not.

    All are read at once: a reader waits at the end of each reading.
    """
    shown = Shown([begin.instance])
    spans = _spans(scanner, begin.outputs, outputs, most, set())
    stable = reader.ends(spans)
    for records in reader.read({place: (first, min(stable[place], high)) for place, (first, high) in spans.items()}):
        for record in records:
            shown.take(record, hidden=False)
        if shown.has_any(begin):
            return True
    return False


def passed(pages: Iterable[Page], present: Collection[bytes], stored: Stored) -> list[Row]:
    """Return what an unsealed transaction has not left in its outputs, though the stored position is past it.

    A stray COMMIT came behind the offsets, and an output hung: what is below the position nobody delivers otherwise.
    Redrives are below it always; their orders are open still. A position without our note is a person's word.
    """
    positions = {place: at for place, (at, note) in stored.items() if note}
    return [
        row
        for page in pages
        if not page.replays
        for row in rows_of(page)
        if row.digest not in present and row.offset < positions.get(row.place, 0)
    ]


def rows_of(page: Page) -> Iterator[Row]:
    """Yield the entries of a page."""
    place, replays = LogPartition(page.topic, page.partition), page.replays or bytes(page.rows)
    cells = zip(split(page.digests), split(page.contents, CONTENT_BYTES), page.offsets, page.outcomes, replays, strict=True)
    for digest, content, offset, outcome, replay in cells:
        yield Row(digest, content, place, offset, outcome == DEAD, replay, page.n)


def missing_of(scanner: Reader, reader: Reader, rows: Sequence[Row], derive: Derive) -> Iterator[Missing]:
    """Read the messages from the log, in its order; what has left it, or is another one by now, comes without."""
    for place in sorted({row.place for row in rows}):
        wanted = {row.offset: row for row in sorted(rows, key=itemgetter(3)) if row.place == place}
        low, high = scanner.watermarks(place)
        there = [offset for offset in wanted if low <= offset < high]
        found: dict[int, LogMessage] = {}
        span = {place: (min(there), max(there) + 1)} if there else {}
        for record in (one for records in reader.read(span) for one in records):
            offset = record.offset() or 0
            if offset in wanted:
                message = derive(record, place.topic, place.partition)
                if message is not None and message.digest == wanted[offset].digest:
                    found[offset] = message
        for offset, row in wanted.items():
            yield Missing(row, found.get(offset))



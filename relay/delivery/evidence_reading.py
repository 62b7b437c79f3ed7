"""Reading the monitor: one view per monitor partition, folded by the reading rules of ``relay.monitor.evidence``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from relay.delivery.ports import Reader
from relay.message.errors import Retriable
from relay.message.record import LogPartition, Record, of_other_version
from relay.message.schemas import OtherVersion, UnknownRecord
from relay.monitor.entries import (
    NOT_DELIVERED,
    UNKNOWN_OFFSET,
    Begin,
    Entry,
    Page,
    decode,
    transaction_of_page,
)
from relay.monitor.evidence import Evidence
from relay.monitor.index import DedupIndex
from relay.world.crash import crash_point

log = structlog.get_logger("relay.evidence")


@dataclass(slots=True)
class BeginScan:
    """What a recovery has seen begun in one monitor partition, up to ``read_to``, read_uncommitted.

    Of begins it keeps the last one of each instance, by its offset, and ``named_to``, the ends of what any of them names.
    """

    read_to: int
    evidence: Evidence = field(default_factory=Evidence)
    last: dict[bytes, tuple[int, Begin]] = field(default_factory=dict)
    named_to: dict[LogPartition, int] = field(default_factory=dict)

    def begun(self, offset: int, begin: Begin) -> None:
        """Take a begin."""
        self.last[begin.instance] = (offset, begin)
        for one in begin.inputs:
            place = LogPartition(one.topic, one.partition)
            self.named_to[place] = max(one.next, self.named_to.get(place, 0))


@dataclass(slots=True)
class MonitorView:
    """What a worker knows of one monitor partition.

    ``read_to`` is the monitor offset up to which committed records were folded into ``evidence`` and ``index``.
    ``scan_from`` is an offset at or below the last begin of the last claimant: scans for open transactions start
    there. Below it the index has all that counts, and nothing is open: this process wrote that begin, or a checkpoint
    says so. ``scan`` is there while a recovery is under way, or is to go on. ``own_begin`` is the offset of the last
    begin this process wrote there, and ``written_to`` lies behind all that it has committed. So many looks in a row as ``cut``
    says have found the monitor to end below what is known of it.
    """

    partition: int
    index: DedupIndex
    evidence: Evidence
    read_to: int
    scan_from: int
    own_begin: int | None = None
    written_to: int = 0
    cut: int = 0
    scan: BeginScan | None = None

    @property
    def last_begins(self) -> Collection[tuple[int, Begin]]:
        """The last begin of each instance that the recovery under way has seen, with its offset."""
        return self.scan.last.values() if self.scan is not None else ()

    def check_end(self, high: int) -> str:
        """Return what is wrong if the monitor ends below what this process has read, or written, of it; nothing if it does not.

        A leader that has just taken over may not know better, and soon does. Whatever still holds then was taken back, and the
        index tells of deliveries that there are no more: see ``ViewKeeper.take``.
        """
        known = max(self.read_to, self.written_to)
        if high >= known:
            self.cut = 0
            return ""
        self.cut += 1
        return f"partition {self.partition} of the monitor ends at {high}, and was known up to {known}"

    def read_on(self, low: int) -> None:
        """Set ``read_to`` to where there is something to read, in a monitor that begins at ``low``.

        What lies between was settled, and is in the index, or has left the monitor unread: either way what the fold
        knew to be open was ended there. With a gap the index knows no more of what it lacks than one filled from ``low``
        on; what it does hold happened.
        """
        known = max(self.read_to, self.scan_from)
        self.index.ranges.is_complete_from(low, has_gap=known < low)
        if max(known, low) > self.read_to:
            self.evidence = self.evidence.anew()
            self.read_to = max(known, low)


def entries(reader: Reader, topic: str, ranges: dict[int, tuple[int, int]]) -> Iterator[tuple[int, int, Entry | None]]:
    """Yield (monitor partition, offset, entry) for the ranges; None for records that are no entry or are broken."""
    wanted = {LogPartition(topic, partition): span for partition, span in ranges.items()}
    for records in reader.read(wanted):
        for record in records:
            yield record.partition() or 0, record.offset() or 0, decoded(record)


def decoded(record: Record) -> Entry | None:
    """Return the entry that a monitor's record holds, None for one that is no entry or is broken.

    Raises Stopped for one of another version: it may say what was begun or delivered.
    """
    try:
        return decode(record.key(), record.value())
    except OtherVersion as error:
        raise of_other_version(record.topic(), record.partition(), record.offset()) from error
    except UnknownRecord:
        return None


def high_watermarks(reader: Reader, topic: str, views: Collection[MonitorView]) -> dict[int, tuple[int, int]]:
    """Return (low, high watermark) of each view's partition, by a read_uncommitted handle.

    Raises Retriable, once all are looked at, if one ends below what its view knows: Kafka goes back with many of them at once.
    """
    found = {view.partition: reader.watermarks(LogPartition(topic, view.partition)) for view in views}
    wrong = [said for view in views if (said := view.check_end(found[view.partition][1]))]
    if wrong:
        more = f" (and {len(wrong) - 1} more like it)" if len(wrong) > 1 else ""
        raise Retriable(
            f"{wrong[0]}{more}: a broker that is cut off from the others says so, which passes, or Kafka went back to an older state, "
            "or has lost what it acknowledged; run `relay verify` once this route is running again"
        )
    return found


def fold_committed(reader: Reader, topic: str, views: list[MonitorView], highs: dict[int, tuple[int, int]]) -> None:
    """Read on, read_committed, to the high watermarks and fold what is found.

    Broken off, it goes on where it stopped when it is called again.
    """
    by_partition = {view.partition: view for view in views}
    for view in views:
        view.read_on(highs[view.partition][0])
    ranges = {view.partition: (view.read_to, highs[view.partition][1]) for view in views}
    for partition, offset, entry in entries(reader, topic, ranges):
        view = by_partition[partition]
        if entry is not None:
            view.evidence.add(offset, entry)
        view.read_to = offset + 1
        crash_point("recovery.reading")
    for view in views:
        view.read_to = max(view.read_to, highs[view.partition][1])
        for alarm in view.evidence.alarms:
            log.error("a transaction is missing", partition=view.partition, reason=alarm)
        view.evidence.alarms.clear()


def scan_begins(
    reader: Reader, topic: str, views: list[MonitorView], highs: dict[int, tuple[int, int]]
) -> dict[int, Evidence]:
    """Read, read_uncommitted, what was begun since the last claim, and keep it in the views; a later look reads on.

    Of pages only the keys are looked at: they are nearly all of a monitor's bytes, and begin nothing.
    """
    scans: dict[int, BeginScan] = {}
    for view in views:
        low = highs[view.partition][0]
        if view.scan is None or view.scan.read_to < low:
            view.scan = BeginScan(max(view.scan_from, low))
        scans[view.partition] = view.scan
    wanted = {LogPartition(topic, p): (scan.read_to, highs[p][1]) for p, scan in scans.items()}
    for records in reader.read(wanted):
        for record in records:
            scan, offset = scans[record.partition() or 0], record.offset() or 0
            page = transaction_of_page(record.key())
            if page is not None:
                scan.evidence.add_unread(*page)
            elif (entry := decoded(record)) is not None:
                scan.evidence.add(offset, entry)
                if isinstance(entry, Begin):
                    scan.begun(offset, entry)
            scan.read_to = offset + 1
    return {partition: scan.evidence for partition, scan in scans.items()}


class ProvenOffsets:
    """Log offsets from the committed positions on whose entries count, folded from one or more monitor partitions."""

    def __init__(self, positions: Mapping[LogPartition, int]) -> None:
        self._positions = positions
        self.found: dict[LogPartition, set[int]] = {}

    def evidence(self) -> Evidence:
        """Return a fold for one monitor partition that notes here what is proven."""
        return Evidence(self._prove, self._void)

    def _prove(self, page: Page) -> None:
        place = LogPartition(page.topic, page.partition)
        floor = max(self._positions.get(place, 0), UNKNOWN_OFFSET + 1)
        found = self.found.setdefault(place, set())
        found.update(offset for offset in page.offsets if offset >= floor)

    def _void(self, page: Page) -> None:
        found = self.found.get(LogPartition(page.topic, page.partition), set())
        found.difference_update(
            offset for offset, outcome in zip(page.offsets, page.outcomes, strict=True) if outcome == NOT_DELIVERED
        )


def proven_offsets(
    reader: Reader, topic: str, partition: int, positions: Mapping[LogPartition, int]
) -> dict[LogPartition, set[int]]:
    """Read a whole monitor partition, read_committed, for the offsets at or above the positions that are proven."""
    proven = ProvenOffsets(positions)
    fold = proven.evidence()
    span = reader.watermarks(LogPartition(topic, partition))
    for _, offset, entry in entries(reader, topic, {partition: span}):
        if entry is not None:
            fold.add(offset, entry)
    return proven.found

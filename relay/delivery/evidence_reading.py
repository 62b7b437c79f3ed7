"""Reading the monitor: one view per monitor partition, folded by the reading rules of ``relay.monitor.evidence``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from relay.delivery.ports import Reader
from relay.message.record import LogPartition, Record
from relay.message.schemas import UnknownRecord
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
from relay.run.crash import crash_point


@dataclass(slots=True)
class MonitorView:
    """What a worker knows of one monitor partition.

    ``read_to`` is the monitor offset up to which committed records were folded into ``evidence`` and ``index``.
    ``scan_from`` is an offset at or below the last begin of the last claimant: scans for open transactions start
    there. ``own_begin`` is the offset of the last begin this process wrote there.
    """

    partition: int
    index: DedupIndex
    evidence: Evidence
    read_to: int
    scan_from: int
    own_begin: int | None = None
    broken: int = 0
    begins: list[tuple[int, Begin]] = field(default_factory=list)


def entries(reader: Reader, topic: str, ranges: dict[int, tuple[int, int]]) -> Iterator[tuple[int, int, Entry | None]]:
    """Yield (monitor partition, offset, entry) for the ranges; None for records that are no entry or are broken."""
    wanted = {LogPartition(topic, partition): span for partition, span in ranges.items()}
    for records in reader.read(wanted):
        for record in records:
            yield record.partition() or 0, record.offset() or 0, _decoded(record)


def _decoded(record: Record) -> Entry | None:
    try:
        return decode(record.key(), record.value())
    except UnknownRecord:
        return None


def high_watermarks(reader: Reader, topic: str, views: Iterable[MonitorView]) -> dict[int, tuple[int, int]]:
    """Return (low, high watermark) of each view's partition, by a read_uncommitted handle."""
    return {view.partition: reader.watermarks(LogPartition(topic, view.partition)) for view in views}


def fold_committed(reader: Reader, topic: str, views: list[MonitorView], highs: dict[int, tuple[int, int]]) -> None:
    """Read on, read_committed, to the high watermarks and fold what is found.

    Broken off, it goes on where it stopped when it is called again.
    """
    by_partition = {view.partition: view for view in views}
    ranges = {view.partition: (max(view.read_to, highs[view.partition][0]), highs[view.partition][1]) for view in views}
    for partition, offset, entry in entries(reader, topic, ranges):
        view = by_partition[partition]
        if entry is not None:
            view.evidence.add(offset, entry)
        view.read_to = offset + 1
        crash_point("recovery.reading")
    for view in views:
        low, high = highs[view.partition]
        view.read_to = max(view.read_to, high)
        view.index.ranges.is_complete_from(low)


def scan_begins(
    reader: Reader, topic: str, views: list[MonitorView], highs: dict[int, tuple[int, int]]
) -> dict[int, Evidence]:
    """Read, read_uncommitted, what was begun since the last claim; remember the begins in the views.

    Of pages only the keys are looked at: they are nearly all of a monitor's bytes, and begin nothing.
    """
    scans: dict[int, Evidence] = {view.partition: Evidence() for view in views}
    by_partition = {view.partition: view for view in views}
    for view in views:
        view.begins = []
    wanted = {
        LogPartition(topic, v.partition): (max(v.scan_from, highs[v.partition][0]), highs[v.partition][1]) for v in views
    }
    for records in reader.read(wanted):
        for record in records:
            partition, offset = record.partition() or 0, record.offset() or 0
            page = transaction_of_page(record.key())
            if page is not None:
                scans[partition].add_unread(offset, *page)
                continue
            entry = _decoded(record)
            if entry is not None:
                scans[partition].add(offset, entry)
                if isinstance(entry, Begin):
                    by_partition[partition].begins.append((offset, entry))
    return scans


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

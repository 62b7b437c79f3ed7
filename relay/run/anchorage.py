"""Whether the log is still the one that was read: another record where an anchor was says that it lost its end."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from relay.delivery.ports import Reader
from relay.log.anchor import Anchor, NewEpoch, anchor_of, epoch_of
from relay.message.errors import InDoubt
from relay.message.record import LogPartition, Record


class Anchorage:
    """Looks whether the log still has the records that it had; ``reader`` also reads those of aborted transactions.

    One that is gone tells nothing: retention or compaction may have taken it. Of one above the log's end the position speaks.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._stored: dict[LogPartition, Record] = {}

    def replaced(self, anchors: Mapping[LogPartition, Anchor]) -> Collection[LogPartition]:
        """At a take-over: return the partitions that have another record by now where a stored position has its anchor.

        All of them must lie between their log's begin and its end.
        """
        self._stored = self._records(anchors)
        return [place for place, record in self._stored.items() if anchor_of(record) != anchors[place]]

    def check(self, epochs: Mapping[LogPartition, NewEpoch]) -> None:
        """Look whether what was read last is still there, or what lies below the stored position where nothing was.

        The client looks itself where it reads on from what it has read (KIP-320), but not where it is given an offset: after a
        take-over, and after a pause. Raises InDoubt where another record is there by now.
        """
        before = {place: one for place, new in epochs.items() if (one := new.before or self._stored_before(place, new)) is not None}
        marks = {place: self._reader.watermarks(place) for place in before}
        there = {place: one for place, one in before.items() if marks[place][0] <= one.offset < marks[place][1]}
        for place, record in self._records(there).items():
            if anchor_of(record) != there[place]:
                raise InDoubt(f"{place.topic}[{place.partition}] has another record at {record.offset()} by now than was read there")

    def _stored_before(self, place: LogPartition, new: NewEpoch) -> Anchor | None:
        stored = self._stored.get(place)
        return anchor_of(stored) if stored is not None and epoch_of(stored) < new.epoch else None

    def _records(self, anchors: Mapping[LogPartition, Anchor]) -> dict[LogPartition, Record]:
        return {
            LogPartition(record.topic() or "", record.partition() or 0): record
            for records in self._reader.read({place: (one.offset, one.offset + 1) for place, one in anchors.items()})
            for record in records
        }

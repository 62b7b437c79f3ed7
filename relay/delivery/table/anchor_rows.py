"""Anchors of table and queue routes: notes in the position's transaction."""

from __future__ import annotations

from collections.abc import Mapping

from relay.delivery.table.note_rows import note_row, taken_notes
from relay.log.anchor import Anchor
from relay.message.record import LogPartition
from relay.monitor.ranges import RangeKey
from relay.transfer.cursor import Claim, RangeRow


class AnchorRows:
    """Which record lies below each stored position, as the destination's store has it."""

    def __init__(self) -> None:
        self.stored: dict[LogPartition, Anchor] = {}

    def take(self, claims: Mapping[LogPartition, Claim]) -> dict[LogPartition, Claim]:
        """Take the anchors out of what a claim has read; what is left are other rows."""
        notes, left = taken_notes(claims, _key)
        self.stored = {
            place: Anchor(offset, content.to_bytes(8, "big", signed=True), time_ms)
            for place, triples in notes.items()
            for content, time_ms, offset in triples
        }
        return left

    def rows(self, anchors: Mapping[LogPartition, Anchor], worker: str) -> list[RangeRow]:
        """Return the rows that say so of those that are others than before, for the next batch to write."""
        others = {place: one for place, one in anchors.items() if self.stored.get(place) != one}
        self.stored.update(others)
        return [
            note_row(place, _key, [(int.from_bytes(one.content, "big", signed=True), one.time_ms, one.offset)], worker)
            for place, one in others.items()
        ]


def _key(place: LogPartition) -> RangeKey:
    """A publisher that there is not: no topic has such a name."""
    return RangeKey(f"/{place.topic}", b"", b"")

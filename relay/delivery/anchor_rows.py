"""Anchors of table and queue routes: rows beside the publishers' ranges, written in the position's transaction."""

from __future__ import annotations

from collections.abc import Mapping

from relay.delivery.numbering import publisher
from relay.log.anchor import Anchor
from relay.message.record import LogPartition
from relay.message.schemas import UnknownRecord
from relay.monitor.ranges import RangeEntry, RangeKey, decode_value, encode_value
from relay.transfer.cursor import Claim, RangeRow


class AnchorRows:
    """Which record lies below each stored position, as the destination's store has it."""

    def __init__(self) -> None:
        self.stored: dict[LogPartition, Anchor] = {}

    def take(self, claims: Mapping[LogPartition, Claim]) -> dict[LogPartition, Claim]:
        """Take the anchors out of what a claim has read; what is left are other rows."""
        self.stored = {}
        left: dict[LogPartition, Claim] = {}
        for place, claim in claims.items():
            name = publisher(_key(place))
            for row in claim.ranges:
                if row.publisher == name and (found := _read(row)) is not None:
                    self.stored[place] = found
            left[place] = claim._replace(ranges=[row for row in claim.ranges if row.publisher != name])
        return left

    def rows(self, anchors: Mapping[LogPartition, Anchor], worker: str) -> list[RangeRow]:
        """Return the rows that say so of those that are others than before, for the next batch to write."""
        others = {place: one for place, one in anchors.items() if self.stored.get(place) != one}
        self.stored.update(others)
        return [RangeRow(place, publisher(_key(place)), _state(place, one, worker)) for place, one in others.items()]


def _key(place: LogPartition) -> RangeKey:
    """A publisher that there is not: no topic has such a name."""
    return RangeKey(f"/{place.topic}", b"", b"")


def _state(place: LogPartition, anchor: Anchor, worker: str) -> bytes:
    flat = [int.from_bytes(anchor.content, "big", signed=True), anchor.time_ms, anchor.offset]
    return encode_value(RangeEntry(worker, bytes(16), 0, *_key(place), [], [], [], flat, -1))


def _read(row: RangeRow) -> Anchor | None:
    try:
        content, time_ms, offset = decode_value(row.state or b"").marks
    except (UnknownRecord, ValueError):
        return None  # the next batch writes it anew
    return Anchor(offset, content.to_bytes(8, "big", signed=True), time_ms)

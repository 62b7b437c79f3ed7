"""Notes that a table or queue route keeps of a log partition: rows among the publishers' ranges, written in the position's transaction.

Each is a range with no numbers, under the key of a publisher that there is not; what it says stands where ranges have their marks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from relay.delivery.numbering import publisher
from relay.message.record import LogPartition
from relay.message.schemas import UnknownRecord
from relay.monitor.ranges import RangeEntry, RangeKey, decode_value, encode_value
from relay.transfer.cursor import Claim, RangeRow

Key = Callable[[LogPartition], RangeKey]
Triple = tuple[int, ...]


def taken_notes(
    claims: Mapping[LogPartition, Claim], key: Key
) -> tuple[dict[LogPartition, list[Triple]], dict[LogPartition, Claim]]:
    """Take the notes under a key out of what a claim has read: return the triples of each partition, and what is left."""
    notes: dict[LogPartition, list[Triple]] = {}
    left: dict[LogPartition, Claim] = {}
    for place, claim in claims.items():
        name = publisher(key(place))
        notes[place] = [triple for row in claim.ranges if row.publisher == name for triple in _triples(row)]
        left[place] = claim._replace(ranges=[row for row in claim.ranges if row.publisher != name])
    return notes, left


def note_row(place: LogPartition, key: Key, triples: Sequence[Triple], worker: str) -> RangeRow:
    """Return the row that says so."""
    entry = RangeEntry(worker, bytes(16), 0, *key(place), [], [], [], [part for triple in triples for part in triple], -1)
    return RangeRow(place, publisher(entry.key), encode_value(entry))


def _triples(row: RangeRow) -> list[Triple]:
    try:
        flat = decode_value(row.state or b"").marks
    except UnknownRecord:
        return []  # nothing is known until it is written anew
    return [tuple(flat[i : i + 3]) for i in range(0, len(flat), 3)]

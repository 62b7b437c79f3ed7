"""What stands beside a stored position, in the offset's metadata: whose topic it is of, who stored it, and what lies below it.

A position is part of its transaction, so where it names one, the coordinator has committed that one, whatever its
partitions show. A table or queue route stores a hint only. Earlier versions wrote the topic's id alone, in either
case, later ones no anchor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from relay.log.anchor import Anchor
from relay.message.record import LogPartition

Stored = Mapping[LogPartition, tuple[int, str]]
"""Positions with their notes, as the group has them."""

_HINT: Final = ":hint"
"""Never change: it is told from a transaction by what is no number. Earlier versions read the topic's id before it."""


class PositionNote(NamedTuple):
    """The topic's id in hexadecimal digits, the transaction (n is 0: not said), and the record below the position, if one is known.

    A person's own position has no note.
    """

    topic_id: str
    instance: bytes = b""
    n: int = 0
    anchor: Anchor | None = None

    @property
    def text(self) -> str:
        """The note as it is stored."""
        said = f"{self.topic_id}:{self.instance.hex()}:{self.n}"
        return said if self.anchor is None else f"{said}:{self.anchor.offset}:{self.anchor.content.hex()}:{self.anchor.time_ms}"


def read_note(text: str) -> PositionNote:
    """Read a stored note; what is none names no transaction."""
    topic_id, *rest = text.split(":")
    try:
        instance, n, *below = rest
        anchor = Anchor(int(below[0]), bytes.fromhex(below[1]), int(below[2])) if below else None
        return PositionNote(topic_id, bytes.fromhex(instance), int(n), anchor)
    except (IndexError, ValueError):
        return PositionNote(topic_id)


def hint_note(topic_id: bytes) -> str:
    """Return what a table or queue route notes beside a position: its own store has the one that counts."""
    return f"{topic_id.hex()}{_HINT}"


def is_hint(text: str) -> bool:
    """Was the position stored by a table or queue route? One of an earlier version does not say so."""
    return text.endswith(_HINT)


def anchors_of(stored: Stored) -> dict[LogPartition, Anchor]:
    """Return what lay right below these positions, where that was noted."""
    notes = {place: read_note(text) for place, (_, text) in stored.items()}
    return {place: note.anchor for place, note in notes.items() if note.anchor is not None}


def committed_by(stored: Stored) -> set[tuple[bytes, int]]:
    """Return the transactions (instance, n) that have stored these positions."""
    notes = (read_note(text) for _, text in stored.values())
    return {(note.instance, note.n) for note in notes if note.n}

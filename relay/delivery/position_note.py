"""What stands beside a stored position of a topic route, in the offset's metadata: whose topic it is of, and who stored it.

A position is part of its transaction, so where it names one, the coordinator has committed that one, whatever its
partitions show. Earlier versions wrote the topic's id alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from relay.message.record import LogPartition

Stored = Mapping[LogPartition, tuple[int, str]]
"""Positions with their notes, as the group has them."""


class PositionNote(NamedTuple):
    """The topic's id in hexadecimal digits, and the transaction (n is 0: not said). A person's own position has no note."""

    topic_id: str
    instance: bytes = b""
    n: int = 0

    @property
    def text(self) -> str:
        """The note as it is stored."""
        return f"{self.topic_id}:{self.instance.hex()}:{self.n}"


def read_note(text: str) -> PositionNote:
    """Read a stored note; what is none names no transaction."""
    topic_id, *rest = text.split(":")
    try:
        instance, n = rest
        return PositionNote(topic_id, bytes.fromhex(instance), int(n))
    except ValueError:
        return PositionNote(topic_id)


def committed_by(stored: Stored) -> set[tuple[bytes, int]]:
    """Return the transactions (instance, n) that have stored these positions."""
    notes = (read_note(text) for _, text in stored.values())
    return {(note.instance, note.n) for note in notes if note.n}

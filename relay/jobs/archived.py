"""What is archived may be trimmed: a record in the control topic says up to where, for each topic by its id.

The archive writes it after the files are in place; an operator who shortens a topic's retention may forget what lies
below. Nothing in the relay trims by it: a log keeps what its routes may still need, and a queue's journal holds states
too, which no topic has, so that it is let go by the queue's own retention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

KEY_PREFIX: Final = b"archived/"


@dataclass(frozen=True)
class ArchivedUpTo:
    """Offsets below which every committed record of a topic is archived, by partition."""

    topic: str
    topic_id: bytes
    positions: Mapping[int, int] = field(default_factory=dict)

    @property
    def key(self) -> bytes:
        """The record's key: one for each topic and its id, since a topic may be created anew under its name."""
        return KEY_PREFIX + f"{self.topic}/{self.topic_id.hex()}".encode()

    def encode(self) -> bytes:
        """Return the record's value."""
        return orjson.dumps({"positions": {str(p): offset for p, offset in sorted(self.positions.items())}})

    def advanced_by(self, positions: Mapping[int, int]) -> ArchivedUpTo:
        """Return what holds after a further run; a position never goes back."""
        least = {p: max(offset, self.positions.get(p, 0)) for p, offset in positions.items()}
        return ArchivedUpTo(self.topic, self.topic_id, {**self.positions, **least})


def decode(key: bytes, value: bytes | None) -> ArchivedUpTo | None:
    """Read a record of the control topic; None if it is another kind of record, or none that can be read."""
    name, slash, topic_id = key.removeprefix(KEY_PREFIX).decode("utf-8", "replace").rpartition("/")
    if not key.startswith(KEY_PREFIX) or not slash or value is None:
        return None
    try:
        found = orjson.loads(value)["positions"]
        return ArchivedUpTo(
            name, bytes.fromhex(topic_id), {int(p): int(offset) for p, offset in found.items()}
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def made_again(
    now: Mapping[str, bytes], begun: Mapping[str, str], taken: Collection[str], told: Iterable[ArchivedUpTo]
) -> str | None:
    """Return a topic that is another one of its name than the archive's progress is of; None if all are the same.

    ``begun`` are the topic ids, in hex, that the progress began with. Where they were not kept, of the topics that were ``taken`` from
    the records tell that were ``told`` before.
    """
    known: dict[str, set[str]] = {}
    for one in told:
        known.setdefault(one.topic, set()).add(one.topic_id.hex())
    for topic, topic_id in now.items():
        before = {begun[topic]} if topic in begun else known.get(topic, set()) if topic in taken else set()
        if before and topic_id.hex() not in before:
            return topic
    return None

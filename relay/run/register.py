"""The control topic as a worker uses it: a compacted topic of one partition, whose order is that of what is decided in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Register(Protocol):
    """Reads and writes what is recorded for all workers; the first record under a key may decide, or the last."""

    def first(self, key: bytes) -> bytes | None:
        """Return the first record under ``key`` that compaction has left."""

    def under(self, prefixes: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        """Return key and value of every record whose key begins so, in their order."""

    def put(self, key: bytes, value: bytes, *, wait: bool) -> None:
        """Append a record."""

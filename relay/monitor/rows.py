"""Packed entries of the deduplication index: a row is digest 16, content digest 8, topic number 1, log offset 7.

The offset's top bit says that the message is dead: it had no effect, and may be redriven.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice
from struct import Struct
from sys import byteorder
from typing import Final

from relay.message.identity import DIGEST_BYTES
from relay.monitor.entries import DEAD, UNKNOWN_OFFSET, Page

VALUE_BYTES: Final = 16
ROW_BYTES: Final = DIGEST_BYTES + VALUE_BYTES
CHUNK_ROWS: Final = 16384
MEMORY_BYTES_PER_ENTRY: Final = 64 + 64 + 100
"""Two bytes objects of 33 + 16 bytes, rounded up, and the slots of a dict between half and two thirds full."""

_TOPIC_SHIFT: Final = 56
_OFFSET_BITS: Final = _TOPIC_SHIFT - 1
_NO_OFFSET: Final = (1 << _OFFSET_BITS) - 1
_DEAD: Final = 1 << _OFFSET_BITS
ABOVE_ALL: Final = _NO_OFFSET + 1
"""A limit that no offset reaches, not even an unknown one."""
TOPICS_FACT: Final = b"topics"
RANGES_FACT: Final = b"ranges"
CHECKPOINT_FACT: Final = b"checkpoint"
FACTS: Final = (TOPICS_FACT, RANGES_FACT, CHECKPOINT_FACT)
"""All that is kept beside the entries for as long as there are any; no name is as long as a digest."""


class RowStore(ABC):
    """Port: a map from digest to value that takes rows in bulk."""

    @abstractmethod
    def find(self, digests: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each digest or None."""

    @abstractmethod
    def enter(self, rows: bytes) -> None:
        """Add or replace the entries of packed rows."""

    @abstractmethod
    def remove(self, digests: Sequence[bytes]) -> None:
        """Take entries out; unknown ones are passed over."""

    @abstractmethod
    def chunks(self) -> Iterator[bytes]:
        """Yield all entries as packed rows; the store must not change meanwhile."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of entries; on disk an estimate that may count an entry twice."""

    @property
    @abstractmethod
    def bytes_used(self) -> int:
        """Bytes of memory or of disk, estimated."""

    @abstractmethod
    def remember(self, name: bytes, value: bytes) -> None:
        """Keep a small fact beside the entries, behind every entry written so far."""

    @abstractmethod
    def recall(self, name: bytes) -> bytes | None:
        """Return a fact kept beside the entries, or None."""

    @abstractmethod
    def note_replays(self, packed: bytes) -> None:
        """Keep replay numbers for as long as the entries that are entered with them, behind every entry so far."""

    @abstractmethod
    def replays(self) -> bytes:
        """Return the replay numbers that were noted, in their order; nothing where they end with the process."""

    @abstractmethod
    def renew(self, low: int, high: int) -> int | None:
        """Let go of entries that have left the monitor, many at once or none; it has offsets ``low`` to ``high`` now.

        Whatever was entered lies below ``high`` there. Where what comes next is kept apart from now on, returns the
        offset from which on every entry is still here: 0 if none was let go of. Else None.
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held; the store is not used again."""


class MemoryRows(RowStore):
    """Entries in a dict."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._facts: dict[bytes, bytes] = {}

    def find(self, digests: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each digest or None."""
        return list(map(self._values.get, digests))

    def enter(self, rows: bytes) -> None:
        """Add or replace the entries of packed rows."""
        self._values.update(zip(*unpack(rows), strict=True))

    def remove(self, digests: Sequence[bytes]) -> None:
        """Take entries out; unknown ones are passed over."""
        for digest in digests:
            self._values.pop(digest, None)

    def chunks(self) -> Iterator[bytes]:
        """Yield all entries as packed rows; the store must not change meanwhile."""
        items = iter(self._values.items())
        while chunk := b"".join(chain.from_iterable(islice(items, CHUNK_ROWS))):
            yield chunk

    def __len__(self) -> int:
        return len(self._values)

    @property
    def bytes_used(self) -> int:
        """Bytes of memory, estimated."""
        return len(self._values) * MEMORY_BYTES_PER_ENTRY

    def remember(self, name: bytes, value: bytes) -> None:
        """Keep a small fact as long as the process lives."""
        self._facts[name] = value

    def recall(self, name: bytes) -> bytes | None:
        """Return a fact kept beside the entries, or None."""
        return self._facts.get(name)

    def note_replays(self, packed: bytes) -> None:
        """The index knows them for as long as this lives."""

    def replays(self) -> bytes:
        """Return nothing."""
        return b""

    def renew(self, low: int, high: int) -> int | None:  # noqa: ARG002 - the port's signature
        """The memory is bounded by moving to disk."""
        return None

    def clear(self) -> None:
        """Forget everything."""
        self._values, self._facts = {}, {}

    def close(self) -> None:
        """Release the entries."""
        self.clear()


def pack(page: Page, topic_number: int) -> bytes:
    """Return a page's rows, in its order."""
    offsets = page.offsets
    if offsets and min(offsets) < 0:
        offsets = [_NO_OFFSET if offset == UNKNOWN_OFFSET else offset for offset in offsets]
    tails = array("Q", offsets)
    if tails and max(tails) > _NO_OFFSET:
        raise ValueError(f"{page.topic}: a log offset does not fit into {_OFFSET_BITS} bits")
    if DEAD in page.outcomes:
        tails = array("Q", [tail | _DEAD * (one == DEAD) for tail, one in zip(tails, page.outcomes, strict=True)])
    if byteorder == "little":
        tails.byteswap()
    rows = array("Q", bytes(len(tails) * ROW_BYTES))
    digests = array("Q", page.digests)
    rows[0::4], rows[1::4] = digests[0::2], digests[1::2]
    rows[2::4], rows[3::4] = array("Q", page.contents), tails
    if topic_number == 0:
        return rows.tobytes()
    # The offset's top byte is 0 up to here; it is the row's 25th and holds the topic number.
    packed = bytearray(rows.tobytes())
    packed[24::ROW_BYTES] = bytes([topic_number]) * len(tails)
    return bytes(packed)


def unpack(rows: bytes) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Return the digests and the values of packed rows."""
    halves = split(rows, DIGEST_BYTES)
    return halves[0::2], halves[1::2]


def split(column: bytes, width: int = DIGEST_BYTES) -> tuple[bytes, ...]:
    """Cut a column into its cells."""
    return _cells(len(column) // width, width).unpack(column)


def at_or_above(rows: bytes, limits: Sequence[int]) -> list[bytes]:
    """Return the digests of rows whose offset is not below the limit of their topic's number."""
    tails = array("Q", rows)[3::4]
    if byteorder == "little":
        tails.byteswap()
    above = [i for i, tail in enumerate(tails) if tail & _NO_OFFSET >= limits[tail >> _TOPIC_SHIFT]]
    return [rows[i * ROW_BYTES : i * ROW_BYTES + DIGEST_BYTES] for i in above]


def describe(value: bytes) -> tuple[bytes, int, int, bool]:
    """Return a value's content digest, topic number, log offset (-1 where unknown), and whether the message is dead."""
    tail = int.from_bytes(value[9:], "big")
    offset = tail & _NO_OFFSET
    return value[:8], value[8], UNKNOWN_OFFSET if offset == _NO_OFFSET else offset, bool(tail & _DEAD)


@lru_cache(maxsize=64)
def _cells(count: int, width: int) -> Struct:
    return Struct(f"{width}s" * count)

"""The deduplication index of one monitor partition: a digest is in it if and only if its delivery is proven.

Of two entries of a digest the one with the higher replay number stays, then the later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from relay.message.errors import Stopped
from relay.message.identity import DIGEST_BYTES
from relay.message.record import LogPartition
from relay.message.schemas import UnknownRecord
from relay.monitor.entries import NOT_DELIVERED, Page, select
from relay.monitor.ranges import Ranges
from relay.monitor.rows import (
    ABOVE_ALL,
    RANGES_FACT,
    ROW_BYTES,
    TOPICS_FACT,
    MemoryRows,
    RowStore,
    at_or_above,
    describe,
    pack,
    split,
)
from relay.monitor.rows_on_disk import DiskRows, UnusableStoreError

_TOPICS_MAX: Final = 255
_REPLAY_BYTES: Final = DIGEST_BYTES + 1


class Description(NamedTuple):
    """A value of the index spelled out; ``offset`` is -1 where unknown."""

    content: bytes
    topic: str
    offset: int


class Standing(NamedTuple):
    """What a redrive asks of an entry: ``content`` is zeros where unknown, ``replay`` how often it was redriven."""

    content: bytes
    is_dead: bool
    replay: int


class Held(NamedTuple):
    """An entry spelled out whole; ``offset`` is -1 where unknown, ``replay`` how often the message was redriven."""

    digest: bytes
    topic: str
    offset: int
    content: bytes
    is_dead: bool
    replay: int


class Kind(IntEnum):
    """What a change did; the number is part of the checkpoint's format and never changes."""

    ENTERED = 1
    REMOVED = 2
    REPLAYS = 3
    RANGES = 4


class Change(NamedTuple):
    """A change of the index: packed rows, digests, digests each with a replay number (0: none), or packed ranges."""

    kind: Kind
    data: bytes


class Budget:
    """Entries that the indexes of one worker may hold in memory together."""

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self.used = 0

    @property
    def is_exceeded(self) -> bool:
        """Whether an index that grows has to move to disk."""
        return self.used > self.entries


class DedupIndex:
    """The index over a store in memory or on disk; owned by one thread.

    With a budget and a directory it moves from memory to disk, once, when it grows while the budget is exceeded.
    """

    def __init__(
        self, partition: int, store: RowStore, *, budget: Budget | None = None, directory: Path | None = None
    ) -> None:
        self.partition = partition
        self.ranges = Ranges()
        self.topics: list[str] = []
        self._numbers: dict[str, int] = {}
        self._replays: dict[bytes, int] = {}
        self._journal: list[Change] | None = None
        self._budget = budget
        self._charged = 0
        self._directory = directory
        self._use(store)

    def _use(self, store: RowStore) -> None:
        self._store = store
        self.find = store.find

    @property
    def is_on_disk(self) -> bool:
        """Whether the entries outlive the process by themselves."""
        return isinstance(self._store, DiskRows)

    @property
    def bytes_used(self) -> int:
        """Bytes of memory, or of disk once moved there; an estimate."""
        return self._store.bytes_used

    def __len__(self) -> int:
        """Number of entries; on disk an estimate that may count an entry twice."""
        return len(self._store)

    def add_page(self, page: Page) -> None:
        """Enter every row of a page (delivered, dead or skipped). Raises Stopped past 255 log topics."""
        rows = pack(page, self._number(page.topic))
        if page.replays or self._replays:
            rows = self._not_outrun(rows, page)
        self._enter(rows)

    def void(self, page: Page) -> None:
        """Take the rows of a VOID page back to what they fall back to: an older outcome, or nothing."""
        digests = split(page.digests)
        self._set_replays({digest: 0 for digest in digests if digest in self._replays})
        self.remove([digests[i] for i in range(page.rows) if page.outcomes[i] == NOT_DELIVERED])
        kept = [i for i in range(page.rows) if page.outcomes[i] != NOT_DELIVERED]
        if kept:
            self.add_page(select(page, kept))

    def remove(self, digests: Sequence[bytes]) -> None:
        """Take entries out; unknown ones are passed over."""
        if digests:
            self._note(Kind.REMOVED, b"".join(digests))
            self._store.remove(digests)
            self._charge()

    def describe(self, value: bytes) -> Description:
        """Spell out a value that ``find`` returned."""
        content, number, offset, _ = describe(value)
        return Description(content, self.topics[number], offset)

    def standings(self, digests: Sequence[bytes]) -> list[Standing | None]:
        """Return how each message stands, None where it has no entry."""
        found: list[Standing | None] = []
        for digest, value in zip(digests, self.find(digests), strict=True):
            content, _, _, is_dead = describe(value) if value is not None else (b"", 0, 0, False)
            found.append(None if value is None else Standing(content, is_dead, self._replays.get(digest, 0)))
        return found

    @property
    def has_replays(self) -> bool:
        """Was anything ever redriven?"""
        return bool(self._replays)

    def replay(self, digest: bytes) -> int:
        """Return the highest replay number known of a digest.

        Known also of one whose entry was taken out: whoever enters such a message anew writes this number, since an
        entry with a lower one would not count.
        """
        return self._replays.get(digest, 0)

    def keep_below(self, stored: Mapping[LogPartition, int], meanwhile: Callable[[], object] = bool) -> int:
        """Drop entries at or above the position that the destination's store holds; return how many.

        For table routes, once after a restore: there the inbox decides, so that a database restored from backup
        is filled again. An unknown offset is above every position. What came from a topic that ``stored`` does not name
        stays: the route reads it no more, and another of its topics may bring the same messages. Calls ``meanwhile``
        between the pieces of a large index; nothing is dropped if that raises.
        """
        limits = [stored.get(LogPartition(topic, self.partition), ABOVE_ALL) for topic in self.topics]
        above: list[bytes] = []
        for chunk in self._store.chunks():
            above += at_or_above(chunk, limits)
            meanwhile()
        self.remove(above)
        return len(above)

    def from_offsets(self, firsts: Mapping[str, int]) -> bytearray:
        """Return the digests of entries of these log topics at or above an offset, one behind the other.

        An unknown offset is above every one. Goes through the whole index.
        """
        limits = [firsts.get(topic, ABOVE_ALL) for topic in self.topics]
        found = bytearray()
        for chunk in self._store.chunks():
            found += b"".join(at_or_above(chunk, limits))
        return found

    def held(self, digests: Sequence[bytes]) -> Iterator[Held]:
        """Yield the entries of these digests as they stand now; unknown ones are passed over."""
        for digest, value in zip(digests, self.find(digests), strict=True):
            if value is not None:
                content, number, offset, is_dead = describe(value)
                yield Held(digest, self.topics[number], offset, content, is_dead, self._replays.get(digest, 0))

    def chunks(self) -> Iterator[Change]:
        """Yield the whole index as changes that build it; it must not change meanwhile."""
        for rows in self._store.chunks():
            yield Change(Kind.ENTERED, rows)
        if self._replays:
            yield Change(Kind.REPLAYS, _pack_replays(self._replays))
        if len(self.ranges):
            yield Change(Kind.RANGES, self.ranges.pack())

    def apply(self, change: Change) -> None:
        """Make a change again whose topic numbers are this index's own (a checkpoint's, after ``adopt``)."""
        if change.kind is Kind.ENTERED:
            self._enter(change.data)
        elif change.kind is Kind.REMOVED:
            self.remove(split(change.data))
        elif change.kind is Kind.RANGES:
            self.ranges.unpack(change.data)
        else:
            self._set_replays(_replays_in(change.data))

    def adopt(self, topics: Sequence[str]) -> bool:
        """Take over topic numbers; False if they contradict the ones in use."""
        shared = min(len(topics), len(self.topics))
        if list(topics[:shared]) != self.topics[:shared]:
            return False
        for topic in topics[shared:]:
            self._number(topic)
        return True

    def keep_journal(self) -> None:
        """Remember changes from now on, for ``take_journal``; not on disk, where they last by themselves."""
        self._journal = None if self.is_on_disk else []

    def take_journal(self) -> list[Change]:
        """Return the changes since the last call, in order; none while no journal is kept."""
        if self._journal is None:
            return []
        changed = self.ranges.take_changes()
        taken, self._journal = self._journal, []
        return [*taken, Change(Kind.RANGES, changed)] if changed else taken

    def remember(self, name: bytes, value: bytes) -> None:
        """Keep a small fact beside the entries, behind all of them; it lasts as long as they do."""
        self._store.remember(name, value)

    def recall(self, name: bytes) -> bytes | None:
        """Return a fact kept beside the entries, or None."""
        return self._store.recall(name)

    def renew(self, low: int, high: int) -> bool:
        """Let go of entries that have left the monitor, which has offsets ``low`` to ``high`` now; True if it was time.

        Only on disk, and a whole retention's worth at once. Every entry made so far lies below ``high``.
        """
        complete_from = self._store.renew(low, high)
        if complete_from is None:
            return False
        self.ranges.is_complete_only_from(complete_from)
        self.know_replays()
        return True

    def know_replays(self) -> None:
        """Know the replay numbers that the store keeps, and no others."""
        self._replays = {digest: number for digest, number in _replays_in(self._store.replays()).items() if number}

    def clear(self) -> None:
        """Forget every entry, topic and fact."""
        self._store.clear()
        self.topics, self._numbers, self._replays = [], {}, {}
        self.ranges.clear()
        self._journal = None if self._journal is None else []
        self._charge()

    def close(self) -> None:
        """Release the store and what was charged to the budget."""
        self._store.close()
        if self._budget is not None:
            self._budget.used -= self._charged
            self._charged = 0

    def _enter(self, rows: bytes) -> None:
        if rows:
            self._note(Kind.ENTERED, rows)
            self._store.enter(rows)
            self._charge()

    def _note(self, kind: Kind, data: bytes) -> None:
        if self._journal is not None:
            self._journal.append(Change(kind, data))

    def _charge(self) -> None:
        if self._budget is None or self.is_on_disk:
            return
        grown = len(self._store) - self._charged
        self._budget.used += grown
        self._charged += grown
        if grown > 0 and self._budget.is_exceeded and self._directory is not None:
            self._move_to_disk(self._budget, self._directory)

    def _move_to_disk(self, budget: Budget, directory: Path) -> None:
        disk = DiskRows(directory)
        disk.clear()
        for chunk in self._store.chunks():
            disk.enter(chunk)
        disk.remember(TOPICS_FACT, orjson.dumps(self.topics))
        disk.note_replays(_pack_replays(self._replays))
        disk.remember(RANGES_FACT, self.ranges.pack())
        self._store.close()
        self._use(disk)
        self._journal = None
        budget.used -= self._charged
        self._charged = 0

    def _number(self, topic: str) -> int:
        number = self._numbers.get(topic)
        if number is not None:
            return number
        if len(self.topics) == _TOPICS_MAX:
            raise Stopped(
                f"monitor partition {self.partition} has entries of more than {_TOPICS_MAX} log topics; "
                "split the route so that `from` names fewer"
            )
        number = self._numbers[topic] = len(self.topics)
        self.topics.append(topic)
        # Written before the first row that uses the number.
        self._store.remember(TOPICS_FACT, orjson.dumps(self.topics))
        return number

    def _not_outrun(self, rows: bytes, page: Page) -> bytes:
        """Leave out rows that an entry with a higher replay number outruns; remember new replay numbers."""
        replays = page.replays or bytes(page.rows)
        kept, new, outrun = [], dict[bytes, int](), list[bytes]()
        for i, digest in enumerate(split(page.digests)):
            if digest in new and new[digest] > replays[i]:
                continue
            if self._replays.get(digest, 0) > replays[i]:
                outrun.append(digest)
                continue
            kept.append(rows[i * ROW_BYTES : (i + 1) * ROW_BYTES])
            if replays[i]:
                new[digest] = replays[i]
        # What outruns a row is as needed as the row would be: a store that drops what is old must not drop it before.
        self._set_replays({digest: self._replays[digest] for digest in outrun} | new)
        stays = [digest + value for digest, value in zip(outrun, self.find(outrun), strict=True) if value is not None]
        return b"".join([*stays, *kept])

    def _set_replays(self, replays: Mapping[bytes, int]) -> None:
        if not replays:
            return
        self._note(Kind.REPLAYS, _pack_replays(replays))
        for digest, replay in replays.items():
            if replay:
                self._replays[digest] = replay
            else:
                self._replays.pop(digest, None)
        self._store.note_replays(_pack_replays(replays))


def was_moved(place: Path) -> bool:
    """Tell whether an index was moved to this place. One that nobody may look for counts as none: the monitor has it all."""
    try:
        return place.exists()
    except OSError:
        return False


def open_index(directory: Path, partition: int, budget: Budget) -> DedupIndex:
    """Open the index of a monitor partition: on disk if it was moved there earlier, else empty in memory.

    ``directory`` belongs to this worker, route and monitor topic.
    """
    place = directory / f"{partition}.rocksdb"
    if not was_moved(place):
        return DedupIndex(partition, MemoryRows(), budget=budget, directory=place)
    index = DedupIndex(partition, DiskRows(place))
    try:
        index.adopt(orjson.loads(index.recall(TOPICS_FACT) or b"[]"))
        index.know_replays()
        index.apply(Change(Kind.RANGES, index.recall(RANGES_FACT) or b""))
    except UnknownRecord as error:
        index.close()
        raise UnusableStoreError(f"{place.name} has ranges that cannot be read: {error}") from error
    return index


def _pack_replays(replays: Mapping[bytes, int]) -> bytes:
    return b"".join([digest + bytes([replay]) for digest, replay in replays.items()])


def _replays_in(packed: bytes) -> dict[bytes, int]:
    return {cell[:DIGEST_BYTES]: cell[DIGEST_BYTES] for cell in split(packed, _REPLAY_BYTES)}

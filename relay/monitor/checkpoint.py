"""Checkpoints of the deduplication index: a restart reads only the monitor's tail. The monitor stays the truth.

What cannot be read, or belongs to another monitor, is left out with a reason; that costs time, never correctness.
An index in memory has a file of blocks to which changes are appended; an index on disk keeps the same facts beside
its entries. Applying changes twice, in their order, changes nothing; so a position may lag behind its entries.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final

import orjson
import structlog

from relay.message.errors import Unreachable
from relay.monitor.index import Budget, Change, DedupIndex, Kind, open_index, was_moved
from relay.monitor.rows import CHECKPOINT_FACT, RANGES_FACT, ROW_BYTES
from relay.monitor.rows_on_disk import UnusableStoreError

log = structlog.get_logger("relay.checkpoint")

VERSION: Final = 2
DISK_VERSION: Final = 4
"""Of an index on disk. Who knows only one before reads the monitor anew: he would miss generations, or replay numbers."""
DISK_VERSIONS: Final = (VERSION, 3, DISK_VERSION)
"""What is read: one generation, two of them, and replay numbers under keys of their own."""
_FACTS: Final = 0
_HEAD: Final = Struct(">4sBI16s")
"""Magic, kind of block, bytes of data, BLAKE2b-16 of kind and data. Never change without a new version."""
_MAGIC: Final = b"RLYc"
_BLOCK_BYTES_MAX: Final = 1 << 20
"""A block grows up to this size; only a single change may be larger."""
_DATA_BYTES_MAX: Final = 1 << 30
_SHARED: Final = "another relay has written there; give each relay its own [relay] state directory"
_REWRITE_FLOOR: Final = 1 << 22
"""Files below 4 MiB are read in milliseconds, however much of them is outdated."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which monitor partition a checkpoint belongs to; ``topic_id`` in hex, since topics get recreated."""

    relay: str
    route: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a checkpoint gave: read the monitor from ``position`` on; ``reason`` says why not more, or is empty.

    ``first`` is the position at the first save of this index: how far its oldest entries may go back.
    """

    position: int
    first: int | None
    reason: str


class CheckpointFile:
    """The file of one index in memory: facts first, then changes in their order, each block with a checksum."""

    def __init__(self, path: Path, identity: Identity) -> None:
        self._path = path
        self._identity = identity
        self._good_bytes = 0
        self._header = b""

    def load(self, index: DedupIndex) -> Loaded:
        """Fill an empty index; on any fault of the file as far as it is whole."""
        self._good_bytes = 0
        try:
            with self._path.open("rb") as file:
                return self._read(file, index)
        except FileNotFoundError:
            return Loaded(0, None, "")
        except OSError as error:
            index.clear()
            return Loaded(0, None, f"{self._path.name} cannot be read: {error.strerror}")
        except ValueError as error:
            # A whole block of another version: of a kind, or with ranges, that this one does not know.
            index.clear()
            self._good_bytes = 0
            return Loaded(0, None, f"{self._path.name} cannot be read: {error}")

    def save(self, index: DedupIndex, position: int, first: int) -> None:
        """Append the index's journal, or write the file anew when most of it is outdated; durable on return."""
        journal = index.take_journal()
        known, self._good_bytes = self._good_bytes, 0
        try:
            if known == 0 or known > max(_REWRITE_FLOOR, 2 * len(index) * ROW_BYTES):
                self._good_bytes = self._rewrite(index, position, first)
            else:
                self._good_bytes = self._append(journal, index.topics, position, known)
        except OSError as error:
            # Go on: the monitor has it all. With no good bytes known, the next save writes the whole index.
            log.warning("checkpoint not written", file=self._path.name, reason=error.strerror)

    def delete(self) -> None:
        """Remove the file; the next save writes all of the index."""
        self._good_bytes = 0
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            # Go on: whoever reads it again finds again what is wrong with it.
            log.warning("checkpoint not removed", file=self._path.name, reason=error.strerror)

    def _append(self, journal: Iterable[Change], topics: list[str], position: int, good_bytes: int) -> int:
        with self._path.open("r+b") as file:
            if file.read(len(self._header)) != self._header:
                # Its blocks and ours would be read as one index. The next save writes the file anew.
                log.warning("checkpoint not written", file=self._path.name, reason=_SHARED)
                return 0
            # Whatever lies behind the last whole block is cut off.
            file.truncate(good_bytes)
            file.seek(good_bytes)
            _write(file, _blocks(journal, topics, position))
            return file.tell()

    def _rewrite(self, index: DedupIndex, position: int, first: int) -> int:
        temporary = self._path.with_suffix(".new")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                self._header = _block(_FACTS, orjson.dumps(_identity_facts(self._identity, first)))
                _write(file, chain([self._header], _blocks(index.chunks(), index.topics, position)))
                length = file.tell()
            temporary.replace(self._path)
        except OSError:
            # On a full disk, what did not fit would keep the room that others there wait for.
            with suppress(OSError):
                temporary.unlink()
            raise
        _sync_directory(self._path.parent)
        return length

    def _read(self, file: BinaryIO, index: DedupIndex) -> Loaded:
        blocks = _read_blocks(file)
        kind, data = next(blocks, (_FACTS, b""))
        header = _facts(data)
        reason = _mismatch(header, self._identity)
        if reason:
            return Loaded(0, None, f"{self._path.name}: {reason}")
        position = 0
        self._header = _block(kind, data)
        self._good_bytes = file.tell()
        for kind, data in blocks:
            if kind == _FACTS:
                facts = orjson.loads(data)
                position = facts.get("position", position)
                if not index.adopt(facts.get("topics", ())):
                    break
            else:
                index.apply(Change(Kind(kind), data))
            self._good_bytes = file.tell()
        if self._good_bytes < self._path.stat().st_size:
            reason = f"{self._path.name} is damaged or torn behind byte {self._good_bytes}; the rest comes from Kafka"
        return Loaded(position, header["first"], reason)


class CheckpointStore:
    """Opens and saves the indexes of one route in a directory below the worker's state directory.

    ``watermarks`` gives a monitor partition's low and high watermark: a checkpoint beyond the high one belongs to
    another life of the topic, and one that began below the low one holds entries that the monitor has dropped by
    now. The latter bounds the index to two retention periods plus what one process adds in its life; on disk that is
    bounded as well (``renew``).
    """

    def __init__(
        self,
        directory: Path,
        *,
        relay: str,
        route: str,
        topic_id: bytes,
        budget: Budget,
        watermarks: Callable[[int], tuple[int, int]] | None = None,
    ) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            # Go on: nothing in memory needs it, and each save tries again.
            log.warning("no place for checkpoints", directory=directory.name, reason=error.strerror)
        self._directory = directory
        self._names = (relay, route, topic_id.hex())
        self._budget = budget
        self._watermarks = watermarks
        self._firsts: dict[int, int | None] = {}
        self._files: dict[int, CheckpointFile] = {}

    def open(self, partition: int) -> tuple[DedupIndex, int]:
        """Return the index and the monitor offset from which the monitor has to be read."""
        index, loaded = self.load(partition)
        if loaded.reason:
            log.warning("checkpoint ignored", partition=partition, reason=loaded.reason)
        return index, loaded.position

    def load(self, partition: int) -> tuple[DedupIndex, Loaded]:
        """Return the index, what was found, and why nothing or not all of it was.

        Raises Stopped if another process uses the directory.
        """
        identity = Identity(*self._names, partition)
        index, loaded = self._load(identity)
        if self._watermarks is not None and loaded.first is not None:
            with _closed_on_failure(index):
                stale = _staleness(loaded, *self._watermarks(partition))
            if stale:
                self.forget(index)
                loaded = Loaded(0, None, stale)
        self._firsts[partition] = loaded.first
        index.keep_journal()
        return index, loaded

    def save(self, index: DedupIndex, monitor_offset: int) -> None:
        """Make the index durable: below ``monitor_offset`` it holds all that the monitor proves.

        A file that cannot be written is logged and written anew the next time.
        """
        partition = index.partition
        first = self._firsts[partition]
        if first is None:
            first = self._firsts[partition] = monitor_offset
        if not index.is_on_disk:
            self._files[partition].save(index, monitor_offset, first)
            return
        facts = {
            **_identity_facts(Identity(*self._names, partition), first),
            "version": DISK_VERSION,
            "position": monitor_offset,
        }
        index.remember(RANGES_FACT, index.ranges.pack())
        index.remember(CHECKPOINT_FACT, orjson.dumps(facts))
        self._files[partition].delete()

    def renew(self, index: DedupIndex) -> None:
        """Let an index on disk drop what has left the monitor, once it was saved; raises Unreachable if nobody tells."""
        if not index.is_on_disk or self._watermarks is None:
            return
        low, high = self._watermarks(index.partition)
        if index.renew(low, high):
            self._firsts[index.partition] = high
            log.info("index renewed", partition=index.partition, entries=len(index), bytes=index.bytes_used)

    def forget(self, index: DedupIndex) -> None:
        """Empty an index and throw its checkpoint away: it tells of another monitor than there is."""
        index.clear()
        self._files[index.partition].delete()

    def close(self, index: DedupIndex) -> None:
        """Let go of an index, without saving it."""
        index.close()
        del self._files[index.partition], self._firsts[index.partition]

    def _load(self, identity: Identity) -> tuple[DedupIndex, Loaded]:
        """Prefer the index on disk; an invalid one (a move that was cut short, too) gives way to the file."""
        partition = identity.partition
        file = self._files[partition] = CheckpointFile(self._directory / f"{partition}.checkpoint", identity)
        place = self._directory / f"{partition}.rocksdb"
        reason = ""
        if was_moved(place):
            try:
                index = open_index(self._directory, partition, self._budget)
                facts = _facts(index.recall(CHECKPOINT_FACT))
                reason = _mismatch(facts, identity, DISK_VERSIONS)
                if not reason:
                    return index, Loaded(facts["position"], facts["first"], "")
                index.close()
            except UnusableStoreError as error:
                reason = str(error)
            _remove(place)
        index = open_index(self._directory, partition, self._budget)
        with _closed_on_failure(index):
            loaded = file.load(index)
        return index, loaded if loaded.reason or not reason else replace(
            loaded, reason=f"{place.name}: {reason}"
        )


@contextmanager
def _closed_on_failure(index: DedupIndex) -> Iterator[None]:
    """Whoever tries again opens another one: what this one has charged to the budget would count for ever."""
    try:
        yield
    except Exception:
        index.close()
        raise


def _remove(place: Path) -> None:
    try:
        shutil.rmtree(place)
    except OSError as error:
        # Retry: what lies there must not be used, and nothing can take its place while it is there.
        raise Unreachable(
            f"{place} is of no use any more and cannot be removed ({error.strerror}): let the relay write there, or "
            "remove it"
        ) from error


def _staleness(loaded: Loaded, low: int, high: int) -> str:
    if loaded.position > high:
        return f"the checkpoint is complete up to {loaded.position}, but the monitor ends at {high}"
    if loaded.first is not None and loaded.first < low:
        return f"the checkpoint's first entries have aged out of the monitor, which starts at {low}"
    return ""


def _identity_facts(identity: Identity, first: int) -> dict[str, Any]:
    return {"version": VERSION, **asdict(identity), "first": first}


def _mismatch(facts: dict[str, Any], identity: Identity, versions: tuple[int, ...] = (VERSION,)) -> str:
    """Say how facts contradict what is expected; nothing if they do not."""
    if not facts:
        return "no whole header"
    version = facts.get("version")
    expected = {"version": version if version in versions else versions[-1], **asdict(identity)}
    wrong = [f"{name} is {facts.get(name)!r} instead of {value!r}" for name, value in expected.items()
             if facts.get(name) != value]  # fmt: skip
    return "; ".join(wrong)


def _facts(data: bytes | None) -> dict[str, Any]:
    facts: dict[str, Any] = orjson.loads(data or b"{}")
    return facts


def _blocks(changes: Iterable[Change], topics: list[str], position: int) -> Iterator[bytes]:
    """Yield topic numbers before the rows that use them, and the position behind all it speaks of."""
    yield _block(_FACTS, orjson.dumps({"topics": topics}))
    for kind, group in groupby(changes, attrgetter("kind")):
        gathered = bytearray()
        for change in group:
            if len(gathered) + len(change.data) > _BLOCK_BYTES_MAX and gathered:
                yield _block(kind, gathered)
                gathered = bytearray()
            gathered += change.data
        yield _block(kind, gathered)
    yield _block(_FACTS, orjson.dumps({"position": position}))


def _block(kind: int, data: bytes | bytearray) -> bytes:
    return _HEAD.pack(_MAGIC, kind, len(data), _checksum(kind, data)) + data


def _read_blocks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield whole blocks up to the first that is not."""
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        magic, kind, length, checksum = _HEAD.unpack(head)
        if magic != _MAGIC or length > _DATA_BYTES_MAX:
            return
        data = file.read(length)
        if len(data) != length or _checksum(kind, data) != checksum:
            return
        yield kind, data


def _checksum(kind: int, data: bytes | bytearray) -> bytes:
    return blake2b(data, digest_size=16, key=bytes([kind])).digest()


def _write(file: BinaryIO, blocks: Iterable[bytes]) -> None:
    file.writelines(blocks)
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

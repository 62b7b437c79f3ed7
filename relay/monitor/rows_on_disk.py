"""Packed entries in RocksDB: every write goes through one log in order, so a fact is never ahead of its entries.

Entries lie in one or two generations, each a column family: what comes goes into the younger, and the older is dropped
whole once all of it has left the monitor. Both are parts of one database, so a process may be killed between any two steps.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import orjson
from rocksdict import BlockBasedOptions, Options, Rdict, WriteBatch

from relay.message.errors import RelayError, Stopped, Unreachable
from relay.message.identity import DIGEST_BYTES
from relay.message.limits import AT_LIMIT, limit_met
from relay.monitor.rows import CHUNK_ROWS, FACTS, RowStore, split, unpack

_BROKEN: Final = "RELAY-BROKEN"
_CHECK: Final = b"check"
_END: Final = b"end"
"""The older generation's number, and the monitor offset below which the entries in it lie."""
_REPLAY: Final = b"replay/"
"""Before a digest, under which its replay number lies: no digest begins like that but by chance, so a walk of them meets no entries."""
_REPLAYS: Final = b"replays"
"""Under which earlier versions kept all of a generation, as one value that each redrive wrote anew."""
_ABOVE_ALL_KEYS: Final = b"\xff" * (DIGEST_BYTES + 1)
_BLOOM_BITS: Final = 10
"""About 1 % of the lookups of an unknown digest read a block; new messages are unknown ones."""
_LOG_BYTES: Final = 1 << 26
"""A generation that is hardly written to would keep the log of the other one for ever."""


class UnusableStoreError(RelayError):
    """The directory holds no database that can be used; it is removed at the next start, and the monitor read."""


_NO_PLACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM})
"""A disk that is full or may not be written says nothing of the database that lies on it."""
_LIMITS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Nor does a process that may open no further file, or has no memory left."""
_NUMBER: Final = re.compile(r"\(os error \d+\)")
_MAKE_ROOM: Final = "make room there, or let the relay write there"


class IndexAtLimitError(RelayError):
    """The database failed for a limit of this process, or its disk, after which it writes no more; the next process finds it whole."""

    exit_code = 3


class _Generation(NamedTuple):
    """Entries in a column family that is named by its number; number 0 is the default one, where the facts lie as well."""

    number: int
    table: Rdict


class DiskRows(RowStore):
    """Entries under their 16-byte digests; facts, and the replay number of a digest, under keys of any other length."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._limit: str | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._no_place(os.strerror(error.errno or 0)) from error
        self._open()

    def _open(self) -> None:
        if (self._directory / _BROKEN).exists():
            raise UnusableStoreError(f"{self._directory.name} failed while it was in use")
        try:
            names = self._column_families()
            # Each is named with its options: what the library opens by itself has no filter.
            self._database = Rdict(str(self._directory), _options(), {name: _options() for name in names})
        except Exception as error:
            # The binding raises nothing more precise; the text tells the one case that needs a person.
            if (limit := _limit_in(error)) is not None:
                raise Unreachable(f"the deduplication index {self._directory} cannot be opened: {limit}") from error
            if (words := _ending(error, _NO_PLACE)) is not None:
                raise self._no_place(words) from error
            if "/LOCK: " in str(error):
                raise Stopped(
                    f"{self._directory} is in use by another process; give each relay its own [relay] state directory"
                ) from error
            raise UnusableStoreError(f"{self._directory.name} cannot be opened: {error}") from error
        numbers = {0, *map(int, names)}
        last = max(numbers)
        self._younger = self._generation(last)
        # Where it was dropped, and the process died before another was begun, there is none.
        self._older = self._generation(last - 1) if last - 1 in numbers else None
        self._check()

    def _column_families(self) -> list[str]:
        try:
            return [name for name in Rdict.list_cf(str(self._directory)) if name != "default"]
        except Exception:
            if (self._directory / "CURRENT").exists():
                raise  # opened without its families it would pass for one that knows none of what is in them
            return []  # a new one

    def _generation(self, number: int) -> _Generation:
        return _Generation(number, self._database.get_column_family(str(number)) if number else self._database)

    def _check(self) -> None:
        """Find what is written, by the calls that entries go through.

        A library that answers otherwise than it is asked would let every repeat pass for a new message, without a word.
        """
        batch = self._batch()
        batch.put(_CHECK, _CHECK)
        with self._guarded():
            self._database.write(batch)
            found = self._younger.table.get([_CHECK, _CHECK + b"?"])
            self._younger.table.delete(_CHECK)
        if found != [_CHECK, None]:
            self.close()
            raise Stopped(
                f"the deduplication index {self._directory} does not find what was just written there: rocksdict "
                f"{version('rocksdict')} does not work on this machine; install another one (this relay needs 0.3.28 "
                "at least)"
            )

    def _no_place(self, words: str) -> Unreachable:
        return Unreachable(
            f"the deduplication index has outgrown the memory, and {self._directory} cannot be written "
            f"({words}): {_MAKE_ROOM}"
        )

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Leave a mark when the database fails: a damaged block would stop every later start as well."""
        try:
            yield
        except Exception as error:
            # Whatever it says of itself after that comes of it, and often does not repeat it.
            self._limit = self._limit or _limit_in(error) or _no_room_in(error)
            if self._limit is not None:
                raise IndexAtLimitError(f"the deduplication index {self._directory} failed: {self._limit}") from error
            with suppress(OSError):  # the disk that failed may take no mark either
                (self._directory / _BROKEN).touch()
            raise UnusableStoreError(
                f"the deduplication index {self._directory} failed ({error}); start again: it will be restored "
                "from the monitor"
            ) from error

    def _batch(self) -> WriteBatch:
        """A batch that writes to the younger generation; a handle that is kept would keep what is dropped."""
        batch = WriteBatch(raw_mode=True)
        if self._younger.number:
            batch.set_default_column_family(self._handle(self._younger))
        return batch

    def _handle(self, generation: _Generation) -> Any:
        return self._database.get_column_family_handle(str(generation.number) if generation.number else "default")

    def find(self, digests: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each digest or None."""
        if not digests:
            return []
        with self._guarded():
            found = _values(self._younger, digests)
            if self._older is not None and None in found:
                missing = [i for i, value in enumerate(found) if value is None]
                for i, value in zip(missing, _values(self._older, [digests[i] for i in missing]), strict=True):
                    found[i] = value
        return found

    def enter(self, rows: bytes) -> None:
        """Add or replace the entries of packed rows, all or none."""
        batch = self._batch()
        for digest, value in zip(*unpack(rows), strict=True):
            batch.put(digest, value)
        with self._guarded():
            self._database.write(batch)

    def remove(self, digests: Sequence[bytes]) -> None:
        """Take entries out, all or none; unknown ones are passed over."""
        batch = WriteBatch(raw_mode=True)
        for generation in self._generations():
            handle = self._handle(generation)
            for digest in digests:
                batch.delete(digest, handle)
        with self._guarded():
            self._database.write(batch)

    def chunks(self) -> Iterator[bytes]:
        """Yield all entries as packed rows; those of the older generation that the younger has not."""
        yield from self._walk(self._younger)
        if self._older is not None:
            for chunk in self._walk(self._older):
                digests, values = unpack(chunk)
                with self._guarded():
                    newer = _values(self._younger, digests)
                rows = zip(digests, values, newer, strict=True)
                if rest := b"".join([digest + value for digest, value, known in rows if known is None]):
                    yield rest

    def _walk(self, generation: _Generation) -> Iterator[bytes]:
        pairs = cast("Iterator[tuple[bytes, bytes]]", generation.table.items())
        last = b""
        while part := list(islice(pairs, CHUNK_ROWS)):
            last = part[-1][0]
            if chunk := b"".join([key + value for key, value in part if len(key) == DIGEST_BYTES]):
                yield chunk
        with self._guarded():
            _check_block(generation, last)

    def renew(self, low: int, high: int) -> int | None:
        """Drop the older generation once its entries lie below ``low``; where there is only one, begin another."""
        gone = 0
        if self._older is not None:
            end = self._end_of(self._older)
            if end is None:
                # The process died before it was written. What came since then lies in the younger one.
                self.remember(_END, orjson.dumps([self._older.number, high]))
            if end is None or end > low:
                return None
            gone = end
            self._drop(self._older)
        number = self._younger.number + 1
        with self._guarded():
            table = self._database.create_column_family(str(number), _options())
        self._older, self._younger = self._younger, _Generation(number, table)
        self.remember(_END, orjson.dumps([self._older.number, high]))
        return gone

    def _end_of(self, generation: _Generation) -> int | None:
        number, end = orjson.loads(self.recall(_END) or b"[-1, 0]")
        return int(end) if number == generation.number else None

    def _drop(self, generation: _Generation) -> None:
        self._older = None
        if generation.number:
            generation.table.close()
            with self._guarded():
                self._database.drop_column_family(str(generation.number))
            return
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(b"", _ABOVE_ALL_KEYS)
        for name in (*FACTS, _END):  # not the replay numbers, which age as the entries do
            if (value := self.recall(name)) is not None:
                batch.put(name, value)
        with self._guarded():
            self._database.write(batch)
            self._database.compact_range(None, None)

    def _generations(self) -> list[_Generation]:
        return [self._younger] if self._older is None else [self._younger, self._older]

    def __len__(self) -> int:
        tables = [generation.table for generation in self._generations()]
        return sum(int(table.property_int_value("rocksdb.estimate-num-keys") or 0) for table in tables)

    @property
    def bytes_used(self) -> int:
        """Bytes of disk and of tables not yet flushed, estimated."""
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        tables = [generation.table for generation in self._generations()]
        return sum(int(table.property_int_value(name) or 0) for table in tables for name in names)

    def remember(self, name: bytes, value: bytes) -> None:
        """Keep a fact, behind every entry written so far."""
        assert name in FACTS or name == _END
        with self._guarded():
            self._database[name] = value

    def recall(self, name: bytes) -> bytes | None:
        """Return a fact or None."""
        with self._guarded():
            return cast("bytes | None", self._database.get(name))

    def note_replays(self, packed: bytes) -> None:
        """Keep replay numbers in the younger generation; they go with it.

        A number of 0 is kept as well: it takes back what the older generation, or an earlier version, has under the digest.
        """
        batch = self._batch()
        for cell in split(packed, DIGEST_BYTES + 1):
            batch.put(_REPLAY + cell[:DIGEST_BYTES], cell[DIGEST_BYTES:])
        with self._guarded():
            self._database.write(batch)

    def replays(self) -> bytes:
        """Return what is kept in both generations, of each behind what an earlier version had written there."""
        with self._guarded():
            return b"".join(part for generation in reversed(self._generations()) for part in _replays_in(generation))

    def clear(self) -> None:
        """Forget everything: the directory is made anew."""
        self.close()
        Rdict.destroy(str(self._directory), Options(raw_mode=True))
        self._open()

    def close(self) -> None:
        """Close the database, which writes what is in memory only; the directory can be opened again."""
        with self._guarded():
            for generation in self._generations():
                if generation.number:
                    generation.table.close()
            self._database.close()


def _limit_in(error: Exception) -> str | None:
    """Return what an error says of a limit of this process; None if it may be the database's own."""
    words = _ending(error, _LIMITS)
    return limit_met(error) if words is None else f"{words}; {AT_LIMIT}"


def _no_room_in(error: Exception) -> str | None:
    """Return what an error says of a disk that takes nothing; None if it may be the database's own."""
    words = _ending(error, _NO_PLACE)
    return None if words is None else f"{words}; {_MAKE_ROOM}"


def _ending(error: Exception, numbers: frozenset[int]) -> str | None:
    """Return the words of one of these numbers, if an error's sentence ends so: the database's do, the binding's add the number."""
    said = _NUMBER.sub("", str(error)).rstrip()
    return next((words for words in map(os.strerror, sorted(numbers)) if said.endswith(words)), None)


def _values(generation: _Generation, digests: Sequence[bytes]) -> list[bytes | None]:
    return cast("list[bytes | None]", generation.table.get(list(digests)))


def _check_block(generation: _Generation, last: bytes) -> None:
    """Raise what the library has to say of what comes behind a key: items that are walked end at a damaged block without a word."""
    rest = generation.table.iter()
    rest.seek(last + b"\0")
    rest.status()


def _replays_in(generation: _Generation) -> Iterator[bytes]:
    yield cast("bytes | None", generation.table.get(_REPLAYS)) or b""
    last = _REPLAY
    for key, replay in cast("Iterator[tuple[bytes, bytes]]", generation.table.items(from_key=_REPLAY)):
        if not key.startswith(_REPLAY):
            break
        last = key
        yield key.removeprefix(_REPLAY) + replay
    _check_block(generation, last)


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_max_log_file_size(1 << 20)
    options.set_keep_log_file_num(2)
    options.set_max_total_wal_size(_LOG_BYTES)
    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(_BLOOM_BITS, block_based=False)
    options.set_block_based_table_factory(blocks)
    return options

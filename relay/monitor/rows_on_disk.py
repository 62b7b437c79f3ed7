"""Packed entries in RocksDB: every write goes through one log in order, so a fact is never ahead of its entries."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Final, cast

from rocksdict import BlockBasedOptions, Options, Rdict, WriteBatch

from relay.message.errors import RelayError, Stopped, Unreachable
from relay.message.identity import DIGEST_BYTES
from relay.monitor.rows import CHUNK_ROWS, RowStore, unpack

_BROKEN: Final = "RELAY-BROKEN"
_CHECK: Final = b"check"
_BLOOM_BITS: Final = 10
"""About 1 % of the lookups of an unknown digest read a block; new messages are unknown ones."""


class UnusableStoreError(RelayError):
    """The directory holds no database that can be used; it is removed at the next start, and the monitor read."""


_NO_PLACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})
"""A disk that is full or may not be written says nothing of the database that lies on it."""
_NUMBER: Final = re.compile(r"\(os error (\d+)\)")


class DiskRows(RowStore):
    """Entries under their 16-byte digests; facts under keys of any other length."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._no_place(error.errno or 0) from error
        self._open()

    def _open(self) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_max_log_file_size(1 << 20)
        options.set_keep_log_file_num(2)
        blocks = BlockBasedOptions()
        blocks.set_bloom_filter(_BLOOM_BITS, block_based=False)
        options.set_block_based_table_factory(blocks)
        if (self._directory / _BROKEN).exists():
            raise UnusableStoreError(f"{self._directory.name} failed while it was in use")
        try:
            self._database = Rdict(str(self._directory), options)
        except Exception as error:
            # The binding raises nothing more precise; the text tells the one case that needs a person.
            if "/LOCK: " in str(error):
                raise Stopped(
                    f"{self._directory} is in use by another process; give each relay its own [relay] state directory"
                ) from error
            number = _NUMBER.search(str(error))
            if number is not None and int(number[1]) in _NO_PLACE:
                raise self._no_place(int(number[1])) from error
            raise UnusableStoreError(f"{self._directory.name} cannot be opened: {error}") from error
        self._check()

    def _check(self) -> None:
        """Find what is written, by the calls that entries go through.

        A library that answers otherwise than it is asked would let every repeat pass for a new message, without a word.
        """
        batch = WriteBatch(raw_mode=True)
        batch.put(_CHECK, _CHECK)
        with self._guarded():
            self._database.write(batch)
            found = self._database.get([_CHECK, _CHECK + b"?"])
            self._database.delete(_CHECK)
        if found != [_CHECK, None]:
            self._database.close()
            raise Stopped(
                f"the deduplication index {self._directory} does not find what was just written there: rocksdict "
                f"{version('rocksdict')} does not work on this machine; install another one (this relay needs 0.3.28 "
                "at least)"
            )

    def _no_place(self, number: int) -> Unreachable:
        return Unreachable(
            f"the deduplication index has outgrown the memory, and {self._directory} cannot be written "
            f"({os.strerror(number)}): make room there, or let the relay write there"
        )

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Leave a mark when the database fails: a damaged block would stop every later start as well."""
        try:
            yield
        except Exception as error:
            with suppress(OSError):  # the disk that failed may take no mark either
                (self._directory / _BROKEN).touch()
            raise UnusableStoreError(
                f"the deduplication index {self._directory} failed ({error}); start again: it will be restored "
                "from the monitor"
            ) from error

    def find(self, digests: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each digest or None."""
        if not digests:
            return []
        with self._guarded():
            return cast("list[bytes | None]", self._database.get(list(digests)))

    def enter(self, rows: bytes) -> None:
        """Add or replace the entries of packed rows, all or none."""
        batch = WriteBatch(raw_mode=True)
        for digest, value in zip(*unpack(rows), strict=True):
            batch.put(digest, value)
        with self._guarded():
            self._database.write(batch)

    def remove(self, digests: Sequence[bytes]) -> None:
        """Take entries out, all or none; unknown ones are passed over."""
        batch = WriteBatch(raw_mode=True)
        for digest in digests:
            batch.delete(digest)
        with self._guarded():
            self._database.write(batch)

    def chunks(self) -> Iterator[bytes]:
        """Yield all entries as packed rows, as they were when the iteration began."""
        pairs = cast("Iterator[tuple[bytes, bytes]]", self._database.items())
        last = b""
        while part := list(islice(pairs, CHUNK_ROWS)):
            last = part[-1][0]
            if chunk := b"".join([key + value for key, value in part if len(key) == DIGEST_BYTES]):
                yield chunk
        with self._guarded():
            # The iteration above ends without a word at a damaged block; this one says whether it met one.
            rest = self._database.iter()
            rest.seek(last + b"\0")
            rest.status()

    def __len__(self) -> int:
        return int(self._database.property_int_value("rocksdb.estimate-num-keys") or 0)

    @property
    def bytes_used(self) -> int:
        """Bytes of disk and of tables not yet flushed, estimated."""
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(int(self._database.property_int_value(name) or 0) for name in names)

    def remember(self, name: bytes, value: bytes) -> None:
        """Keep a fact, behind every entry written so far."""
        assert len(name) != DIGEST_BYTES
        with self._guarded():
            self._database[name] = value

    def recall(self, name: bytes) -> bytes | None:
        """Return a fact or None."""
        with self._guarded():
            return cast("bytes | None", self._database.get(name))

    def clear(self) -> None:
        """Forget everything: the directory is made anew."""
        self._database.close()
        Rdict.destroy(str(self._directory), Options(raw_mode=True))
        self._open()

    def close(self) -> None:
        """Close the database; the directory can be opened again."""
        self._database.close()

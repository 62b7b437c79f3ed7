"""An index on disk as tests open, fill and measure it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from relay.monitor.index import Budget, DedupIndex, open_index
from relay.monitor.rows_on_disk import DiskRows
from tests.unit.test_checkpoint import name, page

PLACE = "0.rocksdb"


def on_disk(directory: Path) -> DedupIndex:
    if not (directory / PLACE).exists():
        DiskRows(directory / PLACE).close()
    return open_index(directory, 0, Budget(10**6))


def offsets(index: DedupIndex, numbers: range) -> dict[int, int]:
    values = index.find([name(i) for i in numbers])
    return {i: index.describe(value).offset for i, value in zip(numbers, values, strict=True) if value is not None}


def doubled(numbers: range) -> dict[int, int]:
    return {i: i * 2 for i in numbers}


def disk_bytes(directory: Path) -> int:
    """Without the library's own chatter, which has a bound of its own."""
    found = 0
    for path in directory.rglob("*"):
        if path.suffix in {".sst", ".log"}:
            with suppress(FileNotFoundError):  # the store deletes in a thread of its own
                found += path.stat().st_size
    return found


def hashed(numbers: range) -> Any:
    """Digests that no compression makes smaller."""
    made = page(numbers)
    digests = b"".join(blake2b(name(number), digest_size=16).digest() for number in numbers)
    return replace(made, digests=digests, contents=digests[::2])


def entered(numbers: list[int], offset: int, replay: int) -> Any:
    made = page(numbers, replays=bytes([replay]) * len(numbers) if replay else b"")
    made.offsets[:] = [offset] * len(numbers)
    return made

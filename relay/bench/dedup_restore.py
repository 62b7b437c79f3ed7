"""Restoring the deduplication index, from the monitor and from a checkpoint, against consuming plain records."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from relay.config.timing import Timing
from relay.kafka import settings
from relay.kafka.plain.clients import append, consume_plainly
from relay.kafka.reading import PartitionReader
from relay.kafka.topics import TopicPlan, Topics
from relay.message.record import LogPartition
from relay.monitor.checkpoint import CheckpointStore
from relay.monitor.entries import (
    PAGE_ROWS,
    Begin,
    Entry,
    InputRange,
    OutputStart,
    Page,
    Proof,
    Seal,
    decode,
    encode,
)
from relay.monitor.evidence import Evidence
from relay.monitor.index import Budget, DedupIndex
from relay.world import clock

TRANSACTION_ROWS: Final = 8_192
"""Entries of one transaction in one monitor partition: two full pages between a begin and a seal."""
DEADLINE_S: Final = 60.0
_INSTANCE: Final = secrets.token_bytes(16)


def run(kafka: str, entries: int = 2_000_000) -> dict[str, Any]:
    """Write ``entries`` entries and as many plain records of the same bytes, and return the row of the report.

    ``value`` is the restore from the monitor in entries/s: read, fold, index. Disk is bytes of keys and values, which
    the broker stores as they are (digests do not compress), and of the checkpoint's file, per entry.
    """
    suffix = secrets.token_hex(4)
    monitor, plain = (LogPartition(f"relay-bench-{suffix}-{side}", 0) for side in ("monitor", "plain"))
    with (
        Topics({"bootstrap.servers": kafka}, Timing()) as topics,
        tempfile.TemporaryDirectory(prefix="relay-bench-") as directory,
    ):
        topics.create([TopicPlan(one.topic, 1, 1) for one in (monitor, plain)])
        try:
            _, monitor_bytes = append(kafka, monitor, _history(entries))
            append(kafka, plain, ((secrets.token_bytes(16), bytes(16)) for _ in range(entries)))
            facts = topics.describe([monitor.topic])[monitor.topic]
            store = CheckpointStore(
                Path(directory), relay="bench", route="bench", topic_id=facts.topic_id, budget=Budget(entries)
            )
            reference = entries / _timed(lambda: consume_plainly(kafka, plain, entries))[0]
            restored_s, index = _timed(lambda: _restore(kafka, monitor, store, entries))
            saved_s, _ = _timed(lambda: store.save(index, 0))
            store.close(index)
            file_bytes = sum(path.stat().st_size for path in Path(directory).iterdir())
            loaded_s, index = _timed(lambda: store.open(0)[0])
            assert len(index) == entries
        finally:
            topics.delete([monitor.topic, plain.topic])
    return {
        "name": "dedup restore",
        "value": round(entries / restored_s),
        "unit": "entries/s",
        "reference": round(reference),
        "ratio": round(entries / restored_s / reference, 3),
        "checkpoint_entries_per_s": round(entries / loaded_s),
        "checkpoint_write_entries_per_s": round(entries / saved_s),
        "monitor_bytes_per_entry": round(monitor_bytes / entries, 2),
        "checkpoint_bytes_per_entry": round(file_bytes / entries, 2),
    }


def _history(entries: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the monitor records of one instance that delivered ``entries`` messages."""
    for n, first in enumerate(range(0, entries, TRANSACTION_ROWS), 1):
        end = min(first + TRANSACTION_ROWS, entries)
        inputs, outputs = [InputRange("orders", 0, first, end)], [OutputStart("copies", 0, first)]
        yield encode(Begin("worker", "bench.0", _INSTANCE, n, n - 1 if n > 1 else -1, inputs, outputs))
        for number, start in enumerate(range(first, end, PAGE_ROWS)):
            yield encode(_page(n, range(start, min(start + PAGE_ROWS, end))), number)
        yield encode(Seal("worker", _INSTANCE, n))


def _page(n: int, offsets: range) -> Page:
    rows = len(offsets)
    return Page(
        "worker", _INSTANCE, n, Proof.SEALED, None, "orders", 0, secrets.token_bytes(16 * rows),
        secrets.token_bytes(8 * rows), list(offsets), bytes(rows),
    )  # fmt: skip


def _restore(kafka: str, monitor: LogPartition, store: CheckpointStore, entries: int) -> DedupIndex:
    """Open, read to the high watermark and fold: what a worker does when a partition is assigned to it."""
    index, position = store.open(monitor.partition)
    evidence = Evidence(index.add_page, index.void)
    client = settings.consumer({"bootstrap.servers": kafka}, Timing(), "relay-bench")
    with PartitionReader(client, committed=True, clock=clock.monotonic, deadline_s=DEADLINE_S) as reader:
        _, high = reader.watermarks(monitor)
        for records in reader.read({monitor: (position, high)}):
            for record in records:
                entry: Entry | None = decode(record.key(), record.value())
                if entry is not None:
                    evidence.add(record.offset(), entry)
    assert len(index) == entries
    return index


def _timed(do: Any) -> tuple[float, Any]:
    begun = clock.monotonic()
    result = do()
    return clock.monotonic() - begun, result

"""The restore benchmark runs on a real broker and keeps its floor, far below what an idle machine shows."""

from __future__ import annotations

from relay.bench.dedup_restore import run


def test_the_index_is_restored_fast_enough_and_small_enough(kafka: str) -> None:
    row = run(kafka, 300_000)

    # Where other tests leave little of the machine, the plain consumer of the same run is the measure.
    floor = min(300_000, row["reference"] / 2)
    assert row["value"] >= floor
    assert row["checkpoint_entries_per_s"] >= floor
    assert row["monitor_bytes_per_entry"] <= 32
    assert row["checkpoint_bytes_per_entry"] <= 32.1

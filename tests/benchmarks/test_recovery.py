"""The recovery benchmark runs on a real broker and keeps its bounds, far from what an idle machine shows."""

from __future__ import annotations

import pytest

from relay.bench.recovery import run

MESSAGES = 20_000


@pytest.mark.slow
def test_what_is_in_doubt_is_recovered_in_little_more_than_reading_takes(kafka: str) -> None:
    row = run(kafka, MESSAGES)

    # 10 s for a million, and what ten fenced predecessors cost however few messages they left.
    assert row["cpu_beyond_reading_s"] <= 10 * MESSAGES / 1_000_000 + 2
    assert row["peak_mib"] <= 200

"""A skewed process's wall clock jumps when its file changes; its monotonic clock does not."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from relay.chaos import skewed
from relay.world import clock

DAY_S = 86400.0
SLACK_S = 60.0
"""A busy machine between two looks at the clock."""


@pytest.fixture(autouse=True)
def _true_clock_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_ms", clock.wall_ms)


def off_by_s() -> tuple[float, float]:
    """By how much both forms of the wall clock are wrong."""
    told = datetime.fromisoformat(clock.wall_iso()).timestamp()
    return clock.wall_ms() / 1000 - time.time(), told - time.time()


def test_without_a_file_it_is_true_and_then_jumps_to_and_fro(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    skewed.skew(file)
    assert off_by_s() == pytest.approx((0, 0), abs=SLACK_S)

    for offset_s in (3 * DAY_S, -10 * DAY_S, 0.0):
        skewed.jump(file, offset_s)
        assert off_by_s() == pytest.approx((offset_s, offset_s), abs=SLACK_S)


def test_the_monotonic_clock_is_left_alone(tmp_path: Path) -> None:
    skewed.skew(tmp_path / "clock")
    before = clock.monotonic()

    skewed.jump(tmp_path / "clock", 3 * DAY_S)

    assert 0 <= clock.monotonic() - before < SLACK_S


def test_the_wall_clock_in_words_has_milliseconds_and_is_in_utc() -> None:
    told = clock.wall_iso()

    assert told.endswith("Z")
    assert len(told) == len("2026-01-01T00:00:00.000Z")
    assert abs((datetime.fromisoformat(told) - datetime.now(UTC)).total_seconds()) < SLACK_S


def test_no_module_that_runs_in_production_can_reach_it() -> None:
    code = "import sys, relay.cli.run, relay.run.process; print('relay.chaos.skewed' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"

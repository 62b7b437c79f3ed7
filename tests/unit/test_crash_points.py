"""Every crash point of production code is one at which a real process is killed by a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
POINTS = sorted(
    {name for path in (ROOT / "relay").rglob("*.py") for name in re.findall(r'crash_point\("([\w.]+)"\)', path.read_text())}
)
IN_MEMORY = ("recovery.told",)
"""Killed in memory only: what a person told is obeyed by the same code, whatever the broker."""
TESTS = "".join(path.read_text() for path in sorted((ROOT / "tests" / "integration").glob("test_crash_points_*.py")))


@pytest.mark.parametrize("point", [point for point in POINTS if point not in IN_MEMORY])
def test_a_real_process_is_killed_there(point: str) -> None:
    assert re.search(rf'"{re.escape(point)}(:\d+)?"', TESTS), f"no test of tests/integration/test_crash_points_* kills at {point}"

"""Every crash point of production code is one at which a real process is killed by a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
POINTS = sorted(
    {name for path in (ROOT / "relay").rglob("*.py") for name in re.findall(r'crash_point\("([\w.]+)"\)', path.read_text())}
)
IN_MEMORY = ("recovery.told", "move.copied", "journal.written", "journal.trimmed")
"""Killed in memory only, by an exception at the step: what follows is decided by the same code on every medium."""


def texts(folder: str) -> str:
    return "".join(path.read_text() for path in sorted((ROOT / "tests" / folder).glob("test_*.py")))


@pytest.mark.parametrize("point", [point for point in POINTS if point not in IN_MEMORY])
def test_a_real_process_is_killed_there(point: str) -> None:
    assert re.search(rf'"{re.escape(point)}(:\d+)?"', texts("integration")), f"no test of tests/integration kills at {point}"


@pytest.mark.parametrize("point", IN_MEMORY)
def test_it_is_passed_in_memory(point: str) -> None:
    assert f'"{point}"' in texts("unit")

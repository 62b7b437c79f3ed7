"""Crash points: named steps at which a test ends the process at once, as a kill would. Free when not armed."""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "RELAY_CRASH_AT"
"""``name`` or ``name:nth``: the process ends when the step ``name`` is reached for the nth time."""
EXIT_STATUS: Final = 137

_name, _, _nth = os.environ.get(VARIABLE, "").partition(":")
_left = int(_nth or 1)


def crash_point(name: str) -> None:
    """Mark the step ``name``; if the environment names it, end the process here, without any clean-up."""
    if _name and name == _name:
        _count_down()


def _count_down() -> None:
    global _left  # noqa: PLW0603 - one process, one armed point
    _left -= 1
    if _left == 0:
        os._exit(EXIT_STATUS)

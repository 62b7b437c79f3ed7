"""What options give: durations as in a configuration, no number beyond what it is good for, and no directory without a name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import typer

from relay.config.faults import Wrong
from relay.config.quantities import duration

DAY_S: Final = 86_400.0
AT_WORK_S: Final = 30 * DAY_S
"""The longest that a running command may be told to wait for anything."""


def seconds(least: float, most: float) -> Callable[[str | float], float]:
    """Return what reads an option's duration, a number of seconds or a text such as ``5min``, within bounds."""

    def _seconds(given: str | float) -> float:
        return _within(given, _number(given, duration), least, most, "seconds", 'write for example 30, "90s" or "5min"')

    return _seconds


def bounded(least: float, most: float, unit: str) -> Callable[[str | float], float]:
    """Return what reads an option's number within bounds."""

    def _read(given: str | float) -> float:
        return _within(given, _number(given, None), least, most, unit, "write a number inside")

    return _read


def _number(given: str | float, otherwise: Callable[[str | float], float] | None) -> float | None:
    try:
        return float(given)
    except ValueError:
        pass
    try:
        return None if otherwise is None else otherwise(given)
    except Wrong:
        return None


def _within(given: str | float, found: float | None, least: float, most: float, unit: str, remedy: str) -> float:
    if found is None or not least <= found <= most:  # not a number is inside no bounds
        raise typer.BadParameter(f"{given} is not from {least:g} to {most:.0f} {unit}; {remedy}")
    return found


def named(given: str) -> Path:
    """Return the directory that an option names: none is named by an empty text, which a path takes for the present one."""
    if not given:
        raise typer.BadParameter("it is empty; name a directory")
    return Path(given)

"""Durations are seconds and sizes are bytes, however a configuration writes them ("7d", "250ms", "16MiB")."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from relay.config.faults import Wrong

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES: Final = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}
LONGEST_S: Final = 100 * 365 * 86400.0
LARGEST: Final = 2**63 - 1
"""What every database has room for."""
_QUANTITY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def duration(value: Any) -> float:
    """Return seconds of a number of seconds or of a text such as ``7d``, ``5s`` or ``250ms``."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return _within(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or (match[2] or "s") not in _SECONDS:
        raise Wrong("not a duration", 'write a number of seconds or a text such as "5s", "250ms" or "7d"')
    return _within(float(match[1]) * _SECONDS[match[2] or "s"])


def _within(seconds: float) -> float:
    if seconds > LONGEST_S:
        raise Wrong("longer than a hundred years", 'write at most "36500d"')
    return float(seconds)


def spoken(seconds: float) -> str:
    """Return a duration as a configuration writes it: ``14d``, ``90s``, ``250ms``."""
    for unit in ("d", "h", "min", "s", "ms"):
        count = seconds / _SECONDS[unit]
        if count >= 1 and abs(count - round(count)) < 1e-6:
            return f"{round(count)}{unit}"
    return f"{seconds:g}s"


def ago(age_ms: float) -> str:
    """Return how long ago something was, in the unit in which a person has not to reckon."""
    age_s = max(0.0, age_ms / 1000)
    for unit, length_s, below_s in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if age_s < below_s:
            return f"{age_s / length_s:.0f} {unit} ago"
    return f"{age_s / 86_400:.0f} d ago"


def size(value: Any) -> int:
    """Return bytes of a number or of a text such as ``16MiB``."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST:
        return value
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in _BYTES:
        raise Wrong("not a size", 'write a number of bytes or a text such as "16MiB"')
    found = float(match[1]) * _BYTES[match[2]]
    if found > LARGEST:
        raise Wrong("more than any disk holds", "write a smaller size")
    return int(found)


Seconds = Annotated[float, BeforeValidator(duration)]
Bytes = Annotated[int, BeforeValidator(size)]

"""The only module that reads time; deciding code is given numbers."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache


def monotonic() -> float:
    """Seconds on the monotonic clock: the only clock that durations and deadlines are measured on."""
    return time.monotonic()


def wall_ms() -> int:
    """Milliseconds since the epoch: written down for people, never compared to decide."""
    return time.time_ns() // 1_000_000


def wall_iso() -> str:
    """The wall time as RFC 3339 in UTC, as CloudEvents' ``time`` wants it."""
    second, milliseconds = divmod(wall_ms(), 1000)
    return f"{_utc(second)}.{milliseconds:03d}Z"


@lru_cache(maxsize=1)
def _utc(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def sleep(seconds: float) -> None:
    """Wait; adapters only."""
    time.sleep(seconds)

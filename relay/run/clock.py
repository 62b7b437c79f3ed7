"""The only module that reads time; deciding code is given numbers."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def monotonic() -> float:
    """Seconds on the monotonic clock: the only clock that durations and deadlines are measured on."""
    return time.monotonic()


def wall_ms() -> int:
    """Milliseconds since the epoch: written down for people, never compared to decide."""
    return time.time_ns() // 1_000_000


def wall_iso() -> str:
    """The wall time as RFC 3339 in UTC, as CloudEvents' ``time`` wants it."""
    now = datetime.fromtimestamp(wall_ms() / 1000, UTC)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sleep(seconds: float) -> None:
    """Wait; adapters only."""
    time.sleep(seconds)

"""What is said seldom, however often it happens: counted by kind, or the same sentence once a minute. Reads no clock."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from relay.world import schedule

SAID_EVERY_S: Final = 30.0
AGAIN_S: Final = 60.0
KINDS_MAX: Final = 100
OTHERS: Final = "others"
AT_THE_END: Final = float("inf")
"""The time at which everything is due."""


class Seldom:
    """Counts by kind; ``due`` tells what is to be said now. Kinds beyond a bound count together. Use from any thread."""

    def __init__(self, every_s: float = SAID_EVERY_S) -> None:
        self._every_s = every_s
        self._unsaid: Counter[str] = Counter()
        self._said_at = float("-inf")
        self._lock = schedule.lock()

    def count(self, kind: str, more: int = 1) -> None:
        """Note that it happened so many times more."""
        with self._lock:
            known = kind if kind in self._unsaid or len(self._unsaid) < KINDS_MAX else OTHERS
            self._unsaid[known] += more

    def due(self, now: float) -> dict[str, int]:
        """Return what was not said yet, once it is time; now is on the monotonic clock, and ``AT_THE_END`` there."""
        with self._lock:
            if not self._unsaid or now - self._said_at < self._every_s:
                return {}
            self._said_at = now
            found, self._unsaid = self._unsaid, Counter()
        return dict(found)


class Repeats:
    """Sentences that were told a moment ago; those that differ in numbers only are one."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def is_one(self, sentence: str, now: float) -> bool:
        """Tell whether it was told within the last minute; if not, it is told now, on the monotonic clock."""
        kind = re.sub(r"\d+", "", sentence)
        if now - self._told.get(kind, now - AGAIN_S) < AGAIN_S:
            return True
        if len(self._told) >= KINDS_MAX:
            self._told.clear()
        self._told[kind] = now
        return False

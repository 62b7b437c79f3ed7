"""What happens to thousands of messages is said once at once, then counted, and said again after a while. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final

SAID_EVERY_S: Final = 30.0
KINDS_MAX: Final = 100
OTHERS: Final = "others"


class Seldom:
    """Counts by kind; ``due`` tells what is to be said now. Kinds beyond a bound count together."""

    def __init__(self, every_s: float = SAID_EVERY_S) -> None:
        self._every_s = every_s
        self._unsaid: Counter[str] = Counter()
        self._said_at = float("-inf")

    def count(self, kind: str, more: int = 1) -> None:
        """Note that it happened so many times more."""
        known = kind if kind in self._unsaid or len(self._unsaid) < KINDS_MAX else OTHERS
        self._unsaid[known] += more

    def due(self, now: float, *, last: bool = False) -> dict[str, int]:
        """Return what was not said yet, once it is time, or at the end; now is on the monotonic clock."""
        if not self._unsaid or (now - self._said_at < self._every_s and not last):
            return {}
        self._said_at = now
        found, self._unsaid = self._unsaid, Counter()
        return dict(found)

"""At most so many a second: what is let through is spread evenly, and a pause is not made up for afterwards."""

from __future__ import annotations

from relay.world import clock


class Pace:
    """``rate`` a second; 0 is no bound."""

    def __init__(self, rate: float) -> None:
        self._step_s = 1 / rate if rate > 0 else 0.0
        self._next_at = float("-inf")

    def wait(self) -> None:
        """Wait for the next turn."""
        now = clock.monotonic()
        if self._step_s and now < self._next_at:
            clock.sleep(self._next_at - now)
        self._next_at = max(now, self._next_at) + self._step_s

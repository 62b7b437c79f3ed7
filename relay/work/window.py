"""How many messages a worker holds: about a quarter of a second's work, so that slow ones stay in the queue for others."""

from __future__ import annotations

from typing import Final

HOLD_S: Final = 0.25
SHARE: Final = 0.3
"""Of each new measurement; the rest is what was known before."""
MOST_PER_HANDLER: Final = 64


class Window:
    """Follows the rate at which messages end. Times are seconds."""

    def __init__(self, concurrency: int, batch: int = 1) -> None:
        self._least = 2 * concurrency * batch
        self._most = max(self._least, MOST_PER_HANDLER * concurrency)
        self._rate = 0.0

    def note(self, ended: int, elapsed_s: float) -> None:
        """Count messages that ended within the time since the last call."""
        if elapsed_s > 0:
            self._rate += SHARE * (ended / elapsed_s - self._rate)

    @property
    def size(self) -> int:
        """How many messages to hold at most."""
        return min(self._most, max(self._least, round(self._rate * HOLD_S)))

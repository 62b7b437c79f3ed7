"""An SQLite file's writers take turns: those of a process in order, those of several by gaps that each leaves the others.

SQLite has no queue: who finds the file held sleeps and looks again, up to a tenth of a second later. Threads that hand it to
each other would leave it free for microseconds at a time, for minutes, and a resolver of another process would never get it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from relay.resources.port import RowLocked
from relay.resources.turns import Turn
from relay.world import clock

LOOK_S: Final = 0.008
"""For so long SQLite itself looks again, after 1, 2 and 5 ms; then it is asked anew: nobody sleeps longer than 5 ms."""
GAP_S: Final = 0.010
"""Two such sleeps: whoever of another process waits looks at least once meanwhile."""
GAP_EVERY_S: Final = 0.4
"""The price is 2.5 % of a file that is never free; a resolver, which waits for a second, meets two gaps."""

_Answer = TypeVar("_Answer")


class Writers(Turn):
    """The turn of one process's writers of a file."""

    def __init__(self) -> None:
        super().__init__()
        self._given_at = 0.0
        self._gap_at = 0.0

    def take(self, holder: list[Turn], seconds: float) -> bool:
        """Wait for the turn, and leave the file free for a moment if this process has not done so for long."""
        if not super().take(holder, seconds):
            return False
        now = clock.monotonic()
        if now - self._given_at >= GAP_S:
            self._gap_at = now
        elif now - self._gap_at >= GAP_EVERY_S:
            clock.sleep(GAP_S)
            self._gap_at = clock.monotonic()
        return True

    def give(self, holder: list[Turn]) -> None:
        """Let the next one in, if the holder has the turn."""
        if holder:
            self._given_at = clock.monotonic()
        super().give(holder)


def insist(ask: Callable[[], _Answer], seconds: float) -> _Answer:
    """Ask again and again while the file is held; RowLocked once it has been for so long."""
    deadline = clock.monotonic() + seconds
    while True:
        try:
            return ask()
        except RowLocked:
            if clock.monotonic() >= deadline:
                raise

"""A lock that nobody loses: an interrupt behind its taking finds noted who has it, so that it can be given back.

A signal's handler that raises does so between two calls. Behind ``lock.acquire()`` nobody has noted yet that the lock was
taken, and no ``finally`` can tell whether to release it.
"""

from __future__ import annotations

from itertools import compress
from typing import Final

from relay.world import schedule

_WAITING: Final = (True,)


class Turn:
    """Taken by one holder at a time, who need not be a thread: a list, empty unless it has the turn."""

    def __init__(self) -> None:
        self._lock = schedule.lock()

    def take(self, holder: list[Turn], seconds: float) -> bool:
        """Wait for the turn; False if it did not come in time. Interrupted it may have come: ``give`` all the same."""
        # One call takes the lock and notes it: between two an interrupt could come, or inside ones of Python.
        holder.extend(compress((self,), map(self._lock.acquire, _WAITING, (seconds,))))
        return bool(holder)

    def give(self, holder: list[Turn]) -> None:
        """Let the next one in, if the holder has the turn. Safe to repeat, as is needed where the first call is interrupted."""
        if holder:
            # Nothing is called between these two.
            del holder[:]
            self._lock.release()

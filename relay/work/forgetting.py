"""Which outcomes of attempts nobody will ask for any more: those rows of a handler's database, or of the queue's own store, may go.

An outcome is asked for while its message is not DONE in the queue, while a child waits for it, and while something prepared
does. So it is forgotten once all of that is durable, by the worker whose attempt it was, and never before: recovery would
find none and write (aborted). Outcomes of attempts whose worker died stay, and so do all (aborted): a frozen worker may
come back and must find it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from relay.queue.message import Ticket
from relay.world import schedule

BATCH: Final = 500
FORGET_S: Final = 5.0
"""So long fewer than a batch wait for others to go with."""
KNOWN_MAX: Final = 100_000
"""Of more than so many the oldest stay where they are: the database refuses, or is away."""


class Forgetting:
    """The outcomes of one worker's own attempts on their way out; its threads share it."""

    def __init__(self, every_s: float = FORGET_S) -> None:
        self._every_s = every_s
        self._lock = schedule.lock()
        self._tied: dict[Ticket, str] = {}
        self._due: deque[str] = deque(maxlen=KNOWN_MAX)
        self._next_at = float("-inf")

    def left_nothing(self, attempts: Mapping[Ticket, str]) -> None:
        """Note committed attempts whose children are shown and whose further writes are committed; their DONE follows."""
        with self._lock:
            self._tied.update(attempts)
            while len(self._tied) > KNOWN_MAX:
                del self._tied[next(iter(self._tied))]

    def done(self, tickets: Iterable[Ticket]) -> None:
        """Note that these are DONE in their queue, durably."""
        if not self._tied:
            return
        with self._lock:
            self._due.extend(self._tied.pop(ticket) for ticket in tickets if ticket in self._tied)

    def over(self, attempts: Iterable[str]) -> None:
        """Note attempts that are DONE and left nothing: the queue's own store decided, or they could not be forgotten just now."""
        with self._lock:
            self._due.extend(attempts)

    def due(self, now: float) -> list[str]:
        """Return attempts to forget in one statement; none as long as more may come to go with them."""
        if not self._due or (len(self._due) < BATCH and now < self._next_at):
            return []
        with self._lock:
            self._next_at = now + self._every_s
            return [self._due.popleft() for _ in range(min(BATCH, len(self._due)))]

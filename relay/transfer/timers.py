"""Resend timers: a batch that is not acknowledged in time is sent again, ever later, and never after its end."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

JITTER: Final = 0.25
"""A wait is lengthened by up to a quarter, so that many workers do not come back to a database at once."""


@dataclass(frozen=True, slots=True)
class Resend:
    """A command: send the batch once more, on a new connection; ``attempt`` counts from 1 for the first repeat."""

    batch: Hashable
    attempt: int


@dataclass(slots=True)
class _Timer:
    attempt: int
    due: float | None


class ResendTimers:
    """Timers of the batches under way. No clock and no I/O: ``now`` is given, in seconds of one monotonic clock.

    Waits double from ``after_s`` to ``max_s``; ``random`` returns numbers in [0, 1).
    """

    def __init__(self, after_s: float, max_s: float, random: Callable[[], float]) -> None:
        assert 0 < after_s <= max_s
        self._after_s = after_s
        self._max_s = max_s
        self._random = random
        self._timers: dict[Hashable, _Timer] = {}

    def sent(self, batch: Hashable, now: float) -> float:
        """Start the timer of a batch that is being sent, for the first time or again; return when it is due."""
        timer = self._timers.setdefault(batch, _Timer(attempt=0, due=None))
        # 2 ** 64 times any wait is beyond every limit; the exponent itself must stay a number.
        wait = min(self._max_s, self._after_s * 2.0 ** min(timer.attempt, 64))
        timer.due = now + wait * (1 + JITTER * self._random())
        return timer.due

    def acked(self, batch: Hashable) -> bool:
        """End a batch's timer; False if there was none: a late answer to something that has ended already."""
        return self._timers.pop(batch, None) is not None

    def expired(self, now: float) -> list[Resend]:
        """Return a command for each batch whose time is over; its timer stands still until it is sent."""
        commands = []
        for batch, timer in self._timers.items():
            if timer.due is not None and timer.due <= now:
                timer.due = None
                timer.attempt += 1
                commands.append(Resend(batch, timer.attempt))
        return commands

    def failed(self, batch: Hashable) -> Resend | None:
        """Return the command for a batch that is known to have failed; None if it has ended already."""
        timer = self._timers.get(batch)
        if timer is None:
            return None
        timer.due = None
        timer.attempt += 1
        return Resend(batch, timer.attempt)

    def pause_s(self, attempt: int) -> float:
        """How long to wait before a repeat after a failure that came back at once (a refused connection)."""
        base = min(self._max_s, self._after_s / 16 * 2.0 ** min(attempt, 64))
        return base * (1 + JITTER * self._random())

    def next_due(self) -> float | None:
        """When ``expired`` is to be asked next; None if no timer runs."""
        return min((timer.due for timer in self._timers.values() if timer.due is not None), default=None)

    def forget(self) -> None:
        """Drop every timer: the assignment is lost, and what was under way is another worker's to find out."""
        self._timers.clear()

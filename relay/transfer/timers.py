"""Resend times: for how long a batch is waited for, and how long is paused before it is sent again, ever longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

JITTER: Final = 0.25
"""A time is lengthened by up to a quarter, so that many workers do not come back to a database at once."""
_PAUSE_SHARE: Final = 1 / 16
_DOUBLINGS_MAX: Final = 64
"""2 ** 64 times any wait is beyond every limit; the exponent itself must stay a number."""


class ResendTimes:
    """Seconds by attempt, 0 for the first sending; they double up to ``max_s``. ``random`` returns numbers in [0, 1)."""

    def __init__(self, after_s: float, max_s: float, random: Callable[[], float]) -> None:
        assert 0 < after_s <= max_s
        self._after_s = after_s
        self._max_s = max_s
        self._random = random

    def wait_s(self, attempt: int) -> float:
        """How long to wait for the answer before the batch is sent again on a new connection."""
        return self._doubled(self._after_s, attempt)

    def pause_s(self, attempt: int) -> float:
        """How long to wait before this repeat, after a failure that may have come back at once (a refused connection)."""
        return self._doubled(self._after_s * _PAUSE_SHARE, attempt)

    def _doubled(self, first_s: float, attempt: int) -> float:
        plain = min(self._max_s, first_s * 2.0 ** min(attempt, _DOUBLINGS_MAX))
        return plain * (1 + JITTER * self._random())

"""When a message that failed is tried again: later each time, up to a cap, and not all at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

JITTER: Final = 0.25
"""A pause is stretched by up to this share."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses double from ``first_s`` to ``most_s`` seconds."""

    first_s: float = 1.0
    most_s: float = 300.0

    def pause_ms(self, failures: int, chance: float, after_s: float = 0.0) -> int:
        """Return how long to wait after so many failures, ``after_s`` at least; ``chance`` is in [0, 1)."""
        # The exponent is bounded, so that many failures do not compute 2 ** thousands.
        plain = min(self.most_s, max(after_s, self.first_s * 2.0 ** min(max(failures, 1) - 1, 30)))
        return round(plain * (1 + JITTER * chance) * 1000)

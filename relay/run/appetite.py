"""How much a worker reads: a batch as large as its bytes allow, and nothing while more than that waits to be delivered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relay.log.intake import Intake
from relay.message.record import LogMessage, bytes_of


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one worker may take in and hand on at once."""

    batch_messages: int
    batch_bytes: int
    linger_s: float
    inflight_messages: int


class Appetite:
    """Decides by what an intake has ready; ``batch`` is how many messages the next batch may have."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.batch = bounds.batch_messages
        self.is_sated = False

    def has_batch(self, intake: Intake) -> bool:
        """Is a whole batch ready, by number or by bytes?"""
        return intake.ready() >= self.batch or intake.ready_bytes() >= self._bounds.batch_bytes

    def room(self, intake: Intake, most: int) -> int:
        """How many records to poll: a batch in all, and one at least, since polling also serves rebalances."""
        if self.has_batch(intake):
            return 1
        return min(most, self.batch - intake.ready())

    def look(self, intake: Intake) -> bool:
        """Should nothing be read now? From twice a batch on, until less than one is left.

        A poll asks for one record at least, and whoever makes a route wait (its database away, its queue drained) may
        do so for hours.
        """
        if self.is_sated:
            self.is_sated = self.has_batch(intake)
        else:
            most = min(2 * self.batch, self._bounds.inflight_messages)
            self.is_sated = intake.ready() > most or intake.ready_bytes() > 2 * self._bounds.batch_bytes
        return self.is_sated

    def weigh(self, messages: Sequence[LogMessage]) -> None:
        """Keep a batch within its bytes: large messages make the next ones shorter, small ones longer again."""
        if not messages:
            return
        fits = len(messages) * self._bounds.batch_bytes // max(1, bytes_of(messages))
        self.batch = max(1, min(self._bounds.batch_messages, fits))

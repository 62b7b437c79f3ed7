"""Narrowing: after a refused batch the next ones are smaller until the refused record is alone, or was in none of them.

A refusal costs a recovery, a batch that goes through costs milliseconds: so the size falls steeply, and it stays until
every message of the refused batch has passed.

Batches that fail one after the other for no reason of their records are smaller, too: over a slow line or under a quota a
whole one may take longer than a transaction may, and would at every try. How large they may be is found out anew, step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from relay.message.record import LogMessage, LogPartition

STEP: Final = 16
"""By how much a batch shrinks: a record among 20,000 is found with five refusals, at the price of 16 batches for each."""
FAILURES: Final = 2
"""A single one is a rebalance, or a broker that went away for a moment."""
_MORE: Final = 16
"""A batch that goes through lengthens the next ones by a sixteenth: too long a one costs a whole timeout."""
_PACE_MAX: Final = 1 << 20
"""Above every batch: nothing is slow any more."""


class Narrowing:
    """How large the next batches may be, and the messages that must pass before they may be large again."""

    def __init__(self) -> None:
        self._suspected: int | None = None
        self._suspects: dict[bytes, LogPartition] = {}
        self._failures = 0
        self._failed = 0
        self._pace: float | None = None

    @property
    def limit(self) -> int | None:
        """How many messages the next batch may have; None: no limit."""
        return min((int(one) for one in (self._suspected, self._pace) if one is not None), default=None)

    def failed(self, count: int) -> None:
        """A batch of so many messages failed, and not for what one of them is."""
        self._failures += 1
        self._failed = count
        if self._failures >= FAILURES and count > 1:
            self._pace = max(1, count // STEP)

    def refused(self, messages: Sequence[LogMessage]) -> None:
        """One of these was refused: try them in smaller parts."""
        self._only(messages, max(1, len(messages) // STEP))

    def first(self, messages: Sequence[LogMessage]) -> None:
        """Let these go before anything that follows them."""
        self._only(messages, len(messages))

    def passed(self, messages: Sequence[LogMessage]) -> None:
        """These have their effect, or had it before."""
        if len(messages) >= self._failed:  # smaller ones, as the first after a recovery, say nothing
            self._failures = 0
        if self._pace is not None and len(messages) >= int(self._pace):
            self._pace += self._pace / _MORE
            self._pace = None if self._pace > _PACE_MAX else self._pace
        for message in messages:
            self._suspects.pop(message.digest, None)
        self._end_if_clear()

    def keep(self, owned: Iterable[LogPartition]) -> None:
        """Only these partitions are still owned: the others' messages will not come."""
        wanted = set(owned)
        self._suspects = {digest: place for digest, place in self._suspects.items() if place in wanted}
        self._end_if_clear()

    def _only(self, messages: Sequence[LogMessage], limit: int) -> None:
        self._suspected = limit
        self._suspects = {message.digest: LogPartition(message.topic, message.partition) for message in messages}

    def _end_if_clear(self) -> None:
        if not self._suspects:
            self._suspected = None

"""Narrowing: after a refused batch the next ones are smaller until the refused record is alone, or was in none of them.

A refusal costs a recovery, a batch that goes through costs milliseconds: so the size falls steeply, and it stays until
every message of the refused batch has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from relay.message.record import LogMessage, LogPartition

STEP: Final = 16
"""By how much a batch shrinks: a record among 20,000 is found with five refusals, at the price of 16 batches for each."""


class Narrowing:
    """How large the next batches may be, and the messages that must pass before they may be large again."""

    def __init__(self) -> None:
        self.limit: int | None = None
        self._suspects: dict[bytes, LogPartition] = {}

    def refused(self, messages: Sequence[LogMessage]) -> None:
        """One of these was refused: try them in smaller parts."""
        self._only(messages, max(1, len(messages) // STEP))

    def first(self, messages: Sequence[LogMessage]) -> None:
        """Let these go before anything that follows them."""
        self._only(messages, len(messages))

    def passed(self, messages: Iterable[LogMessage]) -> None:
        """These have their effect, or had it before."""
        for message in messages:
            self._suspects.pop(message.digest, None)
        self._end_if_clear()

    def keep(self, owned: Iterable[LogPartition]) -> None:
        """Only these partitions are still owned: the others' messages will not come."""
        wanted = set(owned)
        self._suspects = {digest: place for digest, place in self._suspects.items() if place in wanted}
        self._end_if_clear()

    def _only(self, messages: Sequence[LogMessage], limit: int) -> None:
        self.limit = limit
        self._suspects = {message.digest: LogPartition(message.topic, message.partition) for message in messages}

    def _end_if_clear(self) -> None:
        if not self._suspects:
            self.limit = None

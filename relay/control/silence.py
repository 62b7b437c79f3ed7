"""Asking queues one after the other: a database that does not answer is waited for once, not for each queue there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from relay.queue.port import StoreAway
from relay.world import clock

T = TypeVar("T")
SILENT_S: Final = 3.0
"""Who does not answer for so long will not answer the next question."""


class Silence:
    """The places that were waited for in vain in one look at all queues; ``place`` tells where a queue lies."""

    def __init__(self, place: Callable[[str], str]) -> None:
        self._place = place
        self._silent: dict[str, StoreAway] = {}

    def ask(self, name: str, ask: Callable[[str], T]) -> T:
        """Ask a queue, unless its store is among those that are silent. Raises what ``ask`` raises."""
        place = self._place(name)
        if place in self._silent:
            raise self._silent[place]
        asked_at = clock.monotonic()
        try:
            return ask(name)
        except StoreAway as away:
            # A server that says something, such as that counting took too long, means this queue alone.
            if clock.monotonic() - asked_at >= SILENT_S and getattr(away.__cause__, "sqlstate", None) is None:
                self._silent[place] = away
            raise

"""How captures ended, as one log partition has shown it: bounded, yet nothing that a message waits for is forgotten."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Final

OUTCOMES_REMEMBERED: Final = 100_000
"""Over all partitions of a worker, 180 bytes each, beside those of captures of which messages wait here."""
OUTCOMES_LEAST: Final = 1000
"""So many in each partition, however many there are."""


class Decision(Enum):
    """How a capture ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"


class EndedCaptures:
    """Decisions by capture: the latest ``most``, and those of every capture of which entries of a lane wait.

    Those stay since a range of messages without payload does not name their resource, which could be asked again.
    """

    def __init__(self, most: int = OUTCOMES_REMEMBERED) -> None:
        self._most = most
        self._latest: OrderedDict[bytes, Decision] = OrderedDict()
        self._awaited: dict[bytes, Decision] = {}
        self._waiting: dict[bytes, int] = {}
        """Entries of lanes that wait, by capture."""

    def __len__(self) -> int:
        return len(self._latest) + len(self._awaited)

    def of(self, capture: bytes) -> Decision | None:
        """Return how ``capture`` ended, None if that is not known."""
        return self._awaited.get(capture) or self._latest.get(capture)

    def decide(self, capture: bytes, decision: Decision) -> None:
        """Write down how ``capture`` ended."""
        if capture in self._waiting:
            self._awaited[capture] = decision
        else:
            self._remember(capture, decision)

    def wait(self, capture: bytes) -> None:
        """One more entry of a lane waits; an outcome that came before it stays until it is handed on."""
        self._waiting[capture] = self._waiting.get(capture, 0) + 1
        if capture in self._latest:
            self._awaited[capture] = self._latest.pop(capture)

    def hand_on(self, capture: bytes) -> None:
        """One entry fewer waits; an outcome that nothing waits for any more may be forgotten in its turn."""
        left = self._waiting.pop(capture) - 1
        if left:
            self._waiting[capture] = left
        elif capture in self._awaited:
            self._remember(capture, self._awaited.pop(capture))

    def _remember(self, capture: bytes, decision: Decision) -> None:
        self._latest[capture] = decision
        if len(self._latest) > self._most:
            self._latest.popitem(last=False)

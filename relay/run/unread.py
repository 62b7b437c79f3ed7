"""What the log has beyond what a worker's reader was given: a reader tells of what comes, and never of what does not.

Behind an open Kafka transaction a read_committed reader gets nothing, and calls that the end of the log; a client that has
stopped to fetch says nothing at all. So the brokers are asked, now and then, where the log ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from relay.message.errors import RelayError
from relay.message.record import LogPartition

LOOK_PERIOD_S: Final = 10.0
ASK_PERIOD_S: Final = 1.0
WAIT_S: Final = 2.0

Ends = Callable[[Collection[LogPartition], float], Mapping[LogPartition, int]]
"""Given partitions and how many seconds to wait: where they end."""


class Unread:
    """The ends of the log as the brokers told them last, and why what lies before them was not read.

    ``ends`` tells the high watermarks, ``stable`` up to where no Kafka transaction is open.
    """

    def __init__(self, ends: Ends, stable: Ends) -> None:
        self._ends = ends
        self._stable = stable
        self._look_at = self._ask_at = float("-inf")
        self._reached: dict[LogPartition, int] = {}
        self._short: dict[LogPartition, int] = {}
        self.missed: frozenset[LogPartition] = frozenset()
        """Partitions that end beyond what was read, by two answers one after the other between which nothing was."""
        self._high: Mapping[LogPartition, int] = {}
        self._stable_to: Mapping[LogPartition, int] = {}

    def look(self, reached: Mapping[LogPartition, int], now: float) -> None:
        """Ask if it is time; ``reached`` has the partitions whose reader knows of nothing more, and up to where it has read.

        Only those are asked about of which nothing was read since the last turn.
        """
        if now < self._look_at:
            return
        self._look_at = now + LOOK_PERIOD_S
        silent = [place for place, read_to in reached.items() if self._reached.get(place) == read_to]
        self._reached = dict(reached)
        try:
            self._ask(silent, reached)
        except RelayError:
            return  # retry: ends that were true stay so, and whoever reads or delivers says that the brokers are away

    def is_all(self, reached: Mapping[LogPartition, int], now: float) -> bool:
        """Does the log end there everywhere, for all that the brokers say now? They are asked once a second at most."""
        if now < self._ask_at:
            return False
        self._ask_at = now + ASK_PERIOD_S
        try:
            self._ask(list(reached), reached)
        except RelayError:
            return False  # retry: what they have is not known while they are away
        short = {place: read_to for place, read_to in reached.items() if self.end(place) > read_to}
        self.missed = frozenset(place for place, read_to in short.items() if self._short.get(place) == read_to)
        self._short = short
        return not short

    def _ask(self, places: Collection[LogPartition], reached: Mapping[LogPartition, int]) -> None:
        high = self._ends(places, WAIT_S) if places else {}
        beyond = [place for place, end in high.items() if end > reached[place]]
        self._high, self._stable_to = high, self._stable(beyond, WAIT_S) if beyond else {}

    def end(self, place: LogPartition) -> int:
        """Return where the log ended at the last look; 0 if that is not known."""
        return self._high.get(place, 0)

    def why(self, place: LogPartition, read_to: int) -> str | None:
        """Say what keeps the reader from what lies between ``read_to`` and the end; None if nothing does."""
        stable_to = self._stable_to.get(place)
        if stable_to is None or read_to >= self.end(place):
            return None
        if stable_to > read_to:
            return f"its reader is given nothing of what the log has up to {self.end(place)}: restart this worker"
        return (
            f"a Kafka transaction is open in the log at {stable_to}, and nobody can read on before it ends: end its producer; if there is "
            "none any more, `kafka-transactions.sh find-hanging` names it, and `abort` ends it"
        )


def nothing_unread() -> Unread:
    """Return one that asks nobody."""
    return Unread(lambda *_: {}, lambda *_: {})

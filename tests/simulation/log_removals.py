"""Guards round the log's own life, each removable by name: what retention took, and a topic that is another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from relay.log.holds import PartitionHolds
from relay.message.record import LogPartition
from relay.run.starts import StartPolicy
from relay.run.topic_watch import TopicWatch
from tests.simulation.installation import StandIn


def another_topic_unnoticed() -> list[StandIn]:
    """Nobody asks whether the log is still the topic that was read."""
    return [(TopicWatch, "check", lambda self: None)]


def jump_over_what_is_lost() -> list[StandIn]:
    """Where the log begins above the position, reading goes on at its beginning (auto.offset.reset=earliest)."""
    known = StartPolicy._known

    def jump(self: StartPolicy, partition: LogPartition, offset: int, marks: tuple[int, int]) -> int:
        return known(self, partition, max(offset, marks[0]), marks)

    return [(StartPolicy, "_known", jump)]


def untaken_overtaken() -> list[StandIn]:
    """With no lane waiting, what comes is handed on, whatever before it was not taken in."""
    return [(PartitionHolds, "is_blocked", property(lambda self: self.lanes_blocked > 0))]


LOG_REMOVALS: Final[dict[str, Callable[[], list[StandIn]]]] = {
    removal.__name__: removal for removal in (another_topic_unnoticed, jump_over_what_is_lost, untaken_overtaken)
}

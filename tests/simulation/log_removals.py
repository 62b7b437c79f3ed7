"""Guards round what a topic has, each removable by name: what retention took, a topic that is another one, brokers that went back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from relay.delivery.evidence_reading import MonitorView
from relay.delivery.topic import recovery as topic_recovery
from relay.kafka.clients import _Brokers
from relay.kafka.decisions import DecisionLog
from relay.log.holds import PartitionHolds
from relay.message.record import LogPartition
from relay.run.anchorage import Anchorage
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


def cut_unnoticed() -> list[StandIn]:
    """A living worker's index goes on to count, wherever the monitor ends by now."""
    return [(MonitorView, "check_end", lambda self, high: "")]


def old_leader_believed() -> list[StandIn]:
    """What a leader says of the monitor's end is never held against where the claim came to lie."""
    return [(topic_recovery, "check_whole", lambda *_: None)]


def old_output_believed() -> list[StandIn]:
    """What a leader says of an output's end is never held against where what is written again came to lie."""
    return [(topic_recovery, "check_shown", lambda *_: None)]


def lost_decisions_kept() -> list[StandIn]:
    """Only the end of the topic of decisions tells that it went back."""
    read_on = DecisionLog._read_on

    def trusting(self: DecisionLog, committed: Any, low: int, high: int) -> bool:
        self._last = None
        return read_on(self, committed, low, high)

    return [(DecisionLog, "_read_on", trusting)]


def anchors_unread() -> list[StandIn]:
    """Whatever lies below a position is taken for what was read there."""
    return [(Anchorage, "replaced", lambda *_: ())]


def new_leaders_believed() -> list[StandIn]:
    """Whoever leads has all that was read."""
    return [(Anchorage, "check", lambda *_: None)]


def lost_clients_kept() -> list[StandIn]:
    """No client says of itself that it has forgotten all brokers."""
    return [(_Brokers, "are_lost", property(lambda self: False))]


LOG_REMOVALS: Final[dict[str, Callable[[], list[StandIn]]]] = {
    removal.__name__: removal
    for removal in (
        another_topic_unnoticed, jump_over_what_is_lost, untaken_overtaken, cut_unnoticed, old_leader_believed, old_output_believed,
        lost_decisions_kept, anchors_unread, new_leaders_believed, lost_clients_kept,
    )
}  # fmt: skip

"""The port between the worker's loop and what it delivers to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from relay.delivery.batch import Batch, Counts
from relay.delivery.evidence_reading import MonitorView
from relay.delivery.ports import Group, Starts
from relay.message.record import LogPartition


class Destination(Protocol):
    """Delivers batches one after the other; the worker's one thread calls it.

    After any exception of ``submit`` or ``settled`` the worker must ``recover`` before it submits again.
    """

    counts: Counts
    read_at_once: int
    """How many records the worker polls at once at most."""
    asked_again_s: float
    """While nothing comes, positions are submitted again after so many seconds: does the destination still have them?"""

    def recover(
        self,
        assigned: Sequence[LogPartition],
        views: list[MonitorView],
        group: Group,
        starts: Starts,
        topic_ids: Mapping[str, bytes],
    ) -> dict[LogPartition, int]:
        """Find out what became of everything attempted before, take over, and say where to read on."""

    def submit(self, batch: Batch) -> None:
        """Deliver a batch, or hand it on to be delivered."""

    def settled(self) -> bool:
        """Is there room for another batch? Raises what went wrong with an earlier one."""

    def wait(self, seconds: float) -> bool:
        """Wait until nothing is under way, at most so long."""

    def positions(self) -> Mapping[LogPartition, int] | None:
        """Positions that became durable at the destination since last asked; None if Kafka has all that was submitted."""

    def tend(self, now: float) -> None:
        """Do what is due between batches."""

    def listen(self) -> None:
        """Hear what persons want also while nothing is assigned: a client keeps what it says of itself until it is asked."""

    def abandon(self) -> None:
        """Let go of everything under way: the assignment is lost, or recovery comes next."""

    def close(self) -> None:
        """Give connections back."""

    def entering(self) -> AbstractSet[bytes]:
        """Digests of messages that are over, and whose entries are still on their way to the monitor."""

    @property
    def narrowed_to(self) -> int | None:
        """How many messages the next batch may have at most; None: no limit of the destination's."""

    @property
    def in_doubt(self) -> Mapping[LogPartition, int]:
        """Up to where messages were attempted by someone before and are not yet proven."""

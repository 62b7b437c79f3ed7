"""Queue routes: a table route whose effect is a put; what persons want of the queue and its publishers is obeyed here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from relay.delivery.evidence_reading import MonitorView
from relay.delivery.ports import Group, Starts
from relay.delivery.queue.effects import HeldPublishers
from relay.delivery.table.route import Shipment, TableDelivery
from relay.message.errors import Moved
from relay.message.record import LogPartition
from relay.queue.desired import Desired
from relay.transfer.cursor import DELIVERED, Verdict

BATCHES_IN_QUEUE: Final = 10
"""So many batches at least fit into a queue, so that one waits for a tenth of its room and not for all of it."""


class QueueDelivery(TableDelivery):
    """Delivers one worker's batches into a queue. A queue that is drained makes them wait; nothing is dropped."""

    def __init__(
        self,
        *given: Any,
        queue: str,
        store: str,
        desired: Callable[[], Desired],
        latest: Callable[[], Desired],
        publishers: HeldPublishers,
        waiting_max: int,
        **named: Any,
    ) -> None:
        super().__init__(*given, **named)
        # A batch is put as a whole: one that is larger than the room would wait for ever, or until nothing waits any more.
        self.narrowed_to = max(1, waiting_max // BATCHES_IN_QUEUE)
        self._queue = queue
        self._store = store
        self._desired = desired
        self._latest = latest
        self._publishers = publishers
        self._resumed: deque[Mapping[str, int]] = deque()

    def recover(
        self,
        assigned: Sequence[LogPartition],
        views: list[MonitorView],
        group: Group,
        starts: Starts,
        topic_ids: Mapping[str, bytes],
    ) -> dict[LogPartition, int]:
        """As any table route; whoever had the partitions may have put what is to be revealed still."""
        self._publishers.taken_over()
        return super().recover(assigned, views, group, starts, topic_ids)

    def settled(self) -> bool:
        """Take answers; is there room for another batch, and may it be put?"""
        room = super().settled()
        desired = self._desired()
        if desired.store_of(self._queue, self._store) != self._store:
            raise Moved(
                f"queue {self._queue!r} has moved to another store; a new process goes on there, from the copied position"
            )
        self._obey(desired)
        return room and desired.may_put(self._queue)

    def listen(self) -> None:
        """Follow what persons want of the queue."""
        self._desired()

    def abandon(self) -> None:
        """Let go of what is under way."""
        super().abandon()
        self._resumed.clear()

    def _claimed(self) -> None:
        """Hear at least what the owner before has heard: what it kept of a publisher that was paused would be overtaken."""
        self._obey(self._latest())

    def _obey(self, desired: Desired) -> None:
        self._publishers.now(desired.held_publishers(self._queue), desired.resumed_publishers(self._queue))

    def _ship(self, shipment: Shipment) -> None:
        self._resumed.append(dict(self._publishers.resumed))
        super()._ship(shipment)

    def _accept(self, shipment: Shipment, verdicts: Sequence[Verdict]) -> None:
        """Whoever was resumed before this was sent has been revealed with it, unless it had nothing but what the queue refused."""
        super()._accept(shipment, verdicts)
        before = self._resumed.popleft()
        if not shipment.messages or any(verdict.outcome == DELIVERED for verdict in verdicts):
            self._publishers.revealed(before)

"""Queue routes: a table route whose effect is a put; what persons want of the queue and its publishers is obeyed here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relay.delivery.queue_effects import HeldPublishers
from relay.delivery.table_route import Shipment, TableDelivery
from relay.message.errors import RelayError
from relay.queue.desired import Desired
from relay.transfer.cursor import Verdict


class QueueDelivery(TableDelivery):
    """Delivers one worker's batches into a queue. A queue that is drained makes them wait; nothing is dropped."""

    def __init__(
        self,
        *given: Any,
        queue: str,
        store: str,
        desired: Callable[[], Desired],
        publishers: HeldPublishers,
        **named: Any,
    ) -> None:
        super().__init__(*given, **named)
        self._queue = queue
        self._store = store
        self._desired = desired
        self._publishers = publishers

    def settled(self) -> bool:
        """Take answers; is there room for another batch, and may it be put?"""
        room = super().settled()
        desired = self._desired()
        if desired.store_of(self._queue, self._store) != self._store:
            raise RelayError(
                f"queue {self._queue!r} has moved to another store; a new process goes on there, from the copied position"
            )
        self._publishers.now(desired.held_publishers(self._queue))
        return room and desired.may_put(self._queue)

    def _accept(self, shipment: Shipment, verdicts: Sequence[Verdict]) -> None:
        super()._accept(shipment, verdicts)
        self._publishers.committed()

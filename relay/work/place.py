"""Where a worker works, and what names it gives to what it leaves there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relay.queue.attempts import AttemptName
from relay.queue.message import Parent, Taken
from relay.queue.port import QueueStore
from relay.work.message import Message
from relay.world import schedule


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker works: its queue and subscriber, the queues it may reach, what decides.

    ``deciding`` is ``queue:NAME`` or ``resource:NAME``. The threads share the objects in ``stores``, so each of them has its
    lock; whoever holds a transaction of the handler's database never waits for the lock of a queue in that database.
    """

    queue: str
    subscriber: str
    deciding: str
    stores: Mapping[str, QueueStore]
    locks: Mapping[str, schedule.Lock]

    @property
    def store(self) -> QueueStore:
        """The queue's own store."""
        return self.stores[self.queue]

    def attempt(self, taken: Taken) -> str:
        """Return the name of this attempt."""
        return AttemptName(self.deciding, self.queue, self.store.uuid, self.subscriber, taken.ticket).encode()

    def parents(self, message: Message) -> tuple[Parent, ...]:
        """Return how a child names this message, and the earlier ones it was made from."""
        handles = (message.handle, *message.further)
        return tuple(Parent(self.queue, handle, self.subscriber) for handle in handles)

"""A message's ancestors and descendants over all queues of the configuration ([24], [65])."""

from __future__ import annotations

from collections import defaultdict

from relay.control import queue_views
from relay.control.queue_desk import QueueDesk
from relay.message.errors import RelayError
from relay.queue.message import MessageView
from relay.queue.port import Filter


def trace(desk: QueueDesk, queue: str, handle: int, most: int) -> list[tuple[str, MessageView | None, int, int]]:
    """Return (queue, message or None, handle, generation); children are looked for among ``most`` messages of each queue."""
    children: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
    for name in desk.names():
        try:
            for view in queue_views.scan(desk.store(name), Filter(), most):
                for parent in view.parents:
                    children[parent.queue, parent.handle].append((name, view.handle))
        except RelayError:
            continue  # a store that is away hides its own messages only

    def view_of(name: str, number: int) -> MessageView | None:
        return desk.store(name).view(number, value=False) if name in desk.config.queues else None

    return queue_views.trace(queue, handle, view_of, lambda name, number: children.get((name, number), []))

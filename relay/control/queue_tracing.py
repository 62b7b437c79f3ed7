"""A message's ancestors and descendants over all queues of the configuration ([24], [65])."""

from __future__ import annotations

from collections import defaultdict

from relay.control import queue_views
from relay.control.queue_desk import QueueDesk
from relay.control.silence import Silence
from relay.message.errors import RelayError
from relay.queue.message import MessageView
from relay.queue.port import Filter

Found = tuple[str, MessageView | None, int, int]


def trace(desk: QueueDesk, queue: str, handle: int, most: int) -> tuple[list[Found], dict[str, RelayError]]:
    """Return (queue, message or None, handle, generation) of each, and by its name each other queue that did not answer.

    Children are looked for among ``most`` messages of each queue. Of a queue that is away nothing is among those found.
    """
    children: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
    away: dict[str, RelayError] = {}
    silence = Silence(desk.place)

    def look(name: str) -> None:
        for view in queue_views.scan(desk.store(name), Filter(), most):
            for parent in view.parents:
                children[parent.queue, parent.handle].append((name, view.handle))

    for name in desk.names():
        try:
            silence.ask(name, look)
        except RelayError as error:
            away[name] = error  # go on: it hides its own messages only

    def view_of(name: str, number: int) -> MessageView | None:
        return desk.store(name).view(number, value=False) if name in desk.config.queues and name not in away else None

    found = queue_views.trace(queue, handle, view_of, lambda name, number: children.get((name, number), []))
    return [one for one in found if one[0] not in away], away

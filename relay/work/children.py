"""Children of one work: those in the deciding database go with its commit; those elsewhere are put hidden before it, and shown after it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager

import structlog

from relay.queue.attempts import PutChildren, accept_children, discard_children, put_children
from relay.queue.message import NewMessage
from relay.queue.port import Refused
from relay.work.message import Message
from relay.work.place import Place
from relay.world import clock

Children = dict[str, list[NewMessage]]
"""Those of one message, by their queue."""


class HiddenChildren:
    """Children of one work in stores that its decision does not commit."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._put: list[PutChildren] = []

    def put(self, far: list[tuple[Message, Children]]) -> None:
        """Put children, hidden; whoever is refused one of them has those before it taken back with `discard`."""
        place = self._place
        for message, children in far:
            for queue, new in named(place, message, children).items():
                if queue not in place.stores:
                    raise Refused(f"queue {queue!r} is not configured: add [queues.{queue}]")
                with place.locks[queue]:
                    parents, attempt = place.parents(message), place.attempt(message.taken)
                    self._put += put_children(attempt, parents, {queue: new}, place.stores, clock.wall_ms())

    def show(self) -> bool:
        """Show them; False if recovery has to show any: these are decided already."""
        shown = 0
        for one in self._put:
            with left_to_recovery("decided"), self._place.locks[one.queue]:
                accept_children([one], self._place.stores, clock.wall_ms())
                shown += 1
        return shown == len(self._put)

    def discard(self) -> None:
        """Take them back, each queue's for itself: no store in the way may keep those of others, or say why the attempt ended."""
        for one in self._put:
            with left_to_recovery("given up"), self._place.locks[one.queue]:
                discard_children([one], self._place.stores, clock.wall_ms())


def parted(
    messages: list[Message], here: Container[str]
) -> tuple[list[tuple[Message, Children]], list[tuple[Message, Children]]]:
    """Part the children into those whose queues are in the deciding database and the others, by parent."""
    near: list[tuple[Message, Children]] = []
    far: list[tuple[Message, Children]] = []
    for message in messages:
        for side, is_near in ((near, True), (far, False)):
            chosen: Children = {}
            for queue, child in message.children:
                if (queue in here) is is_near:
                    chosen.setdefault(queue, []).append(child)
            if chosen:
                side.append((message, chosen))
    return near, far


def named(place: Place, message: Message, children: Children) -> Children:
    """Give the children publisher and id, the same in every attempt at their parent."""
    number = 0
    found: Children = {}
    for queue, new in children.items():
        found[queue] = []
        for one in new:
            number += 1
            name = f"{place.store.uuid}.{message.handle}.{number}"
            found[queue].append(one._replace(publisher=f"{place.queue}/{place.subscriber}", id=name))
    return found


@contextmanager
def left_to_recovery(ended: str) -> Iterator[None]:
    """Let no error of what follows an attempt's end be taken for the attempt's: tried again, a decided one had a second effect."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, recovery finishes what this did not
        kind = type(error).__name__
        structlog.get_logger("relay.work").warning(f"{ended}; what follows is left to recovery", kind=kind)

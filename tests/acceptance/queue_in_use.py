"""A queue as its publishers and subscribers use it, at the times of day of document 003's example."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from relay.queue.message import MessageView, NewMessage, SubscriberView, Taken
from relay.queue.port import Holder, QueueStore
from relay.queue.states import SubscriberState

MEDIA = ("sqlite", "postgresql", "files")
X = "Publisher X"


def clock(text: str) -> int:
    """Return milliseconds of a time of day, as the document's example writes it."""
    return int(datetime.fromisoformat(f"2000-11-01T{text}+00:00").timestamp() * 1000)


NOW = clock("12:14:03")


class Queue:
    """A queue as publishers and subscribers use it; ``url`` is where it lies."""

    def __init__(self, store: QueueStore, url: str) -> None:
        self.store, self.url = store, url
        for group in store.settings.audience.groups:
            for member in group.members:
                store.enter(Holder(member.encode(), member, 0, None))

    def put(self, *ids: str, now: int = NOW, reveal: bool = True, **over: Any) -> list[int]:
        given = [NewMessage(**{"publisher": X, "id": name, "value": name.encode(), **over}) for name in ids]
        return [answer.handle for answer in self.store.put(given, now, reveal=reveal)]

    def take(self, subscriber: str, now: int = NOW, limit: int = 100) -> list[Taken]:
        return self.store.take(subscriber, subscriber.encode(), limit, now)

    def finish(self, subscriber: str, taken: list[Taken], now: int = NOW) -> None:
        assert all(self.store.finish(subscriber, [one.ticket for one in taken], now))

    def cycle(self, subscriber: str, now: int = NOW) -> list[str]:
        taken = self.take(subscriber, now)
        self.finish(subscriber, taken, now)
        return [one.id for one in taken]

    def refuse(self, subscriber: str, taken: list[Taken], cause: str = "unreadable", now: int = NOW) -> None:
        assert all(self.store.refuse(subscriber, [(one.ticket, cause) for one in taken], now))

    def view(self, handle: int) -> MessageView:
        found = self.store.view(handle)
        assert found is not None
        return found

    def of(self, handle: int, subscriber: str) -> SubscriberView:
        return next(one for one in self.view(handle).subscribers if one.subscriber == subscriber)

    def states(self, handle: int) -> dict[str, SubscriberState]:
        return {one.subscriber: one.state for one in self.view(handle).subscribers}


Open = Callable[..., Queue]
"""``on(medium, *groups)``: opens a queue for these subscribers."""

"""Giving messages to a subscriber again: one by one or all that a filter chooses, at a rate that it can bear.

Source: document 003, [58], [86] and [87]: a message that was UNUSABLE is revealed again, for that subscriber only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Final, NamedTuple

from relay.queue.message import MessageView
from relay.queue.port import Filter, QueueStore, StoreAway
from relay.queue.states import PublisherState

PAGE: Final = 500
AT_ONCE: Final = 100

Wanted = tuple[MessageView, str, str | None]
"""A message, a subscriber for whom it was UNUSABLE, and the cause."""
_AGAIN: Final = (PublisherState.REVEALED, PublisherState.JOURNALLED)
"""States in which a message may be given again: not one that was withdrawn."""


class Redriven(NamedTuple):
    """One message for one subscriber; ``done`` False: its state has changed meanwhile, or it was a dry run."""

    handle: int
    publisher: str
    id: str
    subscriber: str
    cause: str | None
    done: bool


def chosen(store: QueueStore, wanted: Filter) -> Iterator[MessageView]:
    """Yield what a filter chooses, by handle, as of when each page is read."""
    after = 0
    while True:
        found = store.find(wanted, after=after, limit=PAGE)
        yield from found
        if len(found) < PAGE:
            return
        after = found[-1].handle


def redrivable(store: QueueStore, wanted: Filter, limit: int) -> Iterator[MessageView]:
    """Yield up to ``limit`` messages that a filter chooses, without those that nobody would be given again: they stay, and would use it up."""
    views = (view for view in chosen(store, wanted) if view.state in _AGAIN and any(_wanted(store, view, wanted.subscriber)))
    return islice(views, limit)


def _wanted(store: QueueStore, view: MessageView, subscriber: str | None) -> Iterator[Wanted]:
    """Yield what may be given again of a message: not to subscribers that are configured no more."""
    known = store.settings.group_of
    return ((view, name, cause) for name, cause in unusable_for(view, subscriber) if known(name) is not None)


def unusable_for(view: MessageView, subscriber: str | None) -> list[tuple[str, str | None]]:
    """Return the subscribers (with their causes) for whom a message came to its end UNUSABLE; given again, it has no such time.

    Without those of a pool of which another member is DONE with it: for them it is over.
    """
    done = {one.group for one in view.subscribers if one.times.done is not None}
    return [
        (one.subscriber, one.cause)
        for one in view.subscribers
        if one.times.unusable is not None and one.group not in done and subscriber in (None, one.subscriber)
    ]


def redrive(
    store: QueueStore,
    views: Iterator[MessageView],
    subscriber: str | None,
    *,
    dry_run: bool,
    pace: Callable[[], None],
    now: Callable[[], int],
    at_once: int = 1,
) -> Iterator[Redriven]:
    """Republish what was UNUSABLE, but for subscribers that are configured no more; ``pace`` waits as long as the rate asks.

    It does so before each one but in a dry run.

    ``at_once`` of them are one unit of the store: with a disk's confirmation for each, a hundred thousand take minutes. What
    is yielded was done.
    """
    wanted = (one for view in views for one in _wanted(store, view, subscriber))
    while some := list(islice(wanted, at_once)):
        parts = deque([some])
        while parts:
            part = parts.popleft()
            done = [False] * len(part)
            try:
                if not dry_run:
                    done = _again(store, part, pace, now)
            except StoreAway:
                # Retry, one by one: another writer was in the way of some of them, and all were taken back.
                if len(part) == 1:
                    raise
                parts.extend([one] for one in part)
                continue
            for (view, name, cause), was in zip(part, done, strict=True):
                yield Redriven(view.handle, view.publisher, view.id, name, cause, was)


def _again(
    store: QueueStore, some: list[Wanted], pace: Callable[[], None], now: Callable[[], int]
) -> list[bool]:
    """Republish in one unit; a single one is a unit of its own, which the store begins again if another writer is in the way."""
    done = []
    with store.transaction() if len(some) > 1 else nullcontext():
        for view, name, _ in some:
            pace()
            done.append(store.republish(view.handle, name, now()))
    return done

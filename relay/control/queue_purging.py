"""Taking messages from all subscribers at a person's word: they become UNAVAILABLE and stay readable ([44])."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from relay.queue.port import Filter, QueueStore
from relay.queue.redriving import chosen
from relay.queue.states import PublisherState

AT_ONCE: Final = 500


def purge(store: QueueStore, wanted: Filter, now: int, *, dry_run: bool) -> Iterator[int]:
    """Withdraw what is PUT or REVEALED and chosen, in small steps; yield how many messages after each."""
    for state in (PublisherState.PUT, PublisherState.REVEALED):
        handles: list[int] = []
        for view in chosen(store, replace(wanted, state=state)):
            handles.append(view.handle)
            if len(handles) == AT_ONCE:
                yield _withdraw(store, handles, now, dry_run=dry_run)
                handles = []
        if handles:
            yield _withdraw(store, handles, now, dry_run=dry_run)


def _withdraw(store: QueueStore, handles: list[int], now: int, *, dry_run: bool) -> int:
    return len(handles) if dry_run else sum(store.withdraw(handles, now))

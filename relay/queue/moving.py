"""Moving a queue to another store while it is in use: what is over is copied first, the rest after the old store is retired.

Every step may be done again. Until the old store is retired it is the queue; afterwards it refuses every write, so that
what is copied then is the last word. ``check`` is asked before each write, and raises once another run has taken the move over:
the new store may be the queue by then. Source: document 003, [22] and [24].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from relay.queue.message import MessageView
from relay.queue.port import Filter, QueueStore
from relay.queue.states import PublisherState, SubscriberState
from relay.world.crash import crash_point

PAGE: Final = 100
_OVER: Final = (PublisherState.JOURNALLED, PublisherState.UNAVAILABLE, PublisherState.DELETED)


@dataclass(slots=True)
class Copied:
    """Messages written into the new store, and those found there that the old one has trimmed since."""

    messages: int = 0
    removed: int = 0
    outcomes: int = 0


def copy_ended(
    source: QueueStore, target: QueueStore, progress: Callable[[int], None], check: Callable[[], object] = bool
) -> int:
    """Copy what is over, while the queue goes on; return how many messages."""
    count = 0
    for page in _pages(source, Filter()):
        wanted = [view.handle for view in page if view.state in _OVER]
        there = _by_handle(target, wanted)
        count += _adopt(source, target, [handle for handle in wanted if handle not in there], check)
        progress(count)
        crash_point("move.page")
    return count


def cut_over(
    source: QueueStore, target: QueueStore, progress: Callable[[int], None], check: Callable[[], object] = bool
) -> Copied:
    """Retire the old store and copy what the new one lacks or has otherwise; the caller has stopped the workers."""
    check()
    source.retire()
    crash_point("move.retired")
    check()
    # It refuses writes if the queue lay there before, and has what was waiting then.
    target.reinstate()
    done = Copied(removed=_clear(source, target, check))
    check()
    target.adopt([], uuid=source.uuid)
    for outcomes in _outcomes(source):
        check()
        target.adopt([], uuid=source.uuid, outcomes=outcomes)
        done.outcomes += len(outcomes)
    known = {holder.id for holder in target.holders()}
    for holder in source.holders():
        if holder.id not in known:
            check()
            target.enter(holder)
    there: set[int] = set()
    for page in _pages(source, Filter()):
        there.update(view.handle for view in page)
        copies = _by_handle(target, [view.handle for view in page])
        stale = [view.handle for view in page if copies.get(view.handle) != view]
        done.messages += _adopt(source, target, stale, check)
        progress(done.messages)
        crash_point("move.page")
    done.removed += _trim_gone(source, target, there, check)
    crash_point("move.copied")
    return done


def differences(source: QueueStore, target: QueueStore) -> Iterator[str]:
    """Yield a sentence for each message that is not the same in both stores: what a move checks before it is over."""
    for page in _pages(source, Filter()):
        handles = [view.handle for view in page]
        ours, copies = _by_handle(source, handles, value=True), _by_handle(target, handles, value=True)
        for handle in handles:
            if copies.get(handle) != ours.get(handle):
                yield f"message {handle} differs between the stores"
    mine, theirs = source.counts()[0], target.counts()[0]
    for state in PublisherState:
        if state in (PublisherState.PUT, PublisherState.REVEALED) and mine.get(state, 0) != theirs.get(state, 0):
            yield f"{mine.get(state, 0)} messages are {state.name} in the old store, {theirs.get(state, 0)} in the new one"


def _clear(source: QueueStore, target: QueueStore, check: Callable[[], object]) -> int:
    """End in the new store what waits there and no more in the old one; return how many messages have left that.

    Only a store in which the queue lay before has any. Each could have the name of a message that waits now.
    """
    count = 0
    for state in PublisherState:
        for page in _pages(target, Filter(state=state)) if state not in _OVER else ():
            there = _by_handle(source, [view.handle for view in page])
            left = [_ended(view) for view in page if view.handle not in there]
            if left:
                check()
                target.adopt(left, uuid=source.uuid)
                count += target.trim([view.handle for view in left])
            _adopt(source, target, [handle for handle, view in there.items() if view.state in _OVER], check)
    return count


def _trim_gone(source: QueueStore, target: QueueStore, there: set[int], check: Callable[[], object]) -> int:
    """Remove from the new store what is not ``there`` in the old one; what a worker had of it when the queue left is over as well."""
    gone: list[int] = []
    for page in _pages(target, Filter()):
        left = [view for view in page if view.handle not in there]
        held = [_ended(view) for view in left if any(row.holder is not None for row in view.subscribers)]
        if held:
            check()
            target.adopt(held, uuid=source.uuid)
        gone += [view.handle for view in left]
    check()
    return target.trim(gone) if gone else 0


def _ended(view: MessageView) -> MessageView:
    """Return a message that is over for everybody, so that it may be trimmed."""
    over = tuple(replace(row, state=SubscriberState.JOURNALLED, blocked=False, holder=None) for row in view.subscribers)
    return replace(view, state=PublisherState.UNAVAILABLE, subscribers=over)


def _adopt(source: QueueStore, target: QueueStore, handles: list[int], check: Callable[[], object]) -> int:
    found = source.views(handles) if handles else []
    if found:
        check()
        target.adopt(found, uuid=source.uuid)
    return len(found)


def _by_handle(store: QueueStore, handles: list[int], *, value: bool = False) -> dict[int, MessageView]:
    """Ask for a page at once: a store may be far away, and each question is a way there and back."""
    return {view.handle: view for view in store.views(handles, value=value)} if handles else {}


def _pages(store: QueueStore, chosen: Filter) -> Iterator[list[MessageView]]:
    after = 0
    while page := store.find(chosen, after=after, limit=PAGE):
        yield page
        after = page[-1].handle


def _outcomes(store: QueueStore) -> Iterator[list[tuple[str, bool]]]:
    after = ""
    while page := store.outcomes(after=after, limit=PAGE):
        yield page
        after = page[-1][0]

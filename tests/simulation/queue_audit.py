"""What two queues and a handler's database must show after a run, from nothing but what is stored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from relay.queue.message import MessageView, SubscriberView
from relay.queue.states import PublisherState, SubscriberState
from tests.simulation.queue_site import Book, Shop

P, S = PublisherState, SubscriberState


def audit(parents: Book, children: Book, shop: Shop, *, decides: str) -> list[str]:
    """Return the anomalies; none: each message had its one end for each group, its effect and its child once, in order.

    ``decides`` is where a parent's attempt is decided: where that is the shop, the order is that of its effects, and a
    recovery may note the DONE of several in any order.
    """
    done = {(end.ticket.handle, group_of(parents, end.subscriber)): end for end in parents.endings}
    found = [*_ends(parents), *_ends(children), *_done_order(children), *_children(parents, children, set(done))]
    if decides != "shop":
        found += _done_order(parents)
    if decides != "queue":
        found += _effects(parents, shop, set(done))
        found += _order(parents, ((e.handle, e.by) for e in shop.effects), "effects")
    return found


def _done_order(book: Book) -> Iterator[str]:
    return _order(book, ((end.ticket.handle, end.subscriber) for end in book.endings), "DONE")


def group_of(book: Book, subscriber: str) -> str:
    """Return the group of a subscriber that the queue knows."""
    group = book.settings.group_of(subscriber)
    assert group is not None
    return group.name


def _ends(book: Book) -> Iterator[str]:
    """I1, I3, I16: one end for each group: DONE once, or UNUSABLE by all its members."""
    written = Counter((end.ticket.handle, group_of(book, end.subscriber)) for end in book.endings)
    yield from (f"duplicate effect (I3): {book.settings.name} {key} DONE {n} times" for key, n in written.items() if n > 1)
    for view in book.find_all():
        if view.state is P.DELETED:
            continue
        for group in {row.group for row in view.subscribers}:
            rows = [row for row in view.subscribers if row.group == group]
            is_done = sum(row.times.done is not None for row in rows)
            if is_done > 1 or (not is_done and not all(_is_unusable(row) for row in rows)):
                yield f"lost message (I1): {book.settings.name} {view.handle} {group}: {[row.state.name for row in rows]}"


def _is_unusable(row: SubscriberView) -> bool:
    return row.times.unusable is not None


def _order(book: Book, ended: Iterable[tuple[int, str]], what: str) -> Iterator[str]:
    """I6: within a lane and a group by handle."""
    lanes: dict[tuple[str, bytes], list[int]] = defaultdict(list)
    for handle, subscriber in ended:
        view = book.view(handle)
        assert view is not None
        # A delay takes a message out of its place; what has no lane has no order.
        if view.lane is not None and view.reveal_at is None:
            lanes[group_of(book, subscriber), view.lane].append(handle)
    for lane, handles in lanes.items():
        for first, second in pairwise(handles):
            if second < first:
                yield f"inversion (I6): {book.settings.name} {lane}: {what} of {second} after {first}"


def _children(parents: Book, children: Book, done: set[tuple[int, str]]) -> Iterator[str]:
    """One child for each DONE of a parent, none for anything else, and none that still waits."""
    shown: Counter[tuple[int, str]] = Counter()
    for child in children.find_all():
        key = _parent_of(parents, child)
        if child.state is P.PUT:
            yield f"child in doubt (I10): {child.handle} waits for {child.attempt}"
        elif child.state is not P.DELETED:
            shown[key] += 1
    yield from (f"phantom child (I4): of {key}, which was not DONE" for key in shown if key not in done)
    yield from (f"duplicate child (I3): {n} of {key}" for key, n in shown.items() if n > 1)
    yield from (f"lost child (I1): of {key}" for key in done if key not in shown)


def _parent_of(parents: Book, child: MessageView) -> tuple[int, str]:
    (parent,) = child.parents
    return parent.handle, group_of(parents, parent.subscriber)


def _effects(parents: Book, shop: Shop, done: set[tuple[int, str]]) -> Iterator[str]:
    """I3, I5: an effect once for each DONE, and none without."""
    written = Counter((effect.handle, group_of(parents, effect.by)) for effect in shop.effects)
    yield from (f"duplicate effect (I3): {n} of {key}" for key, n in written.items() if n > 1)
    yield from (f"torn unit (I5): an effect of {key}, which was not DONE" for key in written if key not in done)
    yield from (f"lost effect (I5): {key} is DONE" for key in done if key not in written)

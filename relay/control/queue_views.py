"""Queues, messages and their states as programs and people see them; payloads only where somebody asked for one."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from relay.queue.desired import Desired, Kind, Subject, Wish
from relay.queue.message import MessageView, Parent, SubscriberView, Times
from relay.queue.port import Filter, QueueStore
from relay.queue.settings import QueueSettings
from relay.run.logging import text

TRACE_MAX: Final = 200
"""Messages of one trace: a loop of parents cannot arise, but a wide tree can."""
SCAN_PAGE: Final = 1000
_TAKEN: Final = ("GET", "FETCHED", "IN_PROCESS")


def queue_row(store: QueueStore, place: str, desired: Desired) -> dict[str, Any]:
    """Return one queue: where it lies, what is wanted of it, how many messages are where. Exact but for JOURNALLED.

    ``unusable`` of a subscriber are those of its JOURNALLED that it could not handle; None where the store does not count them.
    """
    name = store.settings.name
    publisher_states, waiting = store.counts()
    refused = store.unusable()
    workers = Counter(holder.subscriber for holder in store.holders())
    move = desired.moves.get(name)
    return {
        "queue": name,
        "store": place,
        "uuid": store.uuid,
        "wanted": desired.wanted(Subject(Kind.QUEUE, name)).value,
        "move": None if move is None else {"to": move.target, "step": move.step.value, "by": move.who},
        "messages": {state.name: count for state, count in publisher_states.items()},
        "waiting": store.waiting(),
        "subscribers": [
            {
                "subscriber": one.subscriber,
                "wanted": desired.wanted(Subject(Kind.SUBSCRIBER, name, one.subscriber)).value,
                "states": {state.name: count for state, count in one.counts.items()},
                "unusable": None if refused is None else refused.get(one.subscriber, 0),
                "workers": workers[one.subscriber],
            }
            for one in waiting
        ],
    }


def with_workers(subscriber: Mapping[str, Any]) -> int:
    """Return how many messages workers have, of a subscriber in a `queue_row`."""
    return sum(subscriber["states"].get(state, 0) for state in _TAKEN)


def unusable(subscriber: Mapping[str, Any]) -> object:
    """Return how many messages a subscriber in a `queue_row` could not handle, as people see it."""
    return "?" if subscriber["unusable"] is None else subscriber["unusable"]


def settings_row(settings: QueueSettings) -> dict[str, Any]:
    """Return what a queue is configured to be."""
    balancing = settings.balancing
    return {
        "groups": [
            {"group": group.name, "members": list(group.members)} for group in settings.audience.groups
        ],
        "in_order": settings.audience.in_order,
        "order": settings.order,
        "ttl_ms": settings.ttl_ms,
        "publishers": None if settings.publishers is None else sorted(settings.publishers),
        "message_bytes": settings.message_bytes,
        "waiting_max": settings.waiting_max,
        "tries": settings.tries,
        "retain": {
            "age_ms": settings.retain.age_ms,
            "count": settings.retain.count,
            "bytes": settings.retain.bytes,
        },
        "balancing": None
        if balancing is None
        else {"on_above": balancing.on_above, "off_below": balancing.off_below},
    }


def wish_row(wish: Wish) -> dict[str, Any]:
    """Return what somebody wanted."""
    subject = wish.subject
    return {
        "kind": subject.kind.value,
        "queue": subject.queue,
        "name": text(subject.name),
        "wanted": wish.wanted.value,
        "who": text(wish.who),
        "reason": text(wish.reason),
        "at": wish.at,
    }


def publishers(store: QueueStore, desired: Desired, most: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the publishers of up to ``most`` messages with their counts, those a wish is about included; whole or not."""
    found: dict[str, dict[str, int]] = {}
    seen = 0
    for view in scan(store, Filter(), most + 1):
        seen += 1
        if seen <= most:
            states = found.setdefault(view.publisher, {})
            states[view.state.name] = states.get(view.state.name, 0) + 1
    queue = store.settings.name
    for wish in desired.of(Kind.PUBLISHER, queue):
        found.setdefault(wish.subject.name, {})
    rows = [
        {
            "queue": queue,
            "publisher": text(name),
            "wanted": desired.wanted(Subject(Kind.PUBLISHER, queue, name)).value,
            "messages": states,
        }
        for name, states in sorted(found.items())
    ]
    return rows, seen <= most


def message_row(queue: str, view: MessageView, *, value: bool = False) -> dict[str, Any]:
    """Return a message with its handle, subject, header and states ([94]); the payload only if asked for, as base64."""
    row: dict[str, Any] = {
        "queue": queue,
        "handle": view.handle,
        "publisher": text(view.publisher),
        "id": text(view.id),
        "state": view.state.name,
        "put_at": view.put_at,
        "revealed_at": view.revealed_at,
        "unavailable_at": view.unavailable_at,
        "journalled_at": view.journalled_at,
        "deleted_at": view.deleted_at,
        "reveal_at": view.reveal_at,
        "expires_at": view.expires_at,
        "priority": view.priority,
        "subject": None if view.subject is None else text(view.subject),
        "parents": [_parent(parent) for parent in view.parents],
        "subscribers": [subscriber_row(one) for one in view.subscribers],
    }
    if value:
        row["key"] = _encoded(view.key)
        row["value"] = _encoded(view.value)
        row["headers"] = [{"name": name, "value": _encoded(content)} for name, content in view.headers]
    return row


def subscriber_row(one: SubscriberView) -> dict[str, Any]:
    """Return what a message is for one subscriber."""
    return {
        "subscriber": one.subscriber,
        "group": one.group,
        "state": one.state.name,
        "times": {name: at for name, at in one.times._asdict().items() if at is not None},
        "revealed": one.revealed,
        "blocked": one.blocked,
        "attempt": one.attempt,
        "failures": one.failures,
        "again_at": one.again_at,
        "cause": None if one.cause is None else text(one.cause),
    }


def timeline(view: MessageView) -> list[tuple[int, str, str]]:
    """Return (time, who, state) of a message in the order in which the states were entered, as [82] to [85] tell it.

    Of states entered in one write the order is that of the transition tables: a publisher's JOURNALLED follows all subscribers'.
    """
    before = (
        (view.put_at, "PUT"),
        (view.revealed_at, "REVEALED"),
        (view.unavailable_at, "UNAVAILABLE"),
        (view.deleted_at, "DELETED"),
    )
    steps = [(at, rank, "publisher", name) for rank, (at, name) in enumerate(before) if at is not None]
    for one in view.subscribers:
        order = enumerate(("get", "fetched", "in_process", "done", "unusable", "expired", "journalled"), len(before))
        times = one.times._asdict()
        steps += [(times[name], rank, one.subscriber, name.upper()) for rank, name in order if times[name] is not None]
    if view.journalled_at is not None:
        steps.append((view.journalled_at, len(before) + len(Times._fields), "publisher", "JOURNALLED"))
    return [(at, who, state) for at, _, who, state in sorted(steps)]


def trace(
    queue: str, handle: int, view_of: Callable[[str, int], MessageView | None], children_of: Callable[[str, int], list[tuple[str, int]]]
) -> list[tuple[str, MessageView | None, int, int]]:
    """Return (queue, message or None if it is gone, handle, generation) of a message's ancestors, itself, and descendants.

    The message itself is generation 0, its parents -1, its children 1.
    """
    found: dict[tuple[str, int], tuple[MessageView | None, int]] = {}
    waiting = [(queue, handle, 0, 0)]
    while waiting and len(found) < TRACE_MAX:
        name, number, generation, way = waiting.pop(0)
        if (name, number) in found:
            continue
        view = view_of(name, number)
        found[name, number] = (view, generation)
        if view is not None and way <= 0:
            waiting += [(parent.queue, parent.handle, generation - 1, -1) for parent in view.parents]
        if way >= 0:
            waiting += [(child, at, generation + 1, 1) for child, at in children_of(name, number)]
    return sorted(
        ((name, view, number, generation) for (name, number), (view, generation) in found.items()),
        key=lambda one: (one[3], one[0], one[2]),
    )


def scan(store: QueueStore, chosen: Filter, most: int) -> Iterator[MessageView]:
    """Yield up to ``most`` messages, by handle."""
    after, left = 0, most
    while left > 0:
        size = min(SCAN_PAGE, left)
        page = store.find(chosen, after=after, limit=size)
        yield from page
        if len(page) < size:
            return
        after, left = page[-1].handle, left - len(page)


def _parent(parent: Parent) -> dict[str, Any]:
    return {"queue": parent.queue, "handle": parent.handle, "subscriber": parent.subscriber}


def _encoded(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode("ascii")

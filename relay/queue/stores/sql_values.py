"""Between a queue's values and its rows: what a column holds, and what a row says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import orjson

from relay.message.queue_headers import PRIORITY_MAX
from relay.message.record import LANE_NAME_BYTES_MAX
from relay.queue.message import (
    Audience,
    MessageView,
    Parent,
    SubscriberView,
    Taken,
    Ticket,
    Times,
)
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores.lanes import lane_number
from relay.queue.stores.sql_schema import Phase, Shape
from relay.queue.stores.sql_session import Arriving, Row, Seat

Headers = tuple[tuple[str, bytes | None], ...]
_READY: Final = int(Phase.READY)
_HIDDEN: Final = int(Phase.HIDDEN)
_PLACE: Final = int(Phase.PLACE)
_kept_number = lru_cache(1 << 16)(lane_number)


class Arrivals(NamedTuple):
    """The rows of new messages: what stays, what says that they are open, and one for each subscriber."""

    messages: list[Row]
    opened: list[Row]
    deliveries: list[Row]


def number_of_lane(lane: bytes) -> int:
    """Return `lane_number`; lanes come again and again, and the cache's count of long names would fill a worker's memory."""
    return _kept_number(lane) if len(lane) <= LANE_NAME_BYTES_MAX else lane_number(lane)


def seats(audience: Audience, subscribers: dict[str, int], groups: dict[str, int]) -> list[Seat]:
    """Return everybody's place, in the audience's order."""
    found: list[Seat] = []
    shared = Shape.SHARED if sum(len(group.members) for group in audience.groups) > 1 else 0
    for turn, group in enumerate(audience.groups):
        shape = shared | (Shape.POOL if len(group.members) > 1 else 0) | (Shape.ORDERED if audience.in_order else 0)
        for member in group.members:
            found.append(Seat(subscribers[member], groups[group.name], shape, turn, len(found)))
    return found


def message_rows(arriving: Arriving) -> list[Row]:
    """Return the rows that stay of new messages."""
    queue, handles, given, now, ttl_ms, reveal = arriving
    rows: list[Row] = []
    for handle, (new, _) in zip(handles, given, strict=True):
        reveal_at = now + new.delay_ms if new.delay_ms else None
        ttl = ttl_ms if new.ttl_ms is None else new.ttl_ms
        rows.append((
            handle,
            queue,
            now,
            now if reveal and reveal_at is None and new.attempt is None else None,
            new.priority,
            new.publisher,
            new.id,
            new.key,
            new.value,
            new.lane,
            reveal_at,
            None if ttl is None else now + ttl,
            new.attempt,
            headers_text(new.headers) if new.headers else None,
            new.subject,
            parents_text(new.parents) if new.parents else None,
        ))
    return rows


def arrivals(arriving: Arriving) -> Arrivals:
    """Return all rows of new messages."""
    rows = Arrivals(message_rows(arriving), [], [])
    messages, opened, deliveries = rows
    put, shown = int(PublisherState.PUT), int(PublisherState.REVEALED)
    for row, (new, audience) in zip(messages, arriving.given, strict=True):
        handle, queue, revealed, reveal_at, expires_at = row[0], row[1], row[3] is not None, row[10], row[11]
        # A child has no identity here: it is never a repeat, and never makes one.
        name = None if new.parents else new.id
        opened.append((handle, queue, shown if revealed else put, new.publisher, name, reveal_at, new.attempt))
        lane = None if new.lane is None else number_of_lane(new.lane)
        rank = PRIORITY_MAX - new.priority
        hidden = _HIDDEN if new.attempt is None else _PLACE
        for seat in audience:
            visible = revealed and sees_at_once(seat)
            phase = _READY if visible else hidden
            deliveries.append((
                *(handle, seat.subscriber, queue, seat.group, rank, phase, int(visible), lane),
                *(seat.shape, seat.turn, seat.position, expires_at),
            ))
    return rows


def sees_at_once(seat: Seat) -> bool:
    """Return whether a message that is revealed is so for this subscriber: no group is before its own."""
    return not (seat.turn and seat.shape & Shape.ORDERED)


def headers_text(headers: Headers) -> str:
    """Return headers as JSON, each byte as the character of its number."""
    return orjson.dumps([(name, None if v is None else v.decode("latin-1")) for name, v in headers]).decode()


def headers_of(text: str | None) -> Headers:
    """Return the headers of a row."""
    if text is None:
        return ()
    return tuple((name, None if v is None else v.encode("latin-1")) for name, v in orjson.loads(text))


def parents_text(parents: Sequence[Parent]) -> str:
    """Return parents as JSON."""
    return orjson.dumps([list(parent) for parent in parents]).decode()


def parents_of(text: str | None) -> tuple[Parent, ...]:
    """Return the parents of a row."""
    return () if text is None else tuple(Parent(*parent) for parent in orjson.loads(text))


def taken(row: Row, attempt: int, failures: int, group: str, *, in_pool: bool) -> Taken:
    """Return a message in a worker's hands from a row of ``READ_TAKEN``."""
    handle, publisher, id_, key, value, headers, subject, lane, priority, put_at, parents = row
    return Taken(
        Ticket(handle, attempt),
        publisher,
        id_,
        key,
        value,
        headers_of(headers) if headers else (),
        subject,
        lane,
        priority,
        failures,
        put_at,
        parents_of(parents) if parents else (),
        group,
        in_pool,
    )


def subscriber_view(row: Row) -> SubscriberView:
    """Return what a message is for a subscriber from a row of ``VIEW_DELIVERIES``."""
    _, _, subscriber, group, state, *times, revealed, blocked, attempt, failures, holder, again_at, cause = row
    return SubscriberView(
        subscriber=subscriber,
        group=group,
        state=SubscriberState(state),
        times=Times(*times),
        revealed=bool(revealed),
        blocked=bool(blocked),
        attempt=attempt,
        failures=failures,
        holder=holder,
        again_at=again_at,
        cause=cause,
    )


def message_view(row: Row, deliveries: Sequence[Row]) -> MessageView:
    """Return a message from a row of ``VIEW`` and its rows of ``VIEW_DELIVERIES``."""
    handle, publisher, id_, state, put_at, revealed_at, unavailable_at, over_at, deleted_at, *rest = row
    reveal_at, expires_at, priority, key, value, headers, subject, lane, parents, attempt = rest
    return MessageView(
        handle=handle,
        publisher=publisher,
        id=id_,
        state=PublisherState(state),
        put_at=put_at,
        revealed_at=revealed_at,
        unavailable_at=unavailable_at,
        journalled_at=over_at if state == PublisherState.JOURNALLED else None,
        deleted_at=deleted_at,
        reveal_at=reveal_at,
        expires_at=expires_at,
        priority=priority,
        key=key,
        value=value,
        headers=headers_of(headers),
        subject=subject,
        lane=lane,
        parents=parents_of(parents),
        attempt=attempt,
        subscribers=tuple(subscriber_view(delivery) for delivery in deliveries),
        in_order=any(delivery[1] & Shape.ORDERED for delivery in deliveries),
    )

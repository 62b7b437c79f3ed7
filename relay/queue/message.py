"""What stands in a queue: messages as they are put, taken and seen, and who is to get them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from relay.queue.states import PublisherState, SubscriberState


class Group(NamedTuple):
    """One subscriber (its only member has the group's name), or a pool: the first member that takes a message blocks the others.

    Source: document 003, [26], [37], [61].
    """

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Audience:
    """Who is to get a message; ``in_order``: a group sees it only after the groups before it have journalled it ([55])."""

    groups: tuple[Group, ...]
    in_order: bool = False


class Parent(NamedTuple):
    """A message from which another was made, and for which subscriber: recorded in the child ([65])."""

    queue: str
    handle: int
    subscriber: str


class Place(NamedTuple):
    """Where the log has a message's value: for a queue that keeps only the index ([31], [33])."""

    topic: str
    topic_id: str
    partition: int
    offset: int


class NewMessage(NamedTuple):
    """What a publisher puts. Times are milliseconds.

    ``id`` is unique for its publisher; ``lane`` orders (None: no order, every message for itself); ``audience`` None
    means the queue's own; ``delay_ms`` counts from the put until it is revealed, ``ttl_ms`` from the put until it
    expires; ``attempt`` is the attempt that puts it as a child: it stays PUT until that attempt is settled. ``place`` is
    needed by a queue whose values stay in the log, and ignored by the others.
    """

    publisher: str
    id: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    subject: str | None = None
    lane: bytes | None = None
    priority: int = 0
    ttl_ms: int | None = None
    delay_ms: int = 0
    audience: Audience | None = None
    parents: tuple[Parent, ...] = ()
    attempt: str | None = None
    place: Place | None = None


class PutAnswer(NamedTuple):
    """``repeat``: a message of this publisher and id, no child, is PUT or REVEALED already; ``handle`` is the first one's."""

    handle: int
    repeat: bool


class Ticket(NamedTuple):
    """The right to write a taken message's states: valid until it is finished, refused, freed or recovered.

    ``attempt`` grows with every take of this message by this subscriber, so an older ticket never fits again.
    """

    handle: int
    attempt: int


class Taken(NamedTuple):
    """A message in a worker's hands, FETCHED. ``failures`` counts attempts that ended with `free(failed=True)`.

    ``group`` is the subscriber, or the pool whose members have the message between them.
    With ``in_pool`` others may get what is UNUSABLE here.
    """

    ticket: Ticket
    publisher: str
    id: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    subject: str | None
    lane: bytes | None
    priority: int
    failures: int
    put_at: int
    parents: tuple[Parent, ...]
    group: str = ""
    in_pool: bool = False


class Times(NamedTuple):
    """When a subscriber's states were entered, milliseconds; None: not, or not since the last republication."""

    get: int | None = None
    fetched: int | None = None
    in_process: int | None = None
    done: int | None = None
    unusable: int | None = None
    expired: int | None = None
    journalled: int | None = None


@dataclass(frozen=True, slots=True)
class SubscriberView:
    """What a message is for one subscriber.

    ``revealed`` False: its turn has not come. ``blocked``: another member of its pool has the message. ``holder`` is the
    worker that has it; ``again_at`` the time before which it is not given again after a failure.
    """

    subscriber: str
    group: str
    state: SubscriberState
    times: Times
    revealed: bool
    blocked: bool
    attempt: int
    failures: int
    holder: bytes | None = None
    again_at: int | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message as somebody sees it who alters nothing ([94]); ``value`` is None where only states were asked for."""

    handle: int
    publisher: str
    id: str
    state: PublisherState
    put_at: int
    revealed_at: int | None
    unavailable_at: int | None
    journalled_at: int | None
    deleted_at: int | None
    reveal_at: int | None
    expires_at: int | None
    priority: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    subject: str | None
    lane: bytes | None
    parents: tuple[Parent, ...]
    attempt: str | None
    subscribers: tuple[SubscriberView, ...]
    in_order: bool = False

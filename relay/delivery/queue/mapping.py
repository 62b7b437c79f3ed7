"""From a message of the log to a message of a queue: what its headers ask for, believed within the queue's bounds only.

The headers, and how they are read, are those of ``relay.message.queue_headers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar, cast

from relay.delivery.table.mapping import Finish, Mapped
from relay.message import envelope, identity
from relay.message.errors import HeaderUnreadable, MessageRejected
from relay.message.queue_headers import (
    IN_ORDER,
    PRIORITY_DEFAULT,
    Mode,
    audience,
    delay_ms,
    expires_at,
    mode,
    priority,
    text,
)
from relay.message.record import LogMessage
from relay.queue.message import Audience, Group, NewMessage, Place
from relay.queue.modes import in_mode
from relay.queue.settings import QueueSettings

T = TypeVar("T")


class Putting(NamedTuple):
    """A message ready to be put; ``expires_at`` (milliseconds) is turned into a time to live when it is put."""

    message: NewMessage
    expires_at: int | None


class QueueMapping:
    """Maps a batch; a message whose headers ask for what the queue does not have spoils only itself."""

    def __init__(self, queue: QueueSettings, topic_ids: Callable[[], Mapping[str, bytes]]) -> None:
        self._queue = queue
        self._written = queue.audience if queue.written is None else queue.written
        self._topic_ids = topic_ids
        self._lane = _LANES[queue.order]

    def map(self, messages: Sequence[LogMessage], finish: Finish) -> Mapped:  # noqa: ARG002 - rows need no finish
        """Map messages; those that cannot be, and those with a fault already, are left out."""
        rows: list[Putting] = []
        good: list[int] = []
        faults: dict[int, MessageRejected] = {}
        ids = {topic: raw.hex() for topic, raw in self._topic_ids().items()}
        for i, message in enumerate(messages):
            try:
                if message.fault is not None:
                    raise message.fault
                rows.append(self._one(message, ids.get(message.topic, "")))
                good.append(i)
            except HeaderUnreadable as error:
                faults[i] = _refused(error.code, str(error))
            except MessageRejected as rejection:
                faults[i] = rejection
        return Mapped(rows, good, faults)

    def _one(self, message: LogMessage, topic_id: str) -> Putting:
        headers = dict(message.headers)
        publisher = headers.get(envelope.SOURCE) or message.topic.encode()
        subject = headers.get(envelope.SUBJECT)
        new = NewMessage(
            publisher=text(publisher, envelope.SOURCE),
            id=_identifier(message, headers),
            value=message.value,
            key=message.key,
            headers=tuple(message.headers if message.capture is None else envelope.outgoing(message.headers)),
            subject=None if subject is None else text(subject, envelope.SUBJECT),
            lane=self._lane(publisher, message.key),
            priority=_asked(headers, envelope.PRIORITY, priority, PRIORITY_DEFAULT),
            delay_ms=_asked(headers, envelope.DELAY, delay_ms, 0),
            audience=self._audience(headers),
            place=Place(message.topic, topic_id, message.partition, message.offset),
        )
        return Putting(new, _asked(headers, envelope.EXPIRY_TIME, expires_at, None))

    def _audience(self, headers: Mapping[str, bytes]) -> Audience | None:
        wanted, own = headers.get(envelope.AUDIENCE), headers.get(envelope.MODE)
        if wanted is None and own is None:
            return None
        chosen = self._written if wanted is None else self._chosen(audience(wanted, envelope.AUDIENCE))
        word = self._queue.mode if own is None else mode(own, envelope.MODE)
        if word == IN_ORDER:
            # One pool has no order: where the queue balances, its subscribers and pools come as they are written.
            groups = chosen.groups if self._queue.mode == "balance" else in_mode(chosen, self._queue.mode).groups
            return Audience(groups, in_order=True)
        return in_mode(chosen, cast("Mode", word))

    def _chosen(self, names: Sequence[str]) -> Audience:
        """Return the queue's groups and single members that are named, in the order of their names."""
        by_name = {group.name: group for group in self._written.groups}
        for group in self._written.groups:
            for member in group.members:
                by_name.setdefault(member, Group(member, (member,)))
        if not all(name in by_name for name in names):
            raise _refused("bad_audience", f"{envelope.AUDIENCE} names a subscriber that queue {self._queue.name!r} has not")
        return Audience(tuple(by_name[name] for name in names), self._written.in_order)


Lane = Callable[[bytes, bytes | None], bytes | None]
_LANES: Final[dict[str, Lane]] = {
    "publisher": lambda publisher, _key: publisher,
    # Without a key the order is the publisher's; a space before it keeps it apart from keys.
    "key": lambda publisher, key: b" " + publisher if key is None else b"k" + key,
    "none": lambda _publisher, _key: None,
}


def _identifier(message: LogMessage, headers: Mapping[str, bytes]) -> str:
    """Return the message's own id where it is the route's identity, else the identity's digest.

    The queue knows a repeat by (publisher, id), so no two identities of a route may have one id.
    """
    found = headers.get(envelope.ID)
    if found and identity.cloudevents(headers, message.topic.encode(), None) == message.digest:
        return text(found, envelope.ID)
    return message.digest.hex()


def _asked(headers: Mapping[str, bytes], name: str, read: Callable[[bytes, str], int], default: T) -> int | T:
    raw = headers.get(name)
    return default if raw is None else read(raw, name)


def _refused(code: str, sentence: str) -> MessageRejected:
    return MessageRejected("map", code, f"{sentence}; correct the publisher")

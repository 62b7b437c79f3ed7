"""From a message of the log to a message of a queue: what its headers ask for, believed within the queue's bounds only.

Headers, all optional: ``ce_relaypriority`` 0 to 9 (default 4); ``ce_expirytime`` (RFC 3339); ``ce_relaydelay``
milliseconds until it is revealed; ``ce_relaymode`` combined, publish-subscribe, balance or in-order;
``ce_relayaudience`` names of subscribers or pools of the queue, separated by commas: only they get it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, cast

from relay.delivery.mapping import Finish, Mapped
from relay.message import envelope, identity
from relay.message.errors import MessageRejected
from relay.message.record import LogMessage
from relay.queue.message import PRIORITY_DEFAULT, PRIORITY_MAX, Audience, Group, NewMessage, Place
from relay.queue.modes import in_mode
from relay.queue.settings import MODES, Mode, QueueSettings

DELAY_MAX_MS: Final = 366 * 86_400_000
IN_ORDER: Final = "in-order"


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
            except MessageRejected as rejection:
                faults[i] = rejection
        return Mapped(rows, good, faults)

    def _one(self, message: LogMessage, topic_id: str) -> Putting:
        headers = dict(message.headers)
        publisher = headers.get(envelope.SOURCE) or message.topic.encode()
        subject = headers.get(envelope.SUBJECT)
        new = NewMessage(
            publisher=_text(publisher, envelope.SOURCE),
            id=_identifier(message, headers),
            value=message.value,
            key=message.key,
            headers=tuple(message.headers if message.capture is None else envelope.outgoing(message.headers)),
            subject=None if subject is None else _text(subject, envelope.SUBJECT),
            lane=self._lane(publisher, message.key),
            priority=_number(headers, envelope.PRIORITY, PRIORITY_DEFAULT, PRIORITY_MAX),
            delay_ms=_number(headers, envelope.DELAY, 0, DELAY_MAX_MS),
            audience=self._audience(headers),
            place=Place(message.topic, topic_id, message.partition, message.offset),
        )
        return Putting(new, _expiry(headers))

    def _audience(self, headers: Mapping[str, bytes]) -> Audience | None:
        wanted, mode = headers.get(envelope.AUDIENCE), headers.get(envelope.MODE)
        if wanted is None and mode is None:
            return None
        audience = self._written
        if wanted is not None:
            audience = self._chosen(_text(wanted, envelope.AUDIENCE))
        word = self._queue.mode if mode is None else _text(mode, envelope.MODE)
        if word == IN_ORDER:
            # One pool has no order: where the queue balances, its subscribers and pools come as they are written.
            groups = audience.groups if self._queue.mode == "balance" else in_mode(audience, self._queue.mode).groups
            return Audience(groups, in_order=True)
        if word not in MODES:
            raise _refused("bad_mode", f"{envelope.MODE} is none of {', '.join(MODES)} and {IN_ORDER}")
        return in_mode(audience, cast("Mode", word))

    def _chosen(self, names: str) -> Audience:
        """Return the queue's groups and single members that are named, in the order of their names."""
        by_name = {group.name: group for group in self._written.groups}
        for group in self._written.groups:
            for member in group.members:
                by_name.setdefault(member, Group(member, (member,)))
        chosen = list(dict.fromkeys(name.strip() for name in names.split(",")))
        if not all(name in by_name for name in chosen):
            raise _refused("bad_audience", f"{envelope.AUDIENCE} names a subscriber that queue {self._queue.name!r} has not")
        return Audience(tuple(by_name[name] for name in chosen), self._written.in_order)


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
        return _text(found, envelope.ID)
    return message.digest.hex()


def _number(headers: Mapping[str, bytes], name: str, default: int, most: int) -> int:
    raw = headers.get(name)
    if raw is None:
        return default
    if not (raw.isdigit() and len(raw) <= len(str(most)) and int(raw) <= most):
        raise _refused("bad_header", f"{name} is not a number from 0 to {most}")
    return int(raw)


def _expiry(headers: Mapping[str, bytes]) -> int | None:
    raw = headers.get(envelope.EXPIRY_TIME)
    if raw is None:
        return None
    try:
        moment = datetime.fromisoformat(_text(raw, envelope.EXPIRY_TIME).upper())  # RFC 3339: t and z as well
        if moment.tzinfo is None:
            raise ValueError
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise _refused("bad_header", f"{envelope.EXPIRY_TIME} is not a time with its zone, as in RFC 3339") from None


def _text(raw: bytes, name: str) -> str:
    try:
        found = raw.decode()
    except UnicodeDecodeError:
        raise _refused("not_text", f"{name} is not UTF-8 text") from None
    if "\0" in found:
        raise _refused("not_text", f"{name} holds a zero character, which PostgreSQL does not take")
    return found


def _refused(code: str, sentence: str) -> MessageRejected:
    return MessageRejected("map", code, f"{sentence}; correct the publisher")

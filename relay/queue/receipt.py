"""What every store checks before it takes a message in, and how an edit is noted: the same on every medium, [90]."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Final

import orjson

from relay.message.queue_headers import PRIORITY_MAX
from relay.queue.message import Audience, NewMessage
from relay.queue.port import Refused
from relay.queue.settings import QueueSettings

EDITED: Final = "relay_edited"
"""The header that an edit adds: JSON with ``at`` (milliseconds), ``who``, ``reason``, ``before`` (BLAKE2b-16 of the value)."""

PLACE: Final = "relay_place"
"""The header by which an index names a value that stays in the log: JSON, the place, the value's digest, its size in bytes."""
_PLACE_BYTES_MAX: Final = 512

Headers = tuple[tuple[str, bytes | None], ...]


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return what counts against ``message_bytes`` and the retention in bytes; a value in the log counts as if it were here."""
    if not headers:
        return len(key or b"") + len(value or b"")
    if value is None and (in_log := _size_in_log(headers[-1])) is not None:
        return size_of(key, None, headers[:-1]) + in_log
    named = sum(len(name.encode()) + len(content or b"") for name, content in headers)
    return len(key or b"") + len(value or b"") + named


def _size_in_log(header: tuple[str, bytes | None]) -> int | None:
    """Return the size that a place tells, None if the header is none."""
    name, content = header
    if name != PLACE or content is None or len(content) > _PLACE_BYTES_MAX:
        return None
    try:
        size = orjson.loads(content)[-1]
    except (orjson.JSONDecodeError, IndexError, KeyError, TypeError):
        return None
    return size if isinstance(size, int) and size >= 0 else None


def own_headers(headers: Headers) -> Headers:
    """Return a message's headers without a place: that is the relay's own word, and whatever came under its name is left out."""
    return tuple(header for header in headers if header[0] != PLACE)


def received(messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
    """Return messages as a store that has their values keeps them: none says by itself that its value is elsewhere."""
    if not any(name == PLACE for new in messages for name, _ in new.headers):
        return messages
    return [new._replace(headers=own_headers(new.headers)) for new in messages]


def has_value_in_log(value: bytes | None, headers: Headers) -> bool:
    """Does an index have the place only of this message's value?"""
    return value is None and bool(headers) and headers[-1][0] == PLACE


def audience_of(settings: QueueSettings, message: NewMessage) -> Audience:
    """Return who is to get the message: its own audience or the queue's."""
    return settings.audience if message.audience is None else message.audience


def check(settings: QueueSettings, message: NewMessage) -> None:
    """Raise Refused, naming the message and the remedy, if the queue does not accept it."""
    if (fault := _fault(settings, message)) is not None:
        raise Refused(f"{_named(message)} {fault}")
    if message.priority:
        check_priority(message.priority, _named(message))
    if message.audience is not None:
        _check_audience(settings, message.audience, _named(message))


def _named(message: NewMessage) -> str:
    return f"message {message.id!r} of {message.publisher!r}"


def _fault(settings: QueueSettings, message: NewMessage) -> str | None:
    if settings.publishers is not None and message.publisher not in settings.publishers:
        return f"is refused: queue {settings.name!r} takes none of this publisher; add it to its publishers"
    size = size_of(message.key, message.value, message.headers)
    if size > settings.message_bytes:
        return f"has {size} bytes, queue {settings.name!r} takes {settings.message_bytes}: raise its bound or send less"
    if message.attempt is not None and not message.parents:
        return "has an attempt and no parents: a child names what it was made from"
    return None


def check_priority(priority: int, named: str) -> None:
    """Raise Refused if there is no such priority."""
    if not isinstance(priority, int) or not 0 <= priority <= PRIORITY_MAX:
        raise Refused(f"{named} cannot have priority {priority}: give one from 0 to {PRIORITY_MAX}")


def check_subscribers(settings: QueueSettings, subscribers: Collection[str], named: str = "what was asked") -> None:
    """Raise Refused, naming the first subscriber that the queue does not know."""
    for subscriber in subscribers:
        if settings.group_of(subscriber) is None:
            known = ", ".join(repr(member) for group in settings.audience.groups for member in group.members)
            raise Refused(f"{named} is for {subscriber!r}, whom queue {settings.name!r} does not know: it knows {known}")


def edited(before: bytes | None, who: str, reason: str, now: int, *, digest: str | None = None) -> tuple[str, bytes]:
    """Return the header that notes an edit; the value before is named by its digest only, given where it lies elsewhere."""
    named = blake2b(before or b"", digest_size=16).hexdigest() if digest is None else digest
    return EDITED, orjson.dumps({"at": now, "who": who, "reason": reason, "before": named})


def edits_of(headers: Headers) -> list[tuple[int, str, str]]:
    """Return (milliseconds, who, reason) of each noted edit; a header of the name that is none, a stranger's, is passed over."""
    found: list[tuple[int, str, str]] = []
    for name, content in headers:
        try:
            noted = orjson.loads(content or b"") if name == EDITED else None
        except orjson.JSONDecodeError:
            continue
        match noted:
            case {"at": int(at), "who": str(who), "reason": str(reason)}:
                found.append((at, who, reason))
    return found


def _check_audience(settings: QueueSettings, audience: Audience, named: str) -> None:
    members = [member for group in audience.groups for member in group.members]
    groups = [group.name for group in audience.groups]
    if not groups or not all(group.members for group in audience.groups):
        raise Refused(f"{named} is for nobody: name a subscriber in each group of its audience")
    if len(set(members)) < len(members) or len(set(groups)) < len(groups):
        raise Refused(f"{named} names a subscriber or a group twice: name each once")
    check_subscribers(settings, members, named)

"""The headers of a message in the log by which queues go, read alike by who publishes the message and by the queue that takes it.

A queue names a message by ``ce_source``, ``ce_id`` and ``ce_subject``. All others are optional: ``ce_relaypriority`` 0 to 9;
``ce_expirytime`` (RFC 3339); ``ce_relaydelay`` milliseconds until the message is revealed; ``ce_relaymode`` combined,
publish-subscribe, balance or in-order; ``ce_relayaudience`` names of subscribers or pools, separated by commas. Which subscribers
there are only the queue knows. What is refused here every queue refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, Literal, get_args

from relay.message import envelope
from relay.message.errors import HeaderUnreadable

PRIORITY_MAX: Final = 9
"""0 is the lowest, 9 goes first. Priority orders lanes, never messages inside one."""
PRIORITY_DEFAULT: Final = 4
"""What a message of the log has whose header says nothing."""
DELAY_MAX_MS: Final = 366 * 86_400_000

Mode = Literal["combined", "publish-subscribe", "balance"]
MODES: Final[tuple[str, ...]] = get_args(Mode)
IN_ORDER: Final = "in-order"

_SHOWN_MAX: Final = 60


def text(raw: bytes, name: str) -> str:
    """Return a header's text, as databases take it."""
    try:
        found = raw.decode()
    except UnicodeDecodeError:
        raise HeaderUnreadable(name, "not_text", "is not UTF-8 text") from None
    if "\0" in found:
        raise HeaderUnreadable(name, "not_text", "holds a zero character, which PostgreSQL does not take")
    return found


def priority(raw: bytes, name: str) -> int:
    """Return a message's priority."""
    return _number(raw, name, PRIORITY_MAX)


def delay_ms(raw: bytes, name: str) -> int:
    """Return the milliseconds until a message is revealed."""
    return _number(raw, name, DELAY_MAX_MS)


def expires_at(raw: bytes, name: str) -> int:
    """Return when a message expires, in milliseconds since 1970."""
    try:
        moment = datetime.fromisoformat(text(raw, name).upper())  # RFC 3339: t and z as well
        if moment.tzinfo is None:
            raise ValueError
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise HeaderUnreadable(name, "bad_header", "is not a time with its zone, as in RFC 3339") from None


def mode(raw: bytes, name: str) -> str:
    """Return one of ``MODES``, or ``IN_ORDER``."""
    word = text(raw, name)
    if word != IN_ORDER and word not in MODES:
        raise HeaderUnreadable(name, "bad_mode", f"is none of {', '.join(MODES)} and {IN_ORDER}")
    return word


def audience(raw: bytes, name: str) -> list[str]:
    """Return the names of subscribers and pools, each once, in their order."""
    names = list(dict.fromkeys(one.strip() for one in text(raw, name).split(",")))
    if "" in names:
        raise HeaderUnreadable(name, "bad_audience", "lacks a name, which no subscriber is without")
    return names


READERS: Final[Mapping[str, Callable[[bytes, str], object]]] = {
    envelope.SOURCE: text,
    envelope.ID: text,
    envelope.SUBJECT: text,
    envelope.PRIORITY: priority,
    envelope.DELAY: delay_ms,
    envelope.EXPIRY_TIME: expires_at,
    envelope.MODE: mode,
    envelope.AUDIENCE: audience,
}


def refusal(name: str, raw: bytes) -> str | None:
    """Return a sentence for the publisher if no queue could read a header, which is one of ``READERS``; else None."""
    try:
        READERS[name](raw, name)
    except HeaderUnreadable as error:
        shown = raw[:_SHOWN_MAX].decode("utf-8", "backslashreplace")
        more = "..." if len(raw) > _SHOWN_MAX else ""
        return f"{name} = {shown!r}{more} {error.why}, so that no queue could take the message; correct it, or leave the header out"
    return None


def _number(raw: bytes, name: str, most: int) -> int:
    if not (raw.isdigit() and len(raw) <= len(str(most)) and int(raw) <= most):
        raise HeaderUnreadable(name, "bad_header", f"is not a number from 0 to {most}")
    return int(raw)

"""The dead-letter record: the message as it was, with the cause in headers of our own that no stranger can pre-set.

A redrive that succeeds is followed by a record under the same key, without a value and with the code ``redriven``: the
letters of that route and key with a lower ``replay_count`` count no more.
"""

from __future__ import annotations

from typing import Final

from relay.message.envelope import ID, REDRIVEN, UNTOLD_CODE, Headers, outgoing
from relay.message.errors import MessageRejected
from relay.message.record import LogMessage

PREFIX: Final = "__relay.errors."
SENTENCE_CHARACTERS_MAX: Final = 1000
ID_BYTES_MAX: Final = 4_096
TAKEN_BACK: Final = MessageRejected("redrive", REDRIVEN, "a redrive delivered it: its earlier dead letters count no more")
"""Stands for the cause in the record, without a value, that takes dead letters back."""
UNTOLD: Final = MessageRejected(
    "redrive",
    UNTOLD_CODE,
    "whether a redrive delivered it can no longer be told; look for it at the destination before you redrive it again",
)
"""The cause of a redrive that was torn and whose outputs have left their topic since."""

LETTER_LOST: Final = MessageRejected(
    "apply",
    "letter_lost",
    "it died, and its first dead letter is lost with a transaction that a broker left open; redrive it to learn why",
)
"""Stands for a cause that only the lost letter knew."""
OUTPUT_LOST: Final = MessageRejected(
    "apply",
    "output_lost",
    "its output is lost with a transaction that a broker left open, and it has left the log since: publish it again",
)


def dead_letter(
    message: LogMessage,
    cause: MessageRejected,
    *,
    route: str,
    target: str,
    group: str,
    attempts: int,
    first_failed_at: str | None = None,
    last_failed_at: str | None = None,
    replay_count: int = 0,
) -> tuple[bytes, bytes | None, Headers]:
    """Return (key, value, headers) of the record for ``<relay>.deadletter``.

    The key is the digest in hexadecimal: the record is written at least once on table routes, so readers key by it.
    ``first_failed_at`` and ``last_failed_at`` are RFC 3339 times for people; the header is left out without one.
    """
    facts = {
        "route": route,
        "target": target,
        "stage": cause.stage,
        "code": cause.code,
        "class": type(cause.__cause__ or cause).__name__,
        "message": _one_line(str(cause))[:SENTENCE_CHARACTERS_MAX],
        "topic": message.topic,
        "partition": str(message.partition),
        "offset": str(message.offset),
        "timestamp": str(message.timestamp_ms),
        "group": group,
        "attempts": str(attempts),
        "first_failed_at": first_failed_at or last_failed_at,
        "last_failed_at": last_failed_at or first_failed_at,
        "replay_count": str(replay_count),
    }
    headers = [header for header in outgoing(message.headers) if not header[0].startswith(PREFIX)]
    headers += [(PREFIX + name, fact.encode()) for name, fact in facts.items() if fact is not None]
    headers.append((PREFIX + "message_id", _cut(message.header(ID) or b"")))
    return message.digest.hex().encode(), message.value, headers


def _cut(identifier: bytes) -> bytes:
    """Return an id for people. The original stands beside it: twice, a long one would take more room than the topic has."""
    if len(identifier) <= ID_BYTES_MAX:
        return identifier
    return identifier[:ID_BYTES_MAX].decode("utf-8", "ignore").encode() + "…".encode()


def _one_line(sentence: str) -> str:
    """Replace what could forge a line in a log or a terminal (CWE-117)."""
    return "".join(character if character.isprintable() else " " for character in sentence)

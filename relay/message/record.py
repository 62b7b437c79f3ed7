"""A message of the log as the relay carries it from the reader to a destination."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from operator import methodcaller
from typing import Final, NamedTuple, Protocol

from relay.message.envelope import Headers
from relay.message.errors import MessageRejected, Stopped
from relay.message.limits import raise_limit

TOPIC_CHARACTERS_MAX: Final = 249
TOPIC_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_CHARACTERS_MAX}}}")


TOPIC_REMEDY: Final = "use 1 to 249 letters, digits, '.', '_' or '-'"


def is_topic_name(name: str) -> bool:
    """Tell whether Kafka takes this as a topic's name; the client may end the process when it is asked about another."""
    return TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


class LogPartition(NamedTuple):
    """One partition of one log topic."""

    topic: str
    partition: int


LANE_NAME_BYTES_MAX: Final = 256
"""What is kept of a lane's name: a key or a source may be as long as a message."""


def lane_name(lane: bytes) -> bytes:
    """Return what stands for a lane where lanes are kept: its own bytes, of a long one their digest."""
    return lane if len(lane) <= LANE_NAME_BYTES_MAX else blake2b(lane, digest_size=32).digest()


class Record(Protocol):
    """A record as the Kafka client hands it over."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Headers | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def leader_epoch(self) -> int | None: ...


headers_of: Final[Callable[[Record], Headers | None]] = methodcaller("headers")
"""Asks a record for its headers; SystemError if a header's name is not UTF-8, and then it must not be asked again.

The client returns a list with a hole in it and leaves an exception behind. A plain ``record.headers()`` notices that only
until the interpreter has specialized the call (CPython 3.11, after a few records): after that the hole is read, and the
process ends. Called from C, the answer is checked every time.
"""



def of_other_version(topic: str | None, partition: int | None, offset: int | None) -> Stopped:
    """Return what to raise over a record of the relay's own that this version cannot read, and must not pass over."""
    return Stopped(
        f"{topic}[{partition}] has at offset {offset} what another version of the relay wrote, and this one cannot read: run "
        "that version, or a newer one"
    )


def headers_if_any(record: Record) -> Headers:
    """Return a record's headers, none if a name is not UTF-8: whoever may write to a log can append such a record.

    Ask once for each record: see ``headers_of``.
    """
    try:
        return headers_of(record) or []
    except SystemError as error:
        raise_limit(error.__cause__ or error)
        return []


Appended = tuple[bytes | None, bytes | None, Headers | None, int]
"""A record to append to a partition that is known: key, value, headers, timestamp in milliseconds (0: now)."""


class LogMessage(NamedTuple):
    """One record of the log with what the relay derived from it, once, when it was read.

    ``digest`` is the 16-byte identity, ``content`` the 8-byte digest of key and value, ``lane`` the ordered
    sub-stream's name within the partition (raw bytes; empty for one lane per partition), ``capture`` the 16-byte
    capture id or None. ``timestamp_ms`` is the broker's or producer's wall time, for people only. ``fault`` says why
    the message can only become a dead letter, if so.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    digest: bytes
    content: bytes
    lane: bytes
    capture: bytes | None
    timestamp_ms: int
    fault: MessageRejected | None = None

    @property
    def size(self) -> int:
        """Bytes of key, value and headers: what the bound on what is held counts."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers

    def header(self, name: str) -> bytes | None:
        """Return the last value of a header, or None."""
        found = None
        for header, value in self.headers:
            if header == name:
                found = value
        return found

    def __repr__(self) -> str:
        return f"LogMessage({self.topic}[{self.partition}]@{self.offset})"


_HEADERS_LOOKED_AT_EVERY: Final = 17
"""A prime, so that no rhythm of a publisher keeps step with it."""


def bytes_of(messages: Sequence[LogMessage]) -> int:
    """Return the bytes of keys, values and headers, for bounds of memory: every seventeenth message's headers stand for all.

    Adding up each header would be a tenth of a message's way through a worker.
    """
    looked_at = messages[::_HEADERS_LOOKED_AT_EVERY]
    headers = sum([len(name) + len(value or b"") for message in looked_at for name, value in message.headers])
    bodies = sum([len(message.key or b"") + len(message.value or b"") for message in messages])
    return bodies + headers * len(messages) // max(1, len(looked_at))

"""A message as a handler sees it, and what the handler wants published because of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import orjson

from relay.message.envelope import GivenHeaders, given_headers, is_utf8
from relay.message.errors import HeadersRefused
from relay.message.identity import digest
from relay.message.json_text import as_json
from relay.queue.message import NewMessage, Taken
from relay.work.desk import check_call
from relay.world import schedule

_ENDING: Final = schedule.lock()
"""Held for a moment while a child is added, or a call ends. One for all: a message may be pickled, which a lock cannot."""
_TIME_MOST_MS: Final = 2**62
"""Stores have 64 bits for when a message shows or expires: this, and the time of day."""


class Message:
    """One message of a queue, as its handler gets it.

    ``taken`` is what the store of ``queue`` gave. ``children`` collects what `publish` was given: none of it shows unless
    this message becomes DONE.
    """

    __slots__ = ("children", "further", "is_over", "process", "queue", "taken")

    def __init__(self, taken: Taken, queue: str = "") -> None:
        self.taken = taken
        self.queue = queue
        self.children: list[tuple[str, NewMessage]] = []
        self.further: list[int] = []
        self.is_over = False
        """Set when the handler has returned: what a thread that it left behind publishes would be lost without a word."""
        self.process = os.getpid()

    def end(self) -> None:
        """The handler has returned: what `publish` has not taken by now it refuses."""
        with _ENDING:
            self.is_over = True

    @property
    def handle(self) -> int:
        """The number of the message in its queue."""
        return self.taken.ticket.handle

    @property
    def id(self) -> str:
        """The id that its publisher gave it."""
        return self.taken.id

    @property
    def publisher(self) -> str:
        """Who put it."""
        return self.taken.publisher

    @property
    def key(self) -> bytes | None:
        """Its key."""
        return self.taken.key

    @property
    def value(self) -> bytes | None:
        """Its payload, as it was put."""
        return self.taken.value

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Its headers, in order; a name may repeat."""
        return self.taken.headers

    def header(self, name: str) -> bytes | None:
        """Return the last header of this name, None if there is none."""
        return next((value for found, value in reversed(self.taken.headers) if found == name), None)

    @property
    def subject(self) -> str | None:
        """Its subject."""
        return self.taken.subject

    @property
    def lane(self) -> bytes | None:
        """The lane in which it keeps its order; None: in none."""
        return self.taken.lane

    @property
    def failures(self) -> int:
        """How many tries have failed before this one."""
        return self.taken.failures

    @property
    def idempotency_key(self) -> str:
        """A UUID for what this message is to have done elsewhere: whoever is told it with each try can do that once.

        It is the same in every try and every process, after a worker's death and after a redrive, also of a message that
        was DONE. Another queue, and another subscriber of this one, has another; members of a pool, who have the message
        between them, have one. It is made of the message's publisher and id, not of its value.
        """
        parts = (self.queue, self.taken.group, self.publisher, self.id)
        # Version 8 of RFC 9562: a UUID of one's own making. Never change it: a receiver would take the next try for another call.
        number = int.from_bytes(digest(b"e", *(part.encode(errors="surrogatepass") for part in parts)), "big")
        return str(UUID(int=number & ~(0xF << 76) & ~(0x3 << 62) | 0x8 << 76 | 0x2 << 62))

    def json(self) -> Any:
        """Return the payload read as JSON; raises ValueError if it is none."""
        return orjson.loads(self.taken.value or b"null")

    def also_from(self, handle: int) -> None:
        """Record an earlier message of this queue as a further parent of the children; raises ValueError for what is no handle."""
        # A number, whatever the handler has kept it as: beside a text for one the queue could not be archived any more.
        found = int(handle)
        if not 0 < found < 2**63:
            raise ValueError(f"also_from({handle!s:.40}): no message has such a handle; give the `handle` that an earlier one had")
        if found != self.handle:
            self.further.append(found)

    def publish(
        self,
        queue: str,
        value: bytes | bytearray | memoryview | str | Mapping[str, Any] | list[Any] | None,
        *,
        key: bytes | bytearray | memoryview | str | None = None,
        headers: GivenHeaders | None = None,
        subject: str | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        delay_ms: int = 0,
    ) -> None:
        """Put a child into another queue if and only if this message becomes DONE; a mapping or list goes as JSON.

        Its key and lane are ``key``, else this message's, and so is its priority (0 to 9; 9 goes first). Raises CallOver
        after the handler has returned, and in another process; HeadersRefused; TypeError for a value that JSON cannot
        express; ValueError for a priority or a time that is no number, or one that no store has room for.
        """
        check_call(self.process, is_over=self.is_over)
        payload = value if value is None else payload_of(value)
        name = key if key is None else payload_of(key)
        child = NewMessage(
            publisher="",
            id="",
            value=payload,
            key=name if name is not None else self.taken.key,
            headers=tuple(given_headers(headers)),
            subject=_checked(subject),
            lane=name if name is not None else self.taken.lane,
            # Here, where an error names the handler's line: the store is asked only once the handler has returned.
            priority=self.taken.priority if priority is None else int(priority),
            ttl_ms=None if ttl_ms is None else _milliseconds("ttl_ms", ttl_ms),
            delay_ms=_milliseconds("delay_ms", delay_ms),
        )
        with _ENDING:
            check_call(self.process, is_over=self.is_over)  # it may have returned since, in another thread
            self.children.append((queue, child))


def _milliseconds(name: str, given: float) -> int:
    """Return a time as a whole number; raises ValueError for one that is none, or that no store could add to the time of day."""
    try:
        found = int(given)
    except OverflowError:  # the infinities
        found = _TIME_MOST_MS
    if abs(found) >= _TIME_MOST_MS:
        raise ValueError(f"{name} = {given!s:.40} is beyond what any store can keep; give fewer milliseconds, or leave it out")
    return found


def _checked(subject: Any) -> str | None:
    """Return a subject as every store takes it, and gives it back as text; raises HeadersRefused.

    SQLite would keep bytes as they are, on which listing and archiving of the whole queue fail, and PostgreSQL make other text of them.
    """
    if subject is None or (isinstance(subject, str) and "\0" not in subject and is_utf8(subject)):
        return subject
    what = "it holds a NUL, or half of a surrogate pair" if isinstance(subject, str) else f"a {type(subject).__name__} is no text"
    raise HeadersRefused(f"subject: {what}; give text without either, or leave it out")


def payload_of(given: Any) -> bytes:
    """Return bytes as they are, text as UTF-8, and anything else as JSON."""
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    return given.encode() if isinstance(given, str) else as_json(given)

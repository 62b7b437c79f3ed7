"""Of two processes under one name the older stops: each announces itself before it joins, and looks at every take-over.

A process that joins the group makes every member take over anew, so the older one always looks after the newer one
has announced itself. Without this two topic workers with one transactional id, each with partitions of its own,
would fence each other for ever, and two table workers would not notice at all.
"""

from __future__ import annotations

from typing import Final, Protocol

from relay.message.errors import TwinDetected
from relay.run import randomness

KEY_PREFIX: Final = b"process/"


class Register(Protocol):
    """A compacted topic of one partition: the order of its records is the order of the announcements."""

    def last(self, key: bytes) -> bytes | None:
        """Return the last record under ``key``."""

    def put(self, key: bytes, value: bytes, *, wait: bool) -> None:
        """Append a record."""


class Twins:
    """Tells a process whether another one has taken its name since it started."""

    def __init__(self, register: Register, worker: str) -> None:
        self._register = register
        self._worker = worker
        self._key = KEY_PREFIX + worker.encode()
        self._token = randomness.uuid_bytes().hex().encode()

    def announce(self) -> None:
        """Take the name; call it before joining the group. Raises Unreachable."""
        self._register.put(self._key, self._token, wait=True)

    def check(self) -> None:
        """Raise TwinDetected if a newer process runs under this name."""
        if self._register.last(self._key) not in (self._token, None):
            raise TwinDetected(
                f"another process runs as {self._worker!r}: give each relay its own [relay] instance; this older one stops"
            )

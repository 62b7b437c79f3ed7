"""Of two processes under one name the older stops: each announces itself before it joins, and looks at every take-over.

A process that joins the group makes every member take over anew, so the older one always looks after the newer one
has announced itself. Without this two topic workers with one transactional id, each with partitions of its own,
would fence each other for ever, and two table workers would not notice at all.

An announcement is numbered one above the highest that was there before it. The announcement of a process that has
died may arrive late, after its successor's, and then has no higher number: it is outbid, not obeyed. Whoever lives
sees the bid and stops.
"""

from __future__ import annotations

from typing import Final

from relay.message.errors import TwinDetected
from relay.run.register import Register
from relay.world import randomness

KEY_PREFIX: Final = b"process/"


class Twins:
    """Tells a process whether another one has taken its name since it started."""

    def __init__(self, register: Register, worker: str) -> None:
        self._register = register
        self._worker = worker
        self._key = KEY_PREFIX + worker.encode()
        self._token = randomness.uuid_bytes().hex().encode()
        self._number = 0

    def announce(self) -> None:
        """Take the name; call it before joining the group. Raises Unreachable."""
        self._number = max((number for number, _ in self._announced()), default=0) + 1
        self._register.put(self._key, b"%d %s" % (self._number, self._token), wait=True)

    def check(self) -> None:
        """Raise TwinDetected if a newer process runs under this name."""
        others = [number for number, token in self._announced() if token != self._token]
        highest = max(others, default=0)
        if highest > self._number:
            raise TwinDetected(
                f"another process runs as {self._worker!r}: give each relay its own [relay] instance; this older one stops"
            )
        if highest == self._number:
            self.announce()  # started at the same time, or dead before this one started: only the living see it

    def _announced(self) -> list[tuple[int, bytes]]:
        """Return (number, token) of every announcement under this name that compaction has left."""
        found = []
        for key, value in self._register.under([self._key]):
            if key == self._key and value is not None:
                number, _, token = value.rpartition(b" ")
                found.append((int(number) if number.isdigit() else 0, token))
        return found

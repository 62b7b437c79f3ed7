"""What anybody who reaches the port may do before a token is asked for: hold so many connections, and say so much in the log."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections import deque
from typing import Any

import structlog

from relay.message.limits import limit_met
from relay.world import clock
from relay.world.seldom import Repeats

log = structlog.get_logger("relay.serve")


class BoundedListener(socket.socket):
    """A listening socket of whose connections ``most`` are open at once: a further one takes the oldest one's place.

    A connection that asks for nothing, or begins no TLS, has no end of its own, and to refuse those that come would let
    whoever holds that many keep probes out. An answer takes milliseconds, so the oldest is hardly ever one that still waits
    for its own.
    """

    def __init__(self, listening: socket.socket, most: int) -> None:
        """Take over a socket that listens."""
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self._most = most
        self._accepted: deque[socket.socket] = deque()
        self._ended: list[socket.socket] = []
        """Those that the server, whose they are, has not closed yet."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and end the oldest one if there are too many.

        The event loop asks for a hundred in a row; BlockingIOError sends it to close what was ended before, else their files add up.
        """
        self._ended = [one for one in self._ended if one.fileno() >= 0]
        if len(self._ended) >= self._most:
            raise BlockingIOError
        accepted, address = super().accept()
        self._accepted = deque(one for one in self._accepted if one.fileno() >= 0)
        self._accepted.append(accepted)
        if len(self._accepted) > self._most:
            oldest = self._accepted.popleft()
            self._ended.append(oldest)
            with contextlib.suppress(OSError):  # its peer has left already
                oldest.shutdown(socket.SHUT_RDWR)
        return accepted, address


class _Lines(logging.Handler):
    """Makes lines of the relay of what the server's library says, the same once a minute."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage().strip()
        if not self._repeats.is_one(said, clock.monotonic()):
            more: dict[str, Any] = {} if record.exc_info is None else {"exc_info": record.exc_info}
            if record.exc_info and record.exc_info[1] and (limit := limit_met(record.exc_info[1])):
                more = {"reason": limit}
            log.warning("http server", said=said, **more)


def tell_of_the_server() -> None:
    """Let what the server's library says through ``logging`` be lines of the relay's log; by itself it prints them."""
    lines = _Lines()
    # Where no file is left for a connection, the event loop says so as often as connections may wait, each second.
    for told in map(logging.getLogger, ("uvicorn", "asyncio")):
        told.handlers, told.propagate = [lines], False

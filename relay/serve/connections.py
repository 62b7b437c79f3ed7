"""What anybody who reaches the port may do before a token is asked for: hold so many connections, and say so much in the log."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Any

import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from relay.message.limits import limit_met
from relay.run import clock
from relay.run.seldom import Repeats

log = structlog.get_logger("relay.serve")


def bounded(most: int) -> type[H11Protocol]:
    """Return the protocol of connections of which ``most`` are open at once: a further one takes the oldest one's place.

    A connection that asks for nothing has no end of its own, and to refuse those that come would let whoever holds that
    many keep probes out. An answer takes milliseconds, so the oldest is hardly ever one that still waits for its own.
    """
    open_ones: OrderedDict[H11Protocol, asyncio.BaseTransport] = OrderedDict()

    class Bounded(H11Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)  # type: ignore[arg-type]
            open_ones[self] = transport
            if len(open_ones) > most:
                _, oldest = open_ones.popitem(last=False)
                oldest.abort()  # type: ignore[attr-defined]

        def connection_lost(self, exc: Exception | None) -> None:
            open_ones.pop(self, None)
            super().connection_lost(exc)

    return Bounded


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

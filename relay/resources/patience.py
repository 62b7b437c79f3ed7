"""Ends a connection whose answer is overdue: a wait inside the database's client library has no end of its own.

Waiting there lets go of the interpreter once for each exchange; waiting in Python does so at each of its steps, and
threads that share one interpreter pay for every handover.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

from relay.run import clock, schedule

CHECK_S: Final = 0.25
_NEVER: Final = float("inf")


class Awaited:
    """One connection. ``overdue_at`` is when its answer is, on the monotonic clock; infinite while nothing is asked."""

    __slots__ = ("_patience", "_socket", "overdue_at")

    def __init__(self, patience: Patience, descriptor: int) -> None:
        self.overdue_at = _NEVER
        self._patience = patience
        # A descriptor of its own: the client may have closed its one, and the number be another file by then.
        self._socket = socket.socket(fileno=os.dup(descriptor))

    def answered(self) -> None:
        """Nothing is asked any more."""
        self.overdue_at = _NEVER

    def cut(self) -> None:
        """Have the thread that waits find the connection lost."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Forget the connection. Safe to repeat."""
        self._patience.forget(self)
        self._socket.close()


class Patience:
    """Looks after connections, in one thread that lives as long as there are any."""

    def __init__(self) -> None:
        self._lock = schedule.lock()
        self._awaited: set[Awaited] = set()
        self._is_watched = False
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """Is this the process that it was made in, rather than a fork, which has none of its threads?"""
        return self._process == os.getpid()

    def await_on(self, descriptor: int) -> Awaited:
        """Look after a connection until it is closed."""
        awaited = Awaited(self, descriptor)
        with self._lock:
            self._awaited.add(awaited)
            if not self._is_watched:
                schedule.start_thread("relay-database-patience", self._watch)
                self._is_watched = True
        return awaited

    def forget(self, awaited: Awaited) -> None:
        """Look no more after this one."""
        with self._lock:
            self._awaited.discard(awaited)

    def _watch(self) -> None:
        while True:
            clock.sleep(CHECK_S)
            with self._lock:
                if not self._awaited:
                    self._is_watched = False
                    return
                now = clock.monotonic()
                for awaited in self._awaited:
                    if awaited.overdue_at <= now:
                        awaited.cut()

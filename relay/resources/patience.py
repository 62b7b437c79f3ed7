"""Ends a connection whose answer is overdue: a wait inside the database's client library has no end of its own.

Waiting there lets go of the interpreter once for each exchange; waiting in Python does so at each of its steps, and
threads that share one interpreter pay for every handover.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from weakref import WeakSet

from relay.world import clock, schedule

ANSWER_TIMEOUT_S: Final = 10.0
"""How long an answer is waited for; then its connection is given up."""
CHECK_S: Final = 0.25
_NEVER: Final = float("inf")


class Awaited:
    """One connection. ``overdue_at`` is when its answer is, on the monotonic clock; infinite while nothing is asked."""

    __slots__ = ("__weakref__", "_patience", "_socket", "overdue_at")

    def __init__(self, patience: Patience, descriptor: int) -> None:
        self.overdue_at = _NEVER
        self._patience = patience
        # A descriptor of its own: the client may have closed its one, and the number be another file by then.
        self._socket = socket.socket(fileno=os.dup(descriptor))

    def asked(self, more_s: float = 0.0) -> None:
        """An answer is due, so many seconds later than others."""
        self.overdue_at = clock.monotonic() + ANSWER_TIMEOUT_S + more_s

    def answered(self) -> None:
        """Nothing is asked any more."""
        self.overdue_at = _NEVER

    @contextmanager
    def asking(self, more_s: float = 0.0) -> Iterator[None]:
        """Have what runs in the block find the connection lost when its answer is overdue."""
        self.asked(more_s)
        try:
            yield
        finally:
            self.answered()

    def cut(self) -> None:
        """Have the thread that waits find the connection lost."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Forget the connection. Safe to repeat."""
        self._patience.forget(self)
        self._socket.close()

    def __del__(self) -> None:
        # Of a connection that somebody dropped or was interrupted with; without the lock, which its thread may hold.
        with suppress(AttributeError):
            self._socket.close()


class Patience:
    """Looks after connections, in one thread that lives as long as there are any. One serves a process (`await_on`)."""

    def __init__(self) -> None:
        self._lock = schedule.lock()
        self._awaited: WeakSet[Awaited] = WeakSet()
        self._is_watched = False
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """Is this the process that it was made in, rather than a fork, which has none of its threads?"""
        return self._process == os.getpid()

    def await_on(self, descriptor: int) -> Awaited:
        """Look after a connection until it is closed, or dropped. Raises OSError when the process is at its limits."""
        awaited = Awaited(self, descriptor)
        with self._lock:
            self._awaited.add(awaited)
            if not self._is_watched:
                try:
                    schedule.start_thread("relay-database-patience", self._watch)
                except RuntimeError as error:
                    raise OSError(errno.EAGAIN, "no further thread can be started") from error
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
                self._cut_overdue(clock.monotonic())

    def _cut_overdue(self, now: float) -> None:
        # Apart, so that nothing holds on to a connection that was dropped until the next look.
        for awaited in list(self._awaited):
            if awaited.overdue_at <= now:
                awaited.cut()


_patience = Patience()


def await_on(descriptor: int) -> Awaited:
    """Look after a connection until it is closed, or dropped. Raises OSError when the process is at its limits."""
    global _patience  # noqa: PLW0603 - a thread for each who connects would do the same work
    if not _patience.is_here:
        _patience = Patience()
    return _patience.await_on(descriptor)


@contextmanager
def answered(descriptor: int, more_s: float = 0.0) -> Iterator[None]:
    """Have what runs in the block find a connection lost, which nobody looks after, when its answer is overdue."""
    awaited = await_on(descriptor)
    try:
        with awaited.asking(more_s):
            yield
    finally:
        awaited.close()

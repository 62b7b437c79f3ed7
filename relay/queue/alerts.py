"""Who waits for a queue wakes when something is there: at once where the medium can tell, else within a bound.

An alert is a hint. It stays until somebody waits, so that what comes between a take that gave nothing and the wait is
not missed; it may come for nothing; and it may fail to come, so whoever waits takes again when the time is over.
Delays and retries that end make no alert.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from relay.world import clock, schedule

if TYPE_CHECKING:
    import psycopg

CHANNEL: Final = "relay_queue"
"""Where PostgreSQL's queues notify; the payload is the queue's name."""
LOOK_AGAIN_S: Final = 0.02
"""How often a file is looked at for what other processes have committed; one look costs some microseconds."""
POLL_S: Final = 0.2
"""How often a store that tells nothing is to be asked."""


class Alerts(Protocol):
    """What the worker of a subscriber waits on; open it before the first take."""

    def wait(self, subscriber: str, timeout_s: float) -> bool:
        """Wait until something may be there for the subscriber; False if the time was over first."""

    def close(self) -> None:
        """Stop listening."""


class Board:
    """The alerts of one process: those who put tell it, those who wait have an event each."""

    def __init__(self) -> None:
        self._lock = schedule.lock()
        self._events: dict[str, list[schedule.Event]] = {}

    def tell(self, queue: str) -> None:
        """Wake everybody in this process who waits for a queue of this name."""
        with self._lock:
            events = list(self._events.get(queue, ()))
        for event in events:
            event.set()

    def listen(self, queue: str) -> schedule.Event:
        """Return an event that `tell` sets."""
        event = schedule.event()
        with self._lock:
            self._events.setdefault(queue, []).append(event)
        return event

    def leave(self, queue: str, event: schedule.Event) -> None:
        """Set an event no more."""
        with self._lock:
            self._events[queue].remove(event)
            if not self._events[queue]:
                del self._events[queue]


BOARD: Final = Board()
"""The board of this process."""


class PolledAlerts:
    """Alerts of a store that tells nothing, such as files, which one process has at a time: whoever waits takes again."""

    def wait(self, subscriber: str, timeout_s: float) -> bool:
        """Wait for the polls' interval, and take its end for an alert."""
        del subscriber
        clock.sleep(min(timeout_s, POLL_S))
        return True

    def close(self) -> None:
        """Nothing was opened."""


class SqliteAlerts:
    """Alerts of an SQLite file: at once within the process, within ``LOOK_AGAIN_S`` of another process's commit."""

    def __init__(self, queue: str, path: Path) -> None:
        self._queue = queue
        self._event = BOARD.listen(queue)
        self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        self._version = self._look()

    def _look(self) -> int | None:
        """Return a number that changes with every commit of another connection; None if the file cannot be read now."""
        try:
            return int(self._connection.execute("pragma data_version").fetchone()[0])
        except sqlite3.Error:  # Retry: the take that follows meets what is wrong, and says so.
            return None

    def wait(self, subscriber: str, timeout_s: float) -> bool:
        """Wait for the event, or until the file has changed."""
        del subscriber
        until = clock.monotonic() + timeout_s
        while True:
            left = until - clock.monotonic()
            told = self._event.wait(max(0.0, min(left, LOOK_AGAIN_S)))
            version = self._look()
            if told or version != self._version:
                self._event.clear()
                self._version = version
                return True
            if left <= 0:
                return False

    def close(self) -> None:
        """Stop listening."""
        BOARD.leave(self._queue, self._event)
        self._connection.close()


class PostgresqlAlerts:
    """Alerts of a PostgreSQL database: LISTEN on a connection of its own, which is made again when it was lost."""

    def __init__(self, queue: str, url: str) -> None:
        self._queue = queue
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None
        with self._losing():
            self._listen()

    def _listen(self) -> psycopg.Connection[Any]:
        from relay.resources.addresses import connected  # noqa: PLC0415 - only who waits for PostgreSQL loads its driver
        from relay.resources.patience import await_on  # noqa: PLC0415

        if self._connection is None or self._connection.closed:
            self._connection, _ = connected(self._url)
            awaited = await_on(self._connection.fileno())
            try:
                with awaited.asking():
                    self._connection.execute(f"listen {CHANNEL}".encode())
            finally:
                awaited.close()
        return self._connection

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Drop a connection that was lost, or on which nobody may listen (a standby): the next wait makes another."""
        import psycopg  # noqa: PLC0415

        try:
            yield
        except (psycopg.Error, OSError):
            if self._connection is not None:
                with suppress(psycopg.Error):
                    self._connection.close()
            self._connection = None

    def wait(self, subscriber: str, timeout_s: float) -> bool:
        """Wait for a notification; without a connection only for the polls' interval, and then take it for one."""
        del subscriber
        until = clock.monotonic() + timeout_s
        with self._losing():
            before = self._connection
            connection = self._listen()
            if connection is not before:
                return True  # what came while nobody listened was not heard
            while (left := until - clock.monotonic()) > 0:
                for notification in connection.notifies(timeout=left, stop_after=1):
                    if notification.payload == self._queue:
                        return True
            return False
        clock.sleep(min(timeout_s, POLL_S))
        return True

    def close(self) -> None:
        """Stop listening."""
        if self._connection is not None:
            self._connection.close()


def open_alerts(queue: str, url: str, *, state: Path | None = None) -> Alerts:
    """Return the alerts of a queue's store by its address, as ``open_store`` takes it."""
    address = url.removeprefix("log+")
    if address.startswith("sqlite:///"):
        path = Path(address.removeprefix("sqlite:///"))
        return SqliteAlerts(queue, path if state is None else state / path)
    if address.startswith(("postgresql://", "postgres://")):
        return PostgresqlAlerts(queue, address)
    return PolledAlerts()

"""Which errors of a handler's statements are its database's doing: the message waits then, and no try of it is used up."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

import psycopg
import structlog
from psycopg.errors import Diagnostic

from relay.message.limits import AT_LIMIT, limit_met
from relay.resources.postgresql_states import TIME_IS_OVER, is_away, says_time_is_over
from relay.world import clock
from relay.world.seldom import Seldom

_HELD: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_SQLITE: Final = frozenset({
    *_HELD,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
})


def is_postgresqls(error: BaseException, *, closed: bool) -> bool:
    """Is the error the server's or the network's doing? ``closed``: the connection broke."""
    return isinstance(error, psycopg.Error) and is_away(error, closed=closed)


def time_is_over(error: BaseException | None) -> bool:
    """Has a server ended the handler's transaction for having taken too long? Asked of what the relay made of the driver's error, too."""
    while error is not None and not (isinstance(error, psycopg.Error) and says_time_is_over(error)):
        error = error.__cause__
    return error is not None


def notes_time_is_over(said: Diagnostic) -> bool:
    """Is what a server says unasked its word that it has ended the transaction for having taken too long?

    So comes to the driver what was said before it sent many statements at once: their error is that the connection is lost.
    """
    return said.severity_nonlocalized == "FATAL" and said.sqlstate in TIME_IS_OVER


def is_at_limit(error: BaseException) -> bool:
    """Has this process no file or thread left? That is no message's doing; memory may be, and what a file or socket would block for."""
    return not isinstance(error, MemoryError | BlockingIOError) and limit_met(error) is not None


def spoken_for(error: BaseException, rank: Callable[[BaseException], int]) -> BaseException:
    """Return the error that speaks for a task group's, the first of the lowest rank; any other error speaks for itself."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    return min((spoken_for(one, rank) for one in error.exceptions), key=rank)


class Waits:
    """Says, seldom, what messages wait for: they use up no try, so nothing else tells that a database has been away for hours."""

    def __init__(self) -> None:
        self._causes = Seldom()

    def count(self, error: BaseException, cause: str) -> None:
        """Count a message that waits, and say it when it is time."""
        self._causes.count(f"{cause}: {AT_LIMIT}" if is_at_limit(error) else cause)
        self.say(clock.monotonic())

    def say(self, now: float) -> None:
        """Say what was not said yet, once it is time; now is on the monotonic clock."""
        due = self._causes.due(now)
        if due:
            structlog.get_logger("relay.work").warning("messages wait", causes=due)


def is_sqlites(error: BaseException) -> bool:
    """Was the file busy, or could it not be written?"""
    return isinstance(error, sqlite3.OperationalError) and _code(error) in _SQLITE


def is_held_by_another(error: sqlite3.Error) -> bool:
    """Did another writer have the file?"""
    return _code(error) in _HELD


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF

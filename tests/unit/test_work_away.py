"""Which errors of a handler are its database's doing, so that its message waits and uses up no try."""

from __future__ import annotations

import errno
import sqlite3

import psycopg
import pytest

from relay.work.away import is_at_limit, is_postgresqls, is_sqlites, time_is_over


def of_sqlite(name: str, kind: type[sqlite3.Error] = sqlite3.OperationalError) -> sqlite3.Error:
    error = kind(name)
    error.sqlite_errorcode = getattr(sqlite3, name)
    return error


@pytest.mark.parametrize(
    "name",
    [
        "SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_LOCKED", "SQLITE_LOCKED_SHAREDCACHE", "SQLITE_FULL", "SQLITE_IOERR",
        "SQLITE_IOERR_WRITE", "SQLITE_READONLY", "SQLITE_READONLY_DBMOVED", "SQLITE_CANTOPEN",
    ],
)  # fmt: skip
def test_a_file_that_is_busy_or_cannot_be_written_is_no_messages_doing(name: str) -> None:
    assert is_sqlites(of_sqlite(name))


@pytest.mark.parametrize(
    "error",
    [
        of_sqlite("SQLITE_ERROR"),
        of_sqlite("SQLITE_CONSTRAINT_UNIQUE", sqlite3.IntegrityError),
        sqlite3.OperationalError("an application raises its own"),
        TimeoutError(),
    ],
)
def test_a_statement_that_is_wrong_is_its_handlers_doing(error: Exception) -> None:
    assert not is_sqlites(error)


def test_a_connection_that_broke_is_the_servers_doing_and_a_handlers_own_error_is_not() -> None:
    assert is_postgresqls(psycopg.OperationalError("the connection is lost"), closed=True)
    assert not is_postgresqls(psycopg.errors.UniqueViolation(), closed=False)
    assert not is_postgresqls(ValueError("beside a connection that broke"), closed=True)


def test_a_time_that_is_over_is_seen_through_what_was_made_of_it() -> None:
    over = psycopg.errors.IdleInTransactionSessionTimeout()
    made, other = RuntimeError("the relay's own"), RuntimeError("another")
    made.__cause__, other.__cause__ = over, ValueError("a handler's own")

    assert time_is_over(over)
    assert time_is_over(made)
    assert not time_is_over(other)
    assert not time_is_over(None)


def test_a_file_or_thread_that_is_not_to_be_had_is_no_messages_doing_and_memory_may_be() -> None:
    assert is_at_limit(OSError(errno.EMFILE, "too many open files"))
    assert not is_at_limit(MemoryError())
    assert not is_at_limit(BlockingIOError(errno.EAGAIN, "a handler's own socket"))
    assert not is_at_limit(ValueError("too many open files"))

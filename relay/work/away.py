"""Which errors of a handler's statements are its database's doing: the message waits then, and no try of it is used up."""

from __future__ import annotations

import sqlite3
from typing import Final

import psycopg

from relay.resources.postgresql_states import is_away

_SQLITE: Final = frozenset({
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
})


def is_postgresqls(error: BaseException, *, closed: bool) -> bool:
    """Is the error the server's or the network's doing? ``closed``: the connection broke."""
    return isinstance(error, psycopg.Error) and is_away(error, closed=closed)


def is_sqlites(error: BaseException) -> bool:
    """Was the file busy, or could it not be written?"""
    return isinstance(error, sqlite3.OperationalError) and (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _SQLITE

"""Addresses of databases whose secrets lie in files: who is not let in asks what these say now, and tries with that at once.

So a password may be changed on the server and in its file, in any order, under processes that go on for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import conninfo

CONNECT_TIMEOUT_S: Final = 5
TCP_TIMEOUT_MS: Final = 10_000

_read_again: Final[dict[str, Callable[[], str | None]]] = {}
_in_force: Final[dict[str, str]] = {}
"""Addresses by what they were when the configuration was read, which is how everybody goes on to call them."""


def follow(url: str, again: Callable[[], str | None]) -> None:
    """Let ``again`` say what this address is now, None if that cannot be told."""
    _read_again[url] = again


def address(url: str) -> dict[str, Any]:
    """Return what psycopg is to connect with, so that a server that falls silent is noticed in seconds; the address's own words hold.

    Raises psycopg.ProgrammingError, which tells nothing of the address.
    """
    wanted: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "tcp_user_timeout": TCP_TIMEOUT_MS,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "application_name": "relay",
        # A database that says nothing about characters (SQL_ASCII) would have psycopg return bytes for text.
        "client_encoding": "utf8",
    }
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # Without libpq's words, which quote the address, or the password alone.
        raise psycopg.ProgrammingError("the address cannot be read; percent-encode what is special in its password") from None
    return {**wanted, **given}


def connected(url: str, **more: Any) -> tuple[psycopg.Connection[Any], dict[str, Any]]:
    """Return a connection in autocommit, and with what it was made. Raises psycopg.Error."""
    in_force = _in_force.get(url, url)
    given = address(in_force)
    try:
        return psycopg.connect(autocommit=True, **more, **given), given
    except psycopg.OperationalError:
        # Whatever it says: servers refuse a password in their own language.
        newer = _read_again[url]() if url in _read_again else None
        if newer is None or newer == in_force:
            raise
    given = address(newer)
    connection = psycopg.connect(autocommit=True, **more, **given)
    _in_force[url] = newer
    return connection, given

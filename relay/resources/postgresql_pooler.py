"""Poolers that give each transaction whichever of the server's sessions is free: several clients share one then.

A route's statements, prepared by name, ran as those of another route that way, and its rows went into that one's table. Locks,
limits and settings of a session hold for whoever comes next, or not at all.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

import psycopg

from relay.message.errors import ConfigError

_ROUNDS: Final = 10
"""A busy pooler may give one client the same session several times in a row, and hardly so often while another holds one."""


def refuse_shared(where: str, connection: psycopg.Connection[Any], address: dict[str, Any]) -> None:
    """Raise ConfigError if a connection in autocommit, made at this address, has no session of its own; psycopg.Error if that cannot be told.

    A server tells each client its process. A pooler tells another number, as it does where it keeps a session for each client.
    Asked before anything is set, which would hold for whoever gets the session next.
    """
    process = _process(connection)
    if process == connection.info.backend_pid or not _is_shared(connection, process, address):
        return
    raise ConfigError(
        f"{where}: the address leads to a pooler that gives each transaction another session (as PgBouncer's pool_mode = transaction), "
        "which the relay cannot share with others; write the server's own address, or one with pool_mode = session"
    )


def _is_shared(connection: psycopg.Connection[Any], process: int, address: dict[str, Any]) -> bool:
    with closing(psycopg.connect(autocommit=True, **address)) as beside:
        for _ in range(_ROUNDS):
            # What became free last is given next, or else all in turn: then the second question is answered by another session.
            if _process(connection) != process or _process(connection) != process:
                return True
            beside.execute("begin", prepare=False)
            is_shared = _process(beside) == process or _process(connection) != process
            beside.execute("rollback", prepare=False)
            if is_shared:
                return True
    return False


def _process(connection: psycopg.Connection[Any]) -> int:
    # Never prepared: a session that is shared may know another statement by that name.
    row = connection.execute("select pg_backend_pid()", prepare=False).fetchone()
    assert row is not None
    return int(row[0])

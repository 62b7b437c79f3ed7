"""Cursors of psycopg that a block is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, Self

import psycopg
from psycopg.pq import PipelineStatus

from relay.resources.lease import Lease, not_lent

_UNFIT: Final = (psycopg.errors.FeatureNotSupported, psycopg.errors.InvalidSqlStatementName, psycopg.errors.InternalError_)
"""So the server refuses what was prepared for a table or a type that has changed since (the first, and the last), or is not any more."""


class LentCursor(psycopg.Cursor[Any]):
    """A cursor that runs nothing once its block is over; what it has read stays."""

    def __init__(self, lease: Lease, connection: psycopg.Connection[Any], **made: Any) -> None:
        super().__init__(connection, **made)
        self._lease = lease

    def execute(self, *given: Any, **how: Any) -> Self:
        """Run a statement."""
        self._lease.check()
        self._lease.is_suspect |= self._pgconn.pipeline_status != PipelineStatus.OFF
        try:
            return super().execute(*given, **how)
        except _UNFIT:
            self._lease.is_suspect = True
            raise

    def executemany(self, *given: Any, **how: Any) -> None:
        """Run a statement for each of many parameters."""
        self._lease.check()
        self._lease.is_suspect = True  # psycopg makes a pipeline of it
        super().executemany(*given, **how)

    def stream(self, *given: Any, **how: Any) -> Iterator[Any]:
        """Run a query and read its rows one after the other."""
        self._lease.check()
        return super().stream(*given, **how)

    def copy(self, *given: Any, **how: Any) -> AbstractContextManager[psycopg.Copy]:  # type: ignore[override]
        """Run a COPY."""
        self._lease.check()
        return super().copy(*given, **how)


def lend(connection: psycopg.Connection[Any]) -> Lease:
    """Have the connection make cursors for one block, and return the lease that ends them."""
    lease = Lease()
    connection.cursor_factory = partial(LentCursor, lease)  # type: ignore[assignment]
    return lease


def keep_transaction(connection: psycopg.Connection[Any]) -> None:
    """Have the connection refuse what would end its transaction; the session itself speaks with libpq."""
    for name in ("commit", "rollback", "transaction"):
        setattr(connection, name, not_lent)

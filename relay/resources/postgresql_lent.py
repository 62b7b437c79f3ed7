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


class LentServerCursor(psycopg.ServerCursor[Any]):
    """A cursor whose rows the server has, as long as its block is open: asked for behind it, they would fail the next block."""

    def __init__(self, lease: Lease, connection: psycopg.Connection[Any], **made: Any) -> None:
        super().__init__(connection, **made)
        self._lease = lease

    def execute(self, *given: Any, **how: Any) -> Self:
        """Run a query."""
        self._lease.check()
        return super().execute(*given, **how)

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        self._lease.check()
        return super().fetchone()

    def fetchmany(self, size: int = 0) -> list[Any]:
        """Return the next rows."""
        self._lease.check()
        return super().fetchmany(size)

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        self._lease.check()
        return super().fetchall()

    def __next__(self) -> Any:
        self._lease.check()
        return super().__next__()

    def scroll(self, value: int, mode: str = "relative") -> None:
        """Go to another row."""
        self._lease.check()
        super().scroll(value, mode)

    def close(self) -> None:
        """Close it; behind the block, where it is gone, without a word to the server."""
        if self._lease.is_over:
            psycopg.Cursor.close(self)
        else:
            super().close()


def lend(connection: psycopg.Connection[Any]) -> Lease:
    """Have the connection make cursors for one block, and return the lease that ends them."""
    lease = Lease()
    connection.cursor_factory = partial(LentCursor, lease)  # type: ignore[assignment]
    connection.server_cursor_factory = partial(LentServerCursor, lease)  # type: ignore[assignment]
    return lease


def keep_transaction(connection: psycopg.Connection[Any]) -> None:
    """Have the connection refuse what would end its transaction; the session itself speaks with libpq."""
    for name in ("commit", "rollback", "transaction"):
        setattr(connection, name, not_lent)

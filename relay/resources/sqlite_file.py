"""A connection to an SQLite file is for the process that opened it, and for the file that lay there then.

SQLite knows locks by process and file. A fork that went on with a connection, or only let go of it, would write into the
index of the parent's log and roll its transaction back; one that opens the file anew, while it holds what it inherited,
takes the parent's locks for its own, and loses its commits when the parent closes the file.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self
from weakref import WeakSet

from relay.message.errors import ConfigError, Unreachable
from relay.resources.lease import Lease, not_lent

_open: Final[WeakSet[FileConnection]] = WeakSet()
_inherited: Final[set[tuple[int, int]]] = set()
"""Files that the parent had open when this process was forked from it."""


class FileConnection(sqlite3.Connection):
    """A connection in autocommit to a file of a resource; for any thread, one at a time.

    SQLite does not notice that another file was put there (VACUUM INTO and mv, a restore): a decision written into one
    that has no name any more would be nobody's.
    """

    def __init__(self, *given: Any, name: str, path: Path, **settings: Any) -> None:
        self._name = name
        self._path = path
        self._process = os.getpid()
        # Before it is opened: a file that takes its place meanwhile is another one.
        self._opened = _found(name, path)
        if self._opened in _inherited:
            raise ConfigError(
                f"resources.{name}: the process that this one was forked from had {path} open; open it after the fork only "
                "(close every Capture before), or start processes by spawn"
            )
        super().__init__(*given, **settings)
        _open.add(self)

    @property
    def is_there(self) -> bool:
        """Does the path still lead to it? Raises Unreachable if it leads nowhere."""
        return _found(self._name, self._path) == self._opened

    @property
    def is_here(self) -> bool:
        """Is this the process that opened it, rather than a fork?"""
        return self._process == os.getpid()

    def check(self) -> None:
        """Raise Unreachable if the path leads to another file by now: who asked connects again."""
        if not self.is_there:
            raise Unreachable(f"resources.{self._name}: the database file was replaced by another one")

    def close(self) -> None:
        """Close it; in a fork it stays as it is."""
        if self.is_here:
            super().close()
            _open.discard(self)

    def keep_for_ever(self) -> None:
        """Have nothing let go of it: not even the end of the process may close it in a fork."""
        _inherited.add(self._opened)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


class LentConnection(FileConnection):
    """A connection that one block after the other has; the session's own statements have cursors of their own."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.lease = Lease()
        self._blobs: WeakSet[sqlite3.Blob] = WeakSet()

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor for the block that has the connection."""
        return super().cursor(factory or LentCursor)  # type: ignore[arg-type]

    def execute(self, query: str, params: Any = ()) -> sqlite3.Cursor:
        """Run a statement with such a cursor, which the driver's own method makes in a way of its own."""
        return self.cursor().execute(query, params)  # type: ignore[no-any-return]

    def executemany(self, query: str, params: Any) -> sqlite3.Cursor:
        """Run a statement for each of many parameters."""
        return self.cursor().executemany(query, params)  # type: ignore[no-any-return]

    def blobopen(self, *given: Any, **how: Any) -> sqlite3.Blob:
        """Open a value that is read and written in pieces, until the block is over."""
        self.lease.check()
        opened = super().blobopen(*given, **how)
        self._blobs.add(opened)
        return opened

    def end_lease(self) -> None:
        """End what the block was lent: while such a value is open to be written, SQLite refuses COMMIT, the next block's as well."""
        self.lease.is_over = True
        while self._blobs:
            with suppress(KeyError, sqlite3.Error):  # the last reference is gone; the connection is closed already
                self._blobs.pop().close()

    commit = rollback = executescript = __exit__ = not_lent


class LentCursor(sqlite3.Cursor):
    """A cursor that has read its rows, and runs nothing once its block is over.

    Read later, they would be those that the next block has made of them, and another thread would wait for the database.
    """

    def __init__(self, connection: LentConnection) -> None:
        super().__init__(connection)
        self._lease = connection.lease
        self._rows: Iterator[Any] = iter(())

    executescript = not_lent

    def executemany(self, query: str, params: Any) -> Self:
        """Run a statement for each of many parameters."""
        self._lease.check()
        return super().executemany(query, params)

    def execute(self, query: str, params: Any = ()) -> Self:
        """Run a statement and read its rows; what they are made into is asked when somebody looks at them."""
        self._lease.check()
        made, self.row_factory = self.row_factory, None
        try:
            super().execute(query, params)
            self._rows = iter(super().fetchall())
        finally:
            self.row_factory = made
        return self

    def __next__(self) -> Any:
        row = next(self._rows)
        return row if self.row_factory is None else self.row_factory(self, row)

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        return next(self, None)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """Return the next rows."""
        return list(islice(self, self.arraysize if size is None else size))

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        return list(self)


def _found(name: str, path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise Unreachable(f"resources.{name}: the database file cannot be used ({error.strerror})") from error
    return found.st_dev, found.st_ino


def _forked() -> None:
    for connection in list(_open):
        connection.keep_for_ever()


os.register_at_fork(after_in_child=_forked)

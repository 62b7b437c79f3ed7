"""The cursors that a handler is given: their connection is the next message's as soon as it has returned."""

from __future__ import annotations

import sqlite3
import weakref
from contextlib import suppress
from typing import Any


class Given:
    """Those of one call.

    What is kept would write in whichever message's transaction has the connection next, or by itself. Beside one that is not
    read to its end SQLite commits no write.
    """

    def __init__(self) -> None:
        self._cursors: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, cursor: Any) -> Any:
        """Note a cursor, and return it."""
        self._cursors.add(cursor)
        return cursor

    def close(self) -> None:
        """Close what is still kept: it runs nothing more, and has no rows."""
        for cursor in list(self._cursors):
            with suppress(sqlite3.ProgrammingError):  # the handler has closed its connection, and it with that
                cursor.close()

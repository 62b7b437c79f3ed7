"""A desk in an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from relay.queue.attempts import ForgettableOutcomes
from relay.resources.attempts import SqliteAttempts
from relay.resources.prepared import CLOSED
from relay.work.away import is_held_by_another, is_sqlites
from relay.work.desk import TAKEN, Bind, DatabaseAway, EffectsInDoubt, TransactionTaken
from relay.world import schedule


class SqliteDesk:
    """A connection to an SQLite file; ``gate`` lets the threads of this process write one after the other."""

    kind: Final = "sqlite"

    def __init__(self, name: str, connection: sqlite3.Connection, bind: Bind, gate: schedule.Lock) -> None:
        self._connection = connection
        self._gate = gate
        self._open = False
        self._closed = False
        self.stores = bind(connection)
        self.outcomes: ForgettableOutcomes = SqliteAttempts(name, connection)

    def begin(self) -> None:
        """Begin a transaction that may write."""
        self._gate.acquire()
        self._open = True
        self._have_plain_rows()
        try:
            self._connection.execute("begin immediate")
        except sqlite3.Error as error:
            self._leave()
            is_held = is_held_by_another(error)
            why = "is held by another writer" if is_held else f"cannot be used ({getattr(error, 'sqlite_errorname', type(error).__name__)})"
            raise DatabaseAway(f"the handler's database file {why}") from error

    def execute(self, query: Any, params: Any = None) -> Any:
        """Run one statement."""
        self._refuse_if_ended()
        return self._connection.execute(query, () if params is None else params)

    def executemany(self, query: Any, params: Sequence[Any]) -> Any:
        """Run one statement for each of many parameters."""
        self._refuse_if_ended()
        return self._connection.executemany(query, params)

    def _refuse_if_ended(self) -> None:
        try:
            is_open = self._connection.in_transaction
        except sqlite3.ProgrammingError:
            raise TransactionTaken(CLOSED) from None
        if not is_open:
            raise TransactionTaken(TAKEN)

    def is_away(self, error: BaseException) -> bool:
        """Tell whether the file was busy or could not be written."""
        return is_sqlites(error)

    def is_time_over(self, error: BaseException) -> bool:  # noqa: ARG002 - nobody ends one
        """SQLite knows no such limit."""
        return False

    def check(self) -> None:
        """Ask the connection; what follows is the relay's own."""
        self._refuse_if_ended()
        self._have_plain_rows()

    def _have_plain_rows(self) -> None:
        """Forget what the handler, or an earlier one, has had rows and texts made into."""
        self._connection.row_factory, self._connection.text_factory = None, str

    def commit(self) -> None:
        """Commit; a commit that fails while the transaction stays open did not happen."""
        self.check()
        try:
            self._connection.execute("commit")
        except sqlite3.OperationalError as error:
            if self._connection.in_transaction:
                raise DatabaseAway("the handler's database file could not be written") from error
            raise EffectsInDoubt("the handler's COMMIT failed while it was written") from error
        self._leave()

    def rollback(self) -> None:
        """Roll back."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
        except sqlite3.Error:
            self.close()
        self._leave()

    @property
    def usable(self) -> bool:
        """Whether no transaction is open on it, nor it closed."""
        return not (self._open or self._closed)

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        self._connection.close()

    def _leave(self) -> None:
        if self._open:
            self._open = False
            self._gate.release()

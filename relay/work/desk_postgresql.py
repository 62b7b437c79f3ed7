"""A desk in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg

from relay.queue.attempts import ForgettableOutcomes
from relay.resources import begun
from relay.resources.attempts import PostgresqlAttempts
from relay.resources.postgresql import is_unread, leaves_commit_open, own_cursor, was_closed
from relay.resources.postgresql_states import is_fit, refuses_writes, took_too_long
from relay.resources.prepared import CLOSED, UNREAD
from relay.work.away import is_postgresqls, notes_time_is_over, time_is_over
from relay.work.desk import (
    TAKEN,
    TIME_OVER,
    Bind,
    CommitTooLong,
    DatabaseAway,
    EffectsInDoubt,
    TimeOver,
    TransactionTaken,
)

COMMIT_TOO_LONG: Final = (
    "the handler's COMMIT was ended for having taken too long (transaction_timeout), or cancelled: what its deferred triggers do "
    "takes too long, or waits for something"
)
BROKEN: Final = (
    "a statement had failed and the handler went on, which PostgreSQL does not: let errors pass, or use savepoints"
)
# With what the handler may have said of `synchronous_commit` set right: what follows elsewhere relies on this commit.
_COMMIT: Final = f"""select set_config('synchronous_commit', 'on', true)
where {begun.proof("current_setting('synchronous_commit') in ('off', 'local')")}; commit""".encode()


def refuse_if_ended(connection: psycopg.Connection[Any]) -> None:
    """Raise TransactionTaken where no transaction is open any more: a handler's statement would take effect by itself."""
    if connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
        raise TransactionTaken(TAKEN)


class PostgresqlDesk:
    """A connection to PostgreSQL."""

    kind: Final = "postgresql"

    def __init__(self, name: str, connection: psycopg.Connection[Any], bind: Bind) -> None:
        self._connection = connection
        self.stores = bind(connection)
        self.outcomes: ForgettableOutcomes = PostgresqlAttempts(name, connection)
        self._time_is_over = False
        connection.add_notice_handler(self._hear)
        # A queue's states are written by what others have committed until then; an older snapshot leaves a message open for ever.
        self._begin = b"begin isolation level read committed" if self.stores else b"begin"
        try:
            begun.say_none(connection)
        except psycopg.Error as error:
            raise DatabaseAway("the handler's database does not answer") from error

    def begin(self) -> None:
        """Begin a transaction."""
        try:
            begun.begin(self._connection, self._begin)
        except psycopg.Error as error:
            raise DatabaseAway("the handler's database does not answer") from error

    def execute(self, query: Any, params: Any = None) -> Any:
        """Run one statement."""
        refuse_if_ended(self._connection)
        try:
            return self._connection.execute(query, params)
        except psycopg.Error as error:
            self._note(error)
            raise

    def executemany(self, query: Any, params: Sequence[Any]) -> Any:
        """Run one statement for each of many parameters."""
        refuse_if_ended(self._connection)
        cursor = self._connection.cursor()
        try:
            cursor.executemany(query, params)
        except psycopg.Error as error:
            self._note(error)
            raise
        return cursor

    def _hear(self, said: psycopg.errors.Diagnostic) -> None:
        self._time_is_over = self._time_is_over or notes_time_is_over(said)

    def _note(self, error: psycopg.Error) -> None:
        """Only the first statement behind the transaction's end is told why: to the next one the connection is just closed."""
        self._time_is_over = self._time_is_over or self.is_time_over(error)

    def is_away(self, error: BaseException) -> bool:
        """Tell whether the connection broke, or the server does not write now."""
        return not self._time_is_over and is_postgresqls(error, closed=self._connection.broken)

    def is_time_over(self, error: BaseException) -> bool:
        """Tell it of this connection, which is closed then: another one's word, of a store that waited, is none about the handler."""
        return self._connection.closed and (self._time_is_over or time_is_over(error))

    def check(self) -> None:
        """Look at what the last answer said of the transaction."""
        if self._time_is_over:
            raise TimeOver(TIME_OVER)
        if was_closed(self._connection):
            raise TransactionTaken(CLOSED)
        if is_unread(self._connection):
            raise TransactionTaken(UNREAD)
        refuse_if_ended(self._connection)
        if self._connection.info.transaction_status is psycopg.pq.TransactionStatus.INERROR:
            raise TransactionTaken(BROKEN)

    def commit(self) -> None:
        """Commit."""
        self.check()
        try:
            cursor = own_cursor(self._connection).execute(_COMMIT, prepare=False)
            while cursor.nextset():
                pass
            answer = cursor.statusmessage
        except psycopg.Error as error:
            if took_too_long(error):
                # In doubt, and a failure if it did not commit: tried again it takes as long.
                raise CommitTooLong(COMMIT_TOO_LONG) from error
            is_servers = isinstance(error, psycopg.OperationalError)
            if self._connection.closed or (is_servers and leaves_commit_open(error)):
                # In doubt.
                raise EffectsInDoubt("the answer to the handler's COMMIT was lost, or says nothing of it") from error
            if begun.is_another(self._connection, error):
                # Abort: COMMIT was not reached. What the handler has ended itself stands, or fell.
                raise TransactionTaken(TAKEN) from None
            if is_servers and not refuses_writes(error, closed=False):
                # Retry: surely not committed, and no doing of the message.
                raise DatabaseAway("the handler's database refused the commit") from error
            # Abort: what was written is refused.
            raise
        if answer != "COMMIT":
            raise DatabaseAway("a statement had failed, so the handler's transaction was rolled back")

    def rollback(self) -> None:
        """Roll back."""
        if is_unread(self._connection):
            # Nothing of it could be committed, and nobody would ever read the rest.
            self._connection.close()
            return
        try:
            # Not as a statement, of which psycopg learns the first time only: it forgets what it has prepared, which may not fit any more.
            psycopg.Connection.rollback(self._connection)
        except psycopg.Error:
            self._connection.close()

    @property
    def usable(self) -> bool:
        """Whether it is open and idle, and may write: a session keeps what its role or a handler said, and may be with a standby."""
        return is_fit(self._connection)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

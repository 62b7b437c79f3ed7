"""Connections to a handler's database: few, lent to one run at a time, each with one transaction that is begun when it is needed.

Nothing is begun before the handler's first statement, so a handler that only waits holds neither a lock nor a connection.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

import psycopg

from relay.message.errors import ConfigError, InDoubt, RelayError, Retriable, Stopped
from relay.queue.attempts import ForgettableOutcomes
from relay.queue.port import QueueStore
from relay.resources import begun
from relay.resources.attempts import PostgresqlAttempts, SqliteAttempts
from relay.resources.postgresql import is_unread, leaves_commit_open, own_cursor, was_closed
from relay.resources.postgresql_states import refuses_writes, took_too_long
from relay.resources.prepared import CLOSED, UNREAD
from relay.run import schedule
from relay.work.away import is_held_by_another, is_postgresqls, is_sqlites, notes_time_is_over, time_is_over
from relay.work.given import Given


class EffectsInDoubt(InDoubt):
    """COMMIT was sent to the handler's database and its answer was lost."""


class CommitTooLong(EffectsInDoubt):
    """COMMIT was cancelled, or ended for having taken too long: a failure of what was written, unless it had committed by then."""


class DatabaseAway(Retriable):
    """The handler's database refuses for a reason of its own (away, busy, a deadlock): nothing happened, try later."""


class CallOver(RelayError):
    """A statement came after its handler had returned, or in another process: what it would write belongs to no message."""


def check_call(process: int, *, is_over: bool) -> None:
    """Raise CallOver unless the handler still runs, and in this process: what a copy elsewhere is given would be lost."""
    if is_over:
        raise CallOver(OVER)
    if process != os.getpid():
        raise CallOver(ELSEWHERE)


class TransactionTaken(RelayError):
    """The handler ended the transaction that is not its own: its writes stand, or fell, without its message's DONE; or it is refused that."""


def refuse_if_ended(connection: psycopg.Connection[Any]) -> None:
    """Raise TransactionTaken where no transaction is open any more: a handler's statement would take effect by itself."""
    if connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
        raise TransactionTaken(TAKEN)


class TimeOver(RelayError):
    """The server ended the handler's transaction, which had paused, or lasted, for longer than a limit of time lets it."""


OVER: Final = "the handler has returned, and its message is decided: let what it starts end, or await it, before"
ELSEWHERE: Final = (
    "another process than the handler's has a message, or what it writes with: let that process return what it has made, and "
    "publish and write it in the handler"
)
TAKEN: Final = "the handler has ended the transaction itself: leave COMMIT and ROLLBACK to the relay"
NOT_TO_END: Final = (
    "the handler may not end the transaction: leave COMMIT and ROLLBACK to the relay, which commits once the handler has returned, "
    "and rolls back if it raises"
)

TIME_OVER: Final = (
    "the server has ended the handler's transaction, which paused or lasted for too long (idle_in_transaction_session_timeout, "
    "transaction_timeout): let the handler do what takes long before its first statement"
)
COMMIT_TOO_LONG: Final = (
    "the handler's COMMIT was ended for having taken too long (transaction_timeout), or cancelled: what its deferred triggers do "
    "takes too long, or waits for something"
)
BROKEN: Final = (
    "a statement had failed and the handler went on, which PostgreSQL does not: let errors pass, or use savepoints"
)


class Desk(Protocol):
    """One connection with what is bound to it. ``kind`` is ``postgresql`` or ``sqlite``; ``stores`` are the queues in this database, by name."""

    stores: Mapping[str, QueueStore]
    outcomes: ForgettableOutcomes

    @property
    def kind(self) -> str:
        """Which dialect it speaks."""

    def begin(self) -> None:
        """Begin a transaction; raises DatabaseAway."""

    def execute(self, query: Any, params: Any = None) -> Any:
        """Run one statement of the handler and return the driver's cursor; raises the driver's errors."""

    def executemany(self, query: Any, params: Sequence[Any]) -> Any:
        """Run one statement for each of many parameters."""

    def is_away(self, error: BaseException) -> bool:
        """Tell whether an error is the database's doing, and not the handler's."""

    def is_time_over(self, error: BaseException) -> bool:
        """Tell whether an error, also of the relay's own statements here, came of a transaction that took too long."""

    def check(self) -> None:
        """Raise TransactionTaken unless the transaction begun is still open: what follows would commit by itself.

        Raises TimeOver if the handler was told that the server had ended it, and went on.
        """

    def commit(self) -> None:
        """Commit; raises EffectsInDoubt or CommitTooLong, DatabaseAway (surely not committed) or TransactionTaken."""

    def rollback(self) -> None:
        """Roll back; never raises. A connection that does not answer is closed, which rolls back too."""

    @property
    def usable(self) -> bool:
        """May another transaction begin on it?"""

    def close(self) -> None:
        """Close the connection."""


Bind = Callable[[Any], Mapping[str, QueueStore]]
"""Makes the stores of the queues in a database, bound to a connection of it."""


# With what the handler may have said of `synchronous_commit` set right: what follows elsewhere relies on this commit.
_COMMIT: Final = f"""select set_config('synchronous_commit', 'on', true)
where {begun.proof("current_setting('synchronous_commit') in ('off', 'local')")}; commit""".encode()


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
        """Whether it is open and idle."""
        idle = psycopg.pq.TransactionStatus.IDLE
        return not self._connection.closed and self._connection.info.transaction_status is idle

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


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


class Desks:
    """Lends desks; at most ``limit`` connections are open, and who wants one more waits."""

    def __init__(self, make: Callable[[], Desk], limit: int) -> None:
        self._make = make
        self._free = schedule.fifo()
        for _ in range(limit):
            self._free.put(None)
        self.limit = limit

    def borrow(self) -> Desk:
        """Return a desk with a transaction begun; raises DatabaseAway or Unreachable."""
        desk: Desk | None = self._free.get()
        try:
            if desk is None or not desk.usable:
                if desk is not None:
                    desk.close()
                desk = self._made()
            desk.begin()
        except BaseException:
            self._free.put(None)
            if desk is not None:
                desk.close()
            raise
        return desk

    def _made(self) -> Desk:
        try:
            return self._make()
        except (ConfigError, Stopped, InDoubt) as wrong:
            # Wait: a person must mend it, or the queues there are opened once more; no message has done anything wrong.
            raise DatabaseAway(str(wrong)) from wrong

    def give_back(self, desk: Desk) -> None:
        """Take a desk back whose transaction has ended."""
        if not desk.usable:
            desk.close()
        self._free.put(desk)

    def close(self) -> None:
        """Close what is not lent now."""
        while True:
            try:
                desk: Desk | None = self._free.get_nowait()
            except schedule.Empty:
                return
            if desk is not None:
                desk.close()


class LeftToTheRelay:
    """Refuses what a driver's connection has: who commits by habit would have writes that stand without the message's DONE."""

    __slots__ = ()

    def commit(self) -> NoReturn:
        """Refused with TransactionTaken: what was written is committed together with the message's DONE."""
        raise TransactionTaken(NOT_TO_END)

    def rollback(self) -> NoReturn:
        """Refused with TransactionTaken: raise an error, and everything is rolled back; a part is by a savepoint."""
        raise TransactionTaken(NOT_TO_END)


class Database(LeftToTheRelay):
    """What a handler writes with: its first statement borrows a connection and begins; the relay ends the transaction."""

    __slots__ = ("_desks", "_given", "_is_over", "_process", "_turn", "desk")

    def __init__(self, desks: Desks) -> None:
        self._desks = desks
        self._process = os.getpid()
        self._turn = schedule.lock()
        self.desk: Desk | None = None
        self._is_over = False
        self._given = Given()

    def execute(self, query: Any, params: Any = None) -> Any:
        """Run one statement and return the driver's cursor; placeholders are the driver's."""
        with self._turn:
            return self._given.add(self._handlers().execute(query, params))

    def executemany(self, query: Any, params: Sequence[Any]) -> Any:
        """Run one statement for each of many parameters."""
        with self._turn:
            return self._given.add(self._handlers().executemany(query, params))

    @property
    def kind(self) -> str:
        """``postgresql`` or ``sqlite``: which placeholders and dialect the statements need."""
        with self._turn:
            return self._handlers().kind

    def end(self) -> None:
        """Let the statement that runs end, and none begin any more: the handler has returned.

        One of a thread that it left behind would borrow a desk for good, or, having waited for the driver's lock, run after
        the transaction and take effect by itself.
        """
        # Said first: who has waited for its turn finds it said, however many wait.
        self._is_over = True
        with self._turn:
            self._given.close()

    def is_time_over(self, error: BaseException) -> bool:
        """Tell whether an error came of a transaction here that took too long, and was ended for it."""
        return self.desk is not None and self.desk.is_time_over(error)

    def begun(self) -> Desk:
        """Return the desk, with a transaction begun."""
        if self.desk is None:
            self.desk = self._desks.borrow()
        return self.desk

    def finish(self) -> None:
        """Commit; raises what the desk's commit raises, and nothing is held any more then."""
        if self.desk is not None:
            try:
                self.desk.commit()
            except BaseException:
                self.give_up()
                raise
            self._done()

    def give_up(self) -> None:
        """Roll back."""
        if self.desk is not None:
            self.desk.rollback()
            self._done()

    def _handlers(self) -> Desk:
        check_call(self._process, is_over=self._is_over)
        return self.begun()

    def _done(self) -> None:
        assert self.desk is not None, "asked for above"
        desk, self.desk = self.desk, None
        self._desks.give_back(desk)

"""SQLite as a resource manager: one writer at a time holds the file, so a capture's lock is the decision's lock."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from relay.message.envelope import ResourceName
from relay.message.errors import CaptureFenced, ConfigError, Unreachable
from relay.message.identity import capture_id
from relay.resources import nonces, schema
from relay.resources.lease import Lease
from relay.resources.port import (
    AgedRow,
    AnswerLost,
    CommitRefused,
    DecisionRow,
    NotTheTransactionBegun,
    RowLocked,
    UnmarkedRow,
    identity_of,
)
from relay.resources.sqlite_file import FileConnection, LentConnection
from relay.resources.sqlite_writers import LOOK_S, Writers, insist
from relay.resources.turns import Turn

WRITER_TIMEOUT_S: Final = 15.0
"""How long a capture waits for the file's other writers: a few appends at their longest."""
_LOCK_LINE: Final = re.compile(r"POSIX\s+\S+\s+WRITE\s+(\d+)\s+[0-9a-f]+:[0-9a-f]+:(\d+)\s+(\d+)\s+(\d+)")
_WRITE_LOCK_BYTE: Final = 120
"""Where the WAL index (the ``-shm`` file) is locked by the one writer; part of SQLite's file format."""


_Connection = TypeVar("_Connection", bound=FileConnection)


class SqliteResource:
    """An SQLite file in WAL mode with ``synchronous=FULL`` under its configured name."""

    kind: Final = "sqlite"

    def __init__(self, name: str, path: str, lock_timeout_s: float) -> None:
        self.name = name
        self.path = Path(path)
        self._lock_timeout_s = lock_timeout_s
        self._writer = Writers()

    def connect(self, timeout_s: float = WRITER_TIMEOUT_S) -> FileConnection:
        """Return a connection in autocommit; Unreachable if the file cannot be opened."""
        return self._connect(FileConnection, timeout_s)

    def _connect(self, kind: type[_Connection], timeout_s: float) -> _Connection:
        address = f"{self.path.absolute().as_uri()}?mode=rw"
        with reaching(self.name):
            connection = kind(
                address,
                uri=True,
                timeout=timeout_s,
                isolation_level=None,
                check_same_thread=False,
                name=self.name,
                path=self.path,
            )
            # Of several files SQLite commits one after the other: the decision's could be durable, and another one's lost.
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
            connection.execute("pragma foreign_keys = on")
        return connection

    def identity(self) -> ResourceName:
        """Return name and uuid, read now."""
        return identity_of(self.name, self.decisions())

    def session(self) -> SqliteSession:
        """Open a connection for captures, and one that sees what others see."""
        connection, outside = self._connect(LentConnection, LOOK_S), self.connect()
        return SqliteSession(self.name, _uuid(outside, self.name), connection, outside, self._writer)

    def decisions(self) -> SqliteDecisions:
        """Open a connection for decisions."""
        return SqliteDecisions(self.name, self.connect(LOOK_S), self._writer, self._lock_timeout_s)

    def create_tables(self) -> None:
        """Create the file, if need be, and what is missing of the relay's tables."""
        with reaching(self.name):
            if not self.path.exists():
                sqlite3.connect(self.path).close()  # leaves an empty file
        connection = self.connect()
        with reaching(self.name):
            for statement in schema.statements("sqlite"):
                connection.execute(statement)
            connection.execute("begin immediate")  # or another migration might add the same column meanwhile
            for table, column, definition in schema.SQLITE_GROWN:
                if not connection.execute("select 1 from pragma_table_info(?) where name = ?", (table, column)).fetchone():
                    connection.execute(f"alter table {table} add column {column} {definition}")
            connection.execute("commit")
        connection.close()

    def renew_identity(self) -> str:
        """Give the database a new uuid and return it."""
        connection = self.connect()
        with reaching(self.name):
            connection.execute(schema.new_identity("sqlite"))
        uuid = _uuid(connection, self.name)
        connection.close()
        return uuid

    def frozen_writer(self) -> int | None:
        """Return the process that holds the file's write lock right now, on Linux.

        Read from the kernel's list: opening the lock file itself would, on closing, drop this process's own locks.
        """
        try:
            # Beside the file itself, where a link leads to it.
            inode = Path(f"{self.path.resolve()}-shm").stat().st_ino
            lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        for line in lines:
            found = _LOCK_LINE.search(line)
            if found and int(found[2]) == inode and int(found[3]) <= _WRITE_LOCK_BYTE <= int(found[4]):
                return int(found[1])
        return None


class SqliteSession:
    """One connection for captures; placeholders are ``?`` and ``:name``."""

    def __init__(
        self,
        name: str,
        uuid: str,
        connection: LentConnection,
        outside: FileConnection,
        writer: Turn,
    ) -> None:
        self.uuid = uuid
        self._name = name
        self._connection = connection
        self._outside = outside
        self._writer = writer
        self._turn: list[Turn] = []
        self._dead = False

    def begin(self) -> tuple[bytes, bytes]:
        """Take the file's write lock and insert the decision."""
        self._connection.row_factory, self._connection.text_factory = None, str  # what an earlier block set is not this one's
        (nonce,) = nonces.draw(1)
        capture = capture_id(nonce)
        try:
            if not self._writer.take(self._turn, WRITER_TIMEOUT_S):
                raise RowLocked(
                    f"resources.{self._name}: another capture of this process has held the file for "
                    f"{WRITER_TIMEOUT_S:g} s; make the blocks shorter"
                )
            self._connection.check()
            insist(self._lock, WRITER_TIMEOUT_S)
            with reaching(self._name):
                self._run("insert into relay_capture (capture, nonce, outcome) values (?, ?, 'committed')", (capture, nonce))
        except sqlite3.IntegrityError as error:
            self.rollback()
            raise CaptureFenced(
                f"capture {capture.hex()} was decided before it began; run the block again"
            ) from error
        except BaseException:
            self.rollback()
            raise
        self._connection.lease = Lease()
        return capture, nonce

    def _lock(self) -> None:
        try:
            with reaching(self._name):
                self._run("begin immediate")
        except RowLocked as locked:
            if _is_behind(locked.__cause__):
                # Retry: nothing was begun, and a new connection has no such cursor.
                raise Unreachable(
                    f"resources.{self._name}: a cursor that an earlier block left open still reads on this connection"
                ) from locked
            raise

    def execute(self, query: Any, params: Any = None) -> Any:
        """Run one statement of the application."""
        return self._connection.execute(query, params if params is not None else ())

    def savepoint(self, number: int) -> None:
        """Set the savepoint ``number``."""
        self._run(f"savepoint relay_{number:d}")

    def rollback_to(self, number: int) -> None:
        """Undo what came after the savepoint ``number``, and forget it."""
        self._run(f"rollback to savepoint relay_{number:d}")
        self._run(f"release savepoint relay_{number:d}")

    def release(self, number: int) -> None:
        """Forget the savepoint ``number``, keep what came after it."""
        self._run(f"release savepoint relay_{number:d}")

    def is_intact(self, capture: bytes) -> bool:
        """Is a transaction open, and does nobody else see its decision yet?"""
        if not self._connection.in_transaction:
            return False
        seen = self._outside.execute("select 1 from relay_capture where capture = ?", (capture,)).fetchone()
        here = self._run("select 1 from relay_capture where capture = ?", (capture,)).fetchone()
        return seen is None and here is not None

    @property
    def in_transaction(self) -> bool:
        """Not after COMMIT or ROLLBACK, nor after a row or an error that rolls back the whole transaction."""
        return self._connection.in_transaction

    @property
    def failed(self) -> bool:
        """Never: a statement that fails leaves the transaction as it was, or has ended it."""
        return False

    def decide(self, capture: bytes, partitions: bytes) -> None:
        """Write the partitions into the row and COMMIT, synced to the disk."""
        self._connection.end_lease()
        if not self.is_intact(capture):
            self.rollback()
            raise NotTheTransactionBegun(
                f"resources.{self._name}: the block's transaction is not the one begun"
            )
        try:
            self._run("update relay_capture set partitions = ? where capture = ?", (partitions.decode(), capture))
        except sqlite3.Error as error:
            # Abort: COMMIT was not run.
            self.rollback()
            raise CommitRefused(f"resources.{self._name}: the decision was refused: {error}") from error
        try:
            self._run("commit")
        except sqlite3.IntegrityError as error:
            # Abort: a deferred constraint fails before anything is written.
            self.rollback()
            raise CommitRefused(f"resources.{self._name}: COMMIT was refused: {error}") from error
        except sqlite3.Error as error:
            if _is_busy(error):
                # Abort: a refused COMMIT leaves the transaction open. The statement that is under way would refuse the
                # next COMMIT too, so the connection is over.
                self.close()
                raise CommitRefused(
                    f"resources.{self._name}: COMMIT was refused: {error}; fetch all rows of a statement with "
                    "RETURNING inside the block, or close its cursor"
                ) from error
            # In doubt: the disk failed somewhere between the first write and the last sync.
            self.close()
            raise AnswerLost(f"resources.{self._name}: COMMIT failed in the middle: {error}") from error
        self._writer.give(self._turn)

    def is_undone(self, capture: bytes) -> bool:
        """After a rollback: is the decision surely not committed, by a statement of the block's own neither?"""
        if not self.usable:
            return False
        try:
            found = self._outside.execute("select 1 from relay_capture where capture = ?", (capture,)).fetchone()
        except sqlite3.Error:
            # In doubt: the row is read on another connection.
            return False
        return found is None

    def rollback(self) -> None:
        """Roll back; a connection that fails is closed, which rolls back too."""
        try:
            self._connection.end_lease()
            if not self._dead and self._connection.in_transaction:
                self._run("rollback")
        except sqlite3.Error:
            # Abort: COMMIT was not run, so closing can only roll back.
            self.close()
        finally:
            self._writer.give(self._turn)

    @property
    def usable(self) -> bool:
        """May another capture begin on it?"""
        return not self._dead and not self._turn and not self._connection.in_transaction

    def close(self) -> None:
        """Close both connections; not in a fork, which would roll its parent's block back."""
        self._dead = self._connection.lease.is_over = True
        if not self._connection.is_here:
            return
        try:
            # A cursor that somebody keeps would keep the connection, and with it the file's lock, alive after closing.
            if self._connection.in_transaction:
                self._run("rollback")
        except sqlite3.Error:
            pass  # closed already, or the file is gone: nothing that is left can commit
        self._connection.close()
        self._outside.close()
        self._writer.give(self._turn)

    def _run(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run a statement of the session's own, with a cursor that knows no lease and no row factory of a block's."""
        own = sqlite3.Cursor(self._connection)
        own.row_factory = None
        return own.execute(statement, values)

    def __del__(self) -> None:
        # Of a block that was interrupted on its way in or out, and dropped.
        with suppress(AttributeError):
            self.close()


class SqliteDecisions:
    """The decision rows, on a connection of its own in autocommit."""

    def __init__(
        self, name: str, connection: FileConnection, writer: Turn, lock_timeout_s: float
    ) -> None:
        self._name = name
        self._connection = connection
        self._writer = writer
        self._lock_timeout_s = lock_timeout_s

    def uuid(self) -> str:
        """Return the database's own uuid, read now."""
        self._connection.check()
        return insist(lambda: _uuid(self._connection, self._name), self._lock_timeout_s)

    def abort_if_undecided(self, capture: bytes) -> None:
        """Insert (capture, aborted) unless there is a row."""
        self._connection.check()
        self._run("insert into relay_capture (capture, outcome) values (?, 'aborted') on conflict do nothing", capture)

    def read(self, captures: Sequence[bytes]) -> dict[bytes, DecisionRow]:
        """Return the rows that exist."""
        found = {}
        self._connection.check()
        for capture in captures:
            rows = self._run(
                "select outcome, nonce, partitions is not null from relay_capture where capture = ?", capture
            )
            for outcome, nonce, is_proved in rows:
                found[capture] = DecisionRow(outcome == "committed", nonce, bool(is_proved))
        return found

    def unmarked(self, older_than_s: float, limit: int) -> list[UnmarkedRow]:
        """Return committed captures of that age, in whole seconds, that are not marked."""
        rows = self._run(
            "select capture, nonce, partitions from relay_capture"
            " where not marked and outcome = 'committed' and created_at <= unixepoch() - ? limit ?",
            int(older_than_s),
            limit,
        )
        return [UnmarkedRow(row[0], row[1], row[2].encode() if row[2] is not None else None) for row in rows]

    def mark(self, captures: Sequence[bytes]) -> None:
        """Note that the markers of these captures are acknowledged."""
        self._each("update relay_capture set marked = 1 where capture = ?", captures)

    def aged(self, older_than_s: float, limit: int, without: Sequence[str] = ()) -> list[AgedRow]:
        """Return rows older than that which are aborted, or committed and marked, and name none of ``without``."""
        rows = self._run(
            "select capture, partitions, unixepoch() - created_at from relay_capture"
            " where created_at < unixepoch() - ? and (outcome = 'aborted' or (marked and partitions is not null))"
            " and not exists (select 1 from json_each(?) where instr(partitions, value) > 0) limit ?",
            older_than_s,
            json.dumps(schema.quoted_topics(without)),
            limit,
        )
        return [
            AgedRow(row[0], row[1].encode() if row[1] is not None else None, float(row[2])) for row in rows
        ]

    def trim(self, captures: Sequence[bytes]) -> None:
        """Delete rows whose time is over."""
        self._each("delete from relay_capture where capture = ?", captures)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _each(self, statement: str, captures: Sequence[bytes]) -> None:
        """Run a statement for each, in the queue of this process's captures: polling would meet a busy file's gaps too seldom."""
        turn: list[Turn] = []
        try:
            if not self._writer.take(turn, self._lock_timeout_s):
                raise RowLocked(f"resources.{self._name}: captures of this process hold the file; ask again later")
            insist(lambda: self._write(statement, captures), self._lock_timeout_s)
        finally:
            self._writer.give(turn)

    def _run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        def ask() -> list[tuple[Any, ...]]:
            with reaching(self._name):
                return self._connection.execute(statement, values).fetchall()

        return insist(ask, self._lock_timeout_s)

    def _write(self, statement: str, captures: Sequence[bytes]) -> None:
        with reaching(self._name):
            self._connection.execute("begin immediate")
            try:
                self._connection.executemany(statement, [(capture,) for capture in captures])
                self._connection.execute("commit")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")


@contextmanager
def reaching(name: str) -> Iterator[None]:
    """Turn a held file into RowLocked, a missing table into ConfigError, anything operational into Unreachable."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise RowLocked(f"resources.{name}: another writer holds the file; ask again later") from error
        if "no such table" in str(error) or "no such column" in str(error):
            raise ConfigError(
                f"resources.{name}: the relay's tables are missing or old; run `relay migrate`"
            ) from error
        remedy = ""
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CANTOPEN:
            remedy = "; create its folder, or correct the path, or let this process open more files (`ulimit -n`)"
        raise Unreachable(f"resources.{name}: the database file cannot be used ({error}){remedy}") from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError):
            raise
        raise Unreachable(f"resources.{name}: the database file cannot be used ({error})") from error


def _is_busy(error: sqlite3.Error) -> bool:
    """Was the statement refused because another one, of this connection or another, is under way?"""
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def _is_behind(error: BaseException | None) -> bool:
    """Was the write lock refused because a statement that is not over reads what is no longer the newest state?"""
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT


def _uuid(connection: sqlite3.Connection, name: str) -> str:
    with reaching(name):
        row = connection.execute("select uuid from relay_resource").fetchone()
    if row is None:
        raise ConfigError(f"resources.{name}: the database has no identity; run `relay migrate`")
    return str(row[0])

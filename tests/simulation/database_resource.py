"""The capture side's port on a simulated database: decision rows under row locks, as PostgreSQL keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from relay.message.envelope import ResourceName
from relay.message.errors import CaptureFenced, ConfigError, Unreachable
from relay.message.identity import capture_id
from relay.resources import nonces
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
from relay.resources.schema import quoted_topics
from tests.simulation.database_connection import Connection
from tests.simulation.databases import Backend, ConnectionLost, Database, Row, StatementRefused
from tests.simulation.scratch_sql import run_sql

IDLE_LIMIT_S: Final = 30.0
CAPTURES: Final = "relay_capture"


class SimulatedResource:
    """A simulated database under its configured name."""

    kind: Final = "simulated"

    def __init__(
        self,
        name: str,
        database: Database,
        lock_timeout_s: float = 1.0,
    ) -> None:
        self.name = name
        self.database = database
        self._lock_timeout_s = lock_timeout_s

    def identity(self) -> ResourceName:
        """Return name and uuid, read now."""
        return identity_of(self.name, self.decisions())

    def session(self) -> SimulatedSession:
        """Open a connection for captures."""
        connection = self._connect("capture", float("inf"))
        return SimulatedSession(self.name, _uuid(connection, self.name), connection)

    def decisions(self) -> SimulatedDecisions:
        """Open a connection for decisions."""
        return SimulatedDecisions(self.name, self._connect("decisions", self._lock_timeout_s))

    def create_tables(self) -> None:
        """Create what is missing of the relay's tables."""
        self.database.create_relay_tables(self._new_uuid())

    def renew_identity(self) -> str:
        """Give the database a new uuid and return it."""
        uuid = self._new_uuid()
        self.database.tables["relay_resource"].rows[True,] = {"uuid": uuid, "single": True}
        return uuid

    def frozen_writer(self) -> int | None:
        """Return None: writers block each other by row."""
        return None

    def _new_uuid(self) -> str:
        return f"{self.database.world.rng.getrandbits(128):032x}"

    def _connect(self, what: str, lock_timeout_s: float) -> Connection:
        try:
            return Connection(
                self.database,
                what,
                lock_timeout_s=lock_timeout_s,
                idle_limit_s=IDLE_LIMIT_S,
            )
        except ConnectionLost:
            raise Unreachable(f"resources.{self.name}: the database does not answer") from None


class SimulatedSession:
    """One connection for captures; a statement is SQL text, or a function of the server's side (much faster)."""

    def __init__(self, name: str, uuid: str, connection: Connection) -> None:
        self.uuid = uuid
        self._name = name
        self._connection = connection
        self._begun = -1

    def begin(self) -> tuple[bytes, bytes]:
        """Begin, with the decision as the first statement."""
        (nonce,) = nonces.draw(1)
        capture = capture_id(nonce)

        def work(backend: Backend) -> int:
            backend.begin()
            backend.insert(CAPTURES, _row(backend, capture, nonce, "committed"))
            return backend.serial

        try:
            self._begun = self._connection.call(work, what="begin")
            self._connection.in_transaction = True
        except ConnectionLost:
            raise Unreachable(f"resources.{self._name}: the connection was lost") from None
        except StatementRefused as refused:
            self._connection.in_transaction = True
            self.rollback()
            if refused.code == "unique_violation":
                raise CaptureFenced(f"capture {capture.hex()} was decided before it began") from None
            raise Unreachable(f"resources.{self._name}: a capture cannot begin: {refused}") from None
        return capture, nonce

    def execute(self, query: Any, params: Any = None) -> Any:
        """Run one statement of the application."""
        if callable(query):
            return self._connection.call(query)

        def work(backend: Backend) -> tuple[Any, bool]:
            return run_sql(backend, query, params), backend.in_transaction

        found, self._connection.in_transaction = self._connection.call(work, what=query.split()[0])
        return found

    def savepoint(self, number: int) -> None:
        """Set the savepoint ``number``."""
        self._connection.call(lambda backend: backend.savepoint(number), what="savepoint")

    def rollback_to(self, number: int) -> None:
        """Undo what came after the savepoint ``number``, and forget it."""
        self._connection.call(lambda backend: backend.rollback_to(number), what="rollback to")

    def release(self, number: int) -> None:
        """Forget the savepoint ``number``."""
        self._connection.call(lambda backend: backend.release(number), what="release")

    def is_intact(self, capture: bytes) -> bool:
        """Does the client side know of an open transaction?"""
        return self._connection.in_transaction and not self._connection.broken

    @property
    def in_transaction(self) -> bool:
        """Is it not surely outside of one?"""
        return self._connection.in_transaction or self._connection.broken

    @property
    def failed(self) -> bool:
        """Did the connection break?"""
        return self._connection.broken

    def decide(self, capture: bytes, partitions: bytes) -> None:
        """Prove the transaction and COMMIT, in one round trip."""
        begun = self._begun

        def work(backend: Backend) -> bool:
            if not backend.in_transaction or backend.serial != begun:
                return False
            row = backend.get(CAPTURES, (capture,))
            assert row is not None
            backend.put(CAPTURES, (capture,), {**row, "partitions": partitions})
            backend.commit()
            return True

        try:
            decided = self._connection.call(work, commits=True, what="commit")
        except ConnectionLost:
            raise AnswerLost(f"resources.{self._name}: the answer to COMMIT was lost") from None
        except StatementRefused as refused:
            self.rollback()
            raise CommitRefused(f"resources.{self._name}: COMMIT was refused: {refused}") from refused
        if not decided:
            self.rollback()
            raise NotTheTransactionBegun(f"resources.{self._name}: the block's transaction is not the one begun")
        self._connection.in_transaction = False

    def is_undone(self, capture: bytes) -> bool:
        """After a rollback: is the decision surely not committed?"""
        if not self.usable:
            return False
        try:
            return self._connection.call(lambda backend: backend.get(CAPTURES, (capture,)), what="select") is None
        except ConnectionLost:
            return False

    def rollback(self) -> None:
        """Roll back; a connection that does not answer is closed."""
        if self._connection.broken or not self._connection.in_transaction:
            return
        try:
            self._connection.call(lambda backend: backend.rollback(), what="rollback")
            self._connection.in_transaction = False
        except ConnectionLost:
            pass  # broken: the server rolls back

    @property
    def usable(self) -> bool:
        """May another capture begin on it?"""
        return not self._connection.broken and not self._connection.in_transaction

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class SimulatedDecisions:
    """The decision rows, each call a short transaction of its own."""

    def __init__(self, name: str, connection: Connection) -> None:
        self._name = name
        self._connection = connection

    def uuid(self) -> str:
        """Return the database's own uuid, read now."""
        return _uuid(self._connection, self._name)

    def abort_if_undecided(self, capture: bytes) -> None:
        """Insert (capture, aborted) unless there is a row."""

        def work(backend: Backend) -> bool:
            return backend.insert(CAPTURES, _row(backend, capture, None, "aborted"), or_nothing=True)

        self._run("resolve", work)

    def read(self, captures: Sequence[bytes]) -> dict[bytes, DecisionRow]:
        """Return the rows that exist and are committed."""
        rows = self._run("read", lambda backend: [backend.get(CAPTURES, (capture,)) for capture in captures])
        return {
            row["capture"]: DecisionRow(row["outcome"] == "committed", row["nonce"], row["partitions"] is not None)
            for row in rows
            if row
        }

    def unmarked(self, older_than_s: float, limit: int) -> list[UnmarkedRow]:
        """Return committed captures of that age that are not marked."""
        latest = self._connection.database.world.now - older_than_s
        rows = self._run(
            "unmarked",
            lambda backend: backend.scan(
                CAPTURES,
                lambda row: row["outcome"] == "committed" and not row["marked"] and row["created_at"] <= latest,
            ),
        )
        return [UnmarkedRow(row["capture"], row["nonce"], row["partitions"]) for row in rows[:limit]]

    def mark(self, captures: Sequence[bytes]) -> None:
        """Note that the markers of these captures are acknowledged."""

        def work(backend: Backend) -> None:
            for capture in captures:
                backend.lock(CAPTURES, (capture,))
                row = backend.get(CAPTURES, (capture,))
                if row is not None:
                    backend.put(CAPTURES, (capture,), {**row, "marked": True})

        self._run("mark", work)

    def aged(self, older_than_s: float, limit: int, without: Sequence[str] = ()) -> list[AgedRow]:
        """Return rows older than that which are aborted, or committed and marked, and name none of ``without``."""
        now = self._connection.database.world.now
        foreign = [name.encode() for name in quoted_topics(without)]
        rows = self._run(
            "aged",
            lambda backend: backend.scan(
                CAPTURES,
                lambda row: now - row["created_at"] > older_than_s
                and (row["outcome"] == "aborted" or (row["marked"] and row["partitions"] is not None)),
            ),
        )
        own = [row for row in rows if not any(name in (row["partitions"] or b"") for name in foreign)]
        return [AgedRow(row["capture"], row["partitions"], now - row["created_at"]) for row in own[:limit]]

    def trim(self, captures: Sequence[bytes]) -> None:
        """Delete rows whose time is over."""

        def work(backend: Backend) -> None:
            for capture in captures:
                backend.put(CAPTURES, (capture,), None)

        self._run("trim", work)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _run(self, what: str, work: Callable[[Backend], Any]) -> Any:
        with _reaching(self._name):
            return self._connection.call(lambda backend: backend.autocommit(work), what=what)


@contextmanager
def _reaching(name: str) -> Iterator[None]:
    try:
        yield
    except ConnectionLost:
        raise Unreachable(f"resources.{name}: the database does not answer") from None
    except StatementRefused as refused:
        if refused.code == "undefined_table":
            raise ConfigError(f"resources.{name}: the relay's tables are missing; run `relay migrate`") from None
        raise RowLocked(f"resources.{name}: {refused}; ask again later") from None


def _row(backend: Backend, capture: bytes, nonce: bytes | None, outcome: str) -> Row:
    return {
        "capture": capture, "nonce": nonce, "outcome": outcome, "partitions": None, "marked": False,
        "created_at": backend.database.world.now,
    }  # fmt: skip


def _uuid(connection: Connection, name: str) -> str:
    with _reaching(name):
        rows = connection.call(lambda backend: backend.scan("relay_resource"), what="uuid")
    if not rows:
        raise ConfigError(f"resources.{name}: the database has no identity; run `relay migrate`")
    return str(rows[0]["uuid"])

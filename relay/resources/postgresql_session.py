"""Captures on a connection to PostgreSQL: COMMIT cannot happen unless it proves which transaction it ends.

The statements of a session's own go to libpq directly, since each capture pays for them: prepared, and pipelined into
one round trip to begin and one to decide.
"""

from __future__ import annotations

import select
from typing import Any, Final, NamedTuple, NoReturn

import psycopg
from psycopg import sql
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from relay.message.errors import CaptureFenced, Unreachable
from relay.resources.port import AnswerLost, CommitRefused, NotTheTransactionBegun
from relay.run import clock

ANSWER_TIMEOUT_S: Final = 10.0
"""How long a session waits for the answer to a statement of its own; then its connection is given up."""
IDLE_LIMIT_S: Final = 30
"""The server ends a capture whose publisher says nothing for this long (design section 4)."""

_UNIQUE_VIOLATION: Final = b"23505"
_DIVISION_BY_ZERO: Final = b"22012"
_NO_SUCH_PREPARED: Final = b"26000"
_NO_RIGHT: Final = b"42501"
_REMEDIES: Final = {
    _NO_RIGHT: "; if the block sets a role, let it set its own back before it ends (`reset role`), or grant that role the relay's tables",
    _NO_SUCH_PREPARED: "; the block had the server forget prepared statements: let it change tables by tx.execute, one statement at a time",
}

_SUCCEEDED: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_BYTEA: Final = 17
_TEXT: Final = 25
_BINARY: Final = 1
_TAKES_PREPARED_AWAY: Final = ("DROP", "ALTER", "ROLLBACK", "DEALLOCATE", "DISCARD")
"""After these, psycopg has the server forget all that is prepared on the connection, once it has prepared any itself."""


class _Statement(NamedTuple):
    """``{table}`` comes with its schema, since a block may set a search path of its own."""

    name: bytes
    text: bytes
    types: tuple[int, ...] = ()

    def on(self, table: bytes) -> _Statement:
        """Return it for this table."""
        return self._replace(text=self.text.replace(b"{table}", table))


_BEGIN: Final = _Statement(b"relay_begin", b"begin")
_ENTER: Final = _Statement(
    b"relay_enter",
    b"insert into {table} (capture, nonce, outcome) values ($1, $2, 'committed')",
    (_BYTEA, _BYTEA),
)
# Another transaction than the one begun finds no row of its own: the division fails, COMMIT is not reached.
# What a statement of the application said about `synchronous_commit` is over then: this comes after all of them.
_DECIDE: Final = _Statement(
    b"relay_decide",
    b"""with decided as (
    update {table} set partitions = $2
    where capture = $1 and outcome = 'committed' and xmin = pg_current_xact_id()::xid
    returning 1
) select 1 / count(*),
    case when current_setting('synchronous_commit') in ('off', 'local') then set_config('synchronous_commit', 'on', true) end
from decided""",
    (_BYTEA, _TEXT),
)
_COMMIT: Final = _Statement(b"relay_commit", b"commit")
_COMMITTED: Final = _Statement(
    b"", b"select 1 / count(*) from {table} where capture = $1 and outcome = 'committed'", (_BYTEA,)
)


class _ConnectionLost(Exception):
    """The connection failed while a statement was under way."""


class PostgresqlSession:
    """One connection for captures, in autocommit; ``table`` is that of the decisions. Raises psycopg.Error."""

    def __init__(
        self, name: str, uuid: str, connection: psycopg.Connection[tuple[Any, ...]], table: sql.Identifier
    ) -> None:
        self.uuid = uuid
        self._name = name
        self._connection = connection
        self._pgconn = connection.pgconn
        self._readable = select.poll()
        self._readable.register(self._pgconn.socket, select.POLLIN)
        self._movable = select.poll()
        self._movable.register(self._pgconn.socket, select.POLLIN | select.POLLOUT)
        self._dead = False
        self._spoke_at = 0.0
        named = table.as_bytes(connection)
        self._enter, self._proof, self._committed = (one.on(named) for one in (_ENTER, _DECIDE, _COMMITTED))
        self._is_prepared = False
        self._prepare(_BEGIN, self._enter, self._proof, _COMMIT)

    def begin(self, capture: bytes, nonce: bytes) -> None:
        """Begin, with the decision as the first statement, in one round trip."""
        try:
            _, failure = self._pipelined((_BEGIN, []), (self._enter, [capture, nonce]))
        except _ConnectionLost as error:
            # Retry: nothing was decided, and the server rolls back what it may have begun.
            raise Unreachable(
                f"resources.{self._name}: the connection was lost; the database may be away"
            ) from error
        if failure is None:
            self._spoke_at = clock.monotonic()
            return
        state = failure.error_field(DiagnosticField.SQLSTATE)
        self.rollback()
        if state == _UNIQUE_VIOLATION:
            raise CaptureFenced(f"capture {capture.hex()} was decided before it began; run the block again")
        self._dead = self._dead or state == _NO_SUCH_PREPARED
        raise Unreachable(f"resources.{self._name}: a capture cannot begin: {_sentence(failure)}")

    def execute(self, query: Any, params: Any = None) -> Any:
        """Run one statement of the application; placeholders are psycopg's ``%s`` and ``%(name)s``."""
        try:
            cursor = self._connection.execute(query, params)
        finally:
            self._spoke_at = clock.monotonic()
        if self._is_prepared and (cursor.statusmessage or "").startswith(_TAKES_PREPARED_AWAY):
            self._is_prepared = False
        return cursor

    def savepoint(self, number: int) -> None:
        """Set the savepoint ``number``."""
        self._savepoint(b"savepoint relay_%d", number)

    def rollback_to(self, number: int) -> None:
        """Undo what came after the savepoint ``number``, and forget it."""
        self._savepoint(b"rollback to savepoint relay_%d", number)
        self._savepoint(b"release savepoint relay_%d", number)

    def release(self, number: int) -> None:
        """Forget the savepoint ``number``, keep what came after it."""
        self._savepoint(b"release savepoint relay_%d", number)

    def is_intact(self, capture: bytes) -> bool:  # noqa: ARG002 - another medium needs it
        """Does the client side know of an open transaction? The row's xmin says the rest on deciding."""
        return self._pgconn.transaction_status == TransactionStatus.INTRANS

    @property
    def in_transaction(self) -> bool:
        """Anything but surely outside of one: a broken connection says so itself."""
        return self._pgconn.transaction_status != TransactionStatus.IDLE

    @property
    def failed(self) -> bool:
        """Is the transaction aborted, busy with a statement that never ended, or its connection gone?"""
        return self._pgconn.transaction_status not in (TransactionStatus.INTRANS, TransactionStatus.IDLE)

    def decide(self, capture: bytes, partitions: bytes) -> None:
        """Prove the transaction and COMMIT it durably, in one round trip.

        `synchronous_commit` is set last, so that no statement of the application weakens the decision.
        """
        silent_s = clock.monotonic() - self._spoke_at
        try:
            proven, failure = self._pipelined((self._proof, [capture, partitions]), (_COMMIT, []))
        except _ConnectionLost as error:
            # In doubt: the server may have committed before the connection went.
            # The server's own word is gone with the connection.
            why = f"; the block was silent for {silent_s:.0f} s, and the server ends one after {IDLE_LIMIT_S} s: do before it what takes long"
            raise AnswerLost(
                f"resources.{self._name}: the answer to COMMIT was lost{why if silent_s >= IDLE_LIMIT_S else ''}"
            ) from error
        if failure is None:
            return
        state = failure.error_field(DiagnosticField.SQLSTATE)
        severity = failure.error_field(DiagnosticField.SEVERITY_NONLOCALIZED)
        if severity in (b"FATAL", b"PANIC") or state is None:
            # In doubt: the server went away, which it can also do after the commit record.
            self._dead = True
            raise AnswerLost(f"resources.{self._name}: the database ended the connection during COMMIT")
        self._is_prepared = self._is_prepared and state != _NO_SUCH_PREPARED
        self.rollback()
        if not proven and (state == _DIVISION_BY_ZERO or self._may_have_committed(capture)):
            raise NotTheTransactionBegun(
                f"resources.{self._name}: the block's transaction is not the one begun"
            )
        # Abort: an error answer of the server means that the transaction is rolled back, and the one begun is not over.
        raise CommitRefused(
            f"resources.{self._name}: COMMIT was refused: {_sentence(failure)}{_REMEDIES.get(state, '')}"
        ) from psycopg.errors.error_from_result(failure)

    def rollback(self) -> None:
        """Roll back; a connection that does not answer is closed, which rolls back too."""
        if self._dead or self._pgconn.transaction_status == TransactionStatus.IDLE:
            return
        try:
            if self._exchange(b"rollback") is not None:
                self._dead = True
        except _ConnectionLost:
            # Abort: COMMIT was not sent, so the server can only roll back.
            self.close()

    @property
    def usable(self) -> bool:
        """May another capture begin on it?"""
        return not self._dead and self._pgconn.transaction_status == TransactionStatus.IDLE

    def close(self) -> None:
        """Close the connection."""
        self._dead = True
        self._connection.close()

    def _prepare(self, *statements: _Statement) -> None:
        for statement in statements:
            prepared = self._pgconn.prepare(statement.name, statement.text, statement.types)
            if prepared.status != ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(prepared)
        self._is_prepared = True

    def _may_have_committed(self, capture: bytes) -> bool:
        """Has the block committed the decision itself, before the statement that was refused? True if this cannot be read."""
        if not self.usable:
            return True
        try:
            _, failure = self._pipelined((self._committed, [capture]))
        except _ConnectionLost:
            # In doubt: the row is read on another connection.
            return True
        return failure is None or failure.error_field(DiagnosticField.SQLSTATE) != _DIVISION_BY_ZERO

    def _savepoint(self, command: bytes, number: int) -> None:
        try:
            failure = self._exchange(command % number)
        except _ConnectionLost as error:
            raise Unreachable(
                f"resources.{self._name}: the connection was lost; run the block again"
            ) from error
        if failure is not None:
            raise psycopg.errors.error_from_result(failure)

    def _pipelined(self, *commands: tuple[_Statement, list[bytes]]) -> tuple[int, PGresult | None]:
        """Run statements in one round trip; return how many succeeded, and the first that failed or None.

        After a failure the server skips the rest, COMMIT among them. Raises _ConnectionLost.
        """
        pgconn = self._pgconn
        try:
            pgconn.enter_pipeline_mode()
            for (name, text, types), values in commands:
                formats = [_BINARY] * len(values)
                if name and self._is_prepared:
                    pgconn.send_query_prepared(name, values, formats)
                else:
                    pgconn.send_query_params(text, values, types, formats)
            pgconn.pipeline_sync()
            answer = self._answers(until_sync=True)
            pgconn.exit_pipeline_mode()
        except psycopg.OperationalError as error:
            self._lost(error)
        return answer

    def _exchange(self, command: bytes) -> PGresult | None:
        """Send a command and return its failure, or None. Raises _ConnectionLost.

        Not PQexec: its wait has no end when a proxy or a host in between falls silent.
        """
        try:
            self._pgconn.send_query(command)
            _, failure = self._answers(until_sync=False)
        except psycopg.OperationalError as error:
            self._lost(error)
        return failure

    def _answers(self, *, until_sync: bool) -> tuple[int, PGresult | None]:
        """Read all answers; return how many succeeded, and the first failure. Raises _ConnectionLost, OperationalError."""
        pgconn = self._pgconn
        succeeded = 0
        failure: PGresult | None = None
        deadline = clock.monotonic() + ANSWER_TIMEOUT_S
        while pgconn.flush():
            # Also read: a server that waits for its own answers to be taken takes nothing either.
            self._wait(self._movable, deadline)
            pgconn.consume_input()
        while True:
            while pgconn.is_busy():
                self._wait(self._readable, deadline)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                is_lost = pgconn.transaction_status == TransactionStatus.UNKNOWN
                if is_lost and failure is None:
                    self._lost(None)
                if is_lost or not until_sync:
                    return succeeded, failure
            elif result.status == ExecStatus.PIPELINE_SYNC:
                return succeeded, failure
            elif result.status in _SUCCEEDED:
                succeeded += 1
            elif failure is None and result.status == ExecStatus.FATAL_ERROR:
                failure = result

    def _wait(self, until: select.poll, deadline: float) -> None:
        left = deadline - clock.monotonic()
        if left <= 0 or not until.poll(left * 1000):
            self._lost(None)

    def _lost(self, cause: Exception | None) -> NoReturn:
        self.close()
        raise _ConnectionLost from cause


def _sentence(failure: PGresult) -> str:
    raw = failure.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"no reason given"
    return raw.decode("utf-8", "replace")

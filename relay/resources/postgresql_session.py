"""Captures on a connection to PostgreSQL: COMMIT cannot happen unless it proves which transaction it ends.

A session's own statements are blocking calls of libpq: each lets go of the interpreter once, where waiting in Python
does so at every step, and threads that share an interpreter pay for every handover. Their end is watched from outside
(`patience.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NoReturn

import psycopg
from psycopg import sql
from psycopg.pq import DiagnosticField, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row

from relay.message.errors import CaptureFenced, ConfigError, Unreachable
from relay.message.identity import capture_id
from relay.resources import nonces
from relay.resources.lease import Lease
from relay.resources.patience import Awaited
from relay.resources.port import AnswerLost, CommitRefused, NotTheTransactionBegun
from relay.resources.postgresql_lent import keep_transaction, lend
from relay.world import clock

IDLE_LIMIT_S: Final = 30
"""The server ends a capture whose publisher says nothing for this long (design section 4)."""

_UNIQUE_VIOLATION: Final = b"23505"
_NO_SUCH_PREPARED: Final = b"26000"
_NO_RIGHT: Final = b"42501"
_REMEDIES: Final = {
    _NO_RIGHT: "; if the block sets a role, let it set its own back before it ends (`reset role`), or grant that role the relay's tables",
    _NO_SUCH_PREPARED: "; the block had the server forget prepared statements: let it change tables by tx.execute, one statement at a time, and use tx.savepoint() instead of the driver's",
}

_SUCCEEDED: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_BYTEA: Final = 17
_INTEGER: Final = 23
_TEXT: Final = 25
_BINARY: Final = 1
_NONCES_AT_ONCE: Final = 64
_TAKES_PREPARED_AWAY: Final = ("DROP", "ALTER", "ROLLBACK", "DEALLOCATE", "DISCARD")
"""After these, psycopg has the server forget all that is prepared on the connection, once it has prepared any itself."""

# Nonces are bound, many at once, before any of them is needed: in a text whoever may look at the server's activity would
# read them before COMMIT, and bound with the row they would cost BEGIN a round trip of its own.
_HAND_OVER: Final = b"select set_config('relay.nonces', $1, false)"
# A uuid is 16 bytes, and nothing else is cast to one. What was written is read back: a block may have reset all settings.
_ENTER: Final = sql.SQL("""insert into {table} (capture, nonce, outcome)
values ({capture}, uuid_send(substr(current_setting('relay.nonces'), {place} * 32 + 1, 32)::uuid), 'committed')
returning encode(nonce, 'hex')""")
_NOT_BEGUN: Final = "relay: not the transaction begun"
# Another transaction than the one begun finds no row of its own: the cast fails, COMMIT is not reached.
# What a statement of the application said about `synchronous_commit` is over then: this comes after all of them.
_PROVE: Final = sql.SQL("""with decided as (
    update {table} set partitions = convert_from({partitions}, 'UTF8')
    where capture = {capture} and outcome = 'committed' and xmin = pg_current_xact_id()::xid
    returning 1
) select (case count(*) when 1 then '1' else {not_begun} end)::integer,
    case when current_setting('synchronous_commit') in ('off', 'local') then set_config('synchronous_commit', 'on', true) end
from decided""")
_IS_DONE: Final = sql.SQL(
    "select 1 from {table} where capture = $1 and outcome = 'committed' and partitions = convert_from($2, 'UTF8')"
)
# A transaction that the block has prepared shows its row to nobody, and somebody may commit it.
_MAY_BE_DONE: Final = sql.SQL("""select 1 from {table} where capture = $1
union all select 1 from pg_catalog.pg_prepared_xacts where database = current_database()""")
_PREPARED_ENTER: Final = b"relay_enter"
_PREPARED_PROOF: Final = b"relay_prove"


class _ConnectionLost(Exception):
    """The connection failed while a statement was under way."""


class PostgresqlSession:
    """One connection for captures, in autocommit; ``table`` is that of the decisions. Raises psycopg.Error."""

    def __init__(
        self,
        name: str,
        uuid: str,
        connection: psycopg.Connection[tuple[Any, ...]],
        table: sql.Identifier,
        awaited: Awaited,
    ) -> None:
        self.uuid = uuid
        self._name = name
        self._connection = connection
        self._pgconn = connection.pgconn
        self._awaited = awaited
        self._process = os.getpid()
        self._dead = self._is_last = False
        self._spoke_at = 0.0
        # Now, and with the table's schema: a block may set a search path, and an encoding that Python does not know.
        self._is_done = _IS_DONE.format(table=table).as_bytes(connection)
        self._may_be_done = _MAY_BE_DONE.format(table=table).as_bytes(connection)
        self._table = table
        self._nonces: list[bytes] = []
        self._prepare(_PREPARED_ENTER, self._entry(sql.SQL("$1"), sql.SQL("$2")), _BYTEA, _INTEGER)
        self._prepare(_PREPARED_PROOF, self._proof(sql.SQL("$1"), sql.SQL("$2")), _BYTEA, _BYTEA)
        self._is_prepared = True
        self._lease = Lease()
        keep_transaction(connection)

    def begin(self) -> tuple[bytes, bytes]:
        """Begin, with the decision as the first statement, in one round trip."""
        # What an earlier block, perhaps another thread's, has set there is not this one's.
        self._connection.row_factory = tuple_row
        self._lease = lend(self._connection)
        try:
            if not self._nonces:
                self._hand_over()
            nonce = self._nonces.pop()
            capture = capture_id(nonce)
            result = self._ask(self._pgconn.exec_, self._beginning(capture, len(self._nonces)))
        except _ConnectionLost as error:
            # Retry: nothing was decided, and the server rolls back what it may have begun.
            raise Unreachable(
                f"resources.{self._name}: the connection was lost; the database may be away"
            ) from error
        if result.status == ExecStatus.TUPLES_OK and result.get_value(0, 0) == nonce.hex().encode():
            self._spoke_at = clock.monotonic()
            return capture, nonce
        state = result.error_field(DiagnosticField.SQLSTATE)
        self.rollback()
        if state == _UNIQUE_VIOLATION:
            raise CaptureFenced(f"capture {capture.hex()} was decided before it began; run the block again")
        # Retry on a new connection: an earlier block may have taken away what was prepared, or handed over.
        self._dead = True
        said = f"resources.{self._name}: a capture cannot begin: {_sentence(result)}"
        if state == _NO_RIGHT:
            raise ConfigError(f"{said}; grant the role its rights to the relay's tables")
        raise Unreachable(said)

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
        if self._lease.is_suspect:
            self._connection.prepare_threshold = None  # for the rest of the block: what psycopg has prepared is not used any more
            self._is_last = True
        self._savepoint(b"release savepoint relay_%d", number)

    def release(self, number: int) -> None:
        """Forget the savepoint ``number``, keep what came after it."""
        self._savepoint(b"release savepoint relay_%d", number)

    def is_intact(self, capture: bytes) -> bool:  # noqa: ARG002 - another medium needs it
        """Does the client side know of an open transaction, and of nothing unread? The row's xmin says the rest on deciding."""
        return self._pgconn.transaction_status == TransactionStatus.INTRANS and not self._is_unread

    @property
    def in_transaction(self) -> bool:
        """Anything but surely outside of one: a broken connection says so itself."""
        return self._pgconn.transaction_status != TransactionStatus.IDLE

    @property
    def failed(self) -> bool:
        """Is the transaction aborted, busy with a statement that never ended, or its connection gone?"""
        return self._is_unread or self._pgconn.transaction_status not in (TransactionStatus.INTRANS, TransactionStatus.IDLE)

    def decide(self, capture: bytes, partitions: bytes) -> None:
        """Prove the transaction and COMMIT it durably, in one round trip.

        `synchronous_commit` is set last, so that no statement of the application weakens the decision.
        """
        silent_s = clock.monotonic() - self._spoke_at
        self._lease.is_over = True
        try:
            result = self._ask(self._pgconn.exec_, self._decision(capture, partitions))
        except _ConnectionLost as error:
            # In doubt: the server may have committed before the connection went.
            # The server's own word is gone with the connection.
            why = f"; the block was silent for {silent_s:.0f} s, and the server ends one after {IDLE_LIMIT_S} s: do before it what takes long"
            raise AnswerLost(
                f"resources.{self._name}: the answer to COMMIT was lost{why if silent_s >= IDLE_LIMIT_S else ''}"
            ) from error
        if result.command_status == b"COMMIT":
            return
        state = result.error_field(DiagnosticField.SQLSTATE)
        if state is None:
            # In doubt: whatever this is, it is no word of the server's about the transaction.
            self.close()
            raise AnswerLost(f"resources.{self._name}: COMMIT was not answered by the database ({_sentence(result)})")
        self._is_prepared = self._is_prepared and state != _NO_SUCH_PREPARED
        self.rollback()
        if _NOT_BEGUN in _sentence(result):
            raise NotTheTransactionBegun(
                f"resources.{self._name}: the block's transaction is not the one begun"
            )
        if self._finds(self._is_done, capture, partitions):
            # No abort: the server was told to cancel when the commit was on its disk already.
            return
        # Abort, unless the row, which the block asks for next, says that the block has committed before.
        raise CommitRefused(
            f"resources.{self._name}: COMMIT was refused: {_sentence(result)}{_REMEDIES.get(state, '')}"
        ) from psycopg.errors.error_from_result(result)

    def is_undone(self, capture: bytes) -> bool:
        """After a rollback: is the decision surely not committed, by a statement of the block's own neither?"""
        return self._finds(self._may_be_done, capture) is False

    def rollback(self) -> None:
        """Roll back; a connection that does not answer is closed, which rolls back too."""
        self._lease.is_over = True
        if self._dead or self._pgconn.transaction_status == TransactionStatus.IDLE:
            return
        # psycopg knows nothing of this rollback, and what it has prepared for a table may not fit any more.
        self._dead = self._lease.is_suspect or not self._is_prepared
        try:
            if self._ask(self._pgconn.exec_, b"rollback").status not in _SUCCEEDED:
                self._dead = True
        except _ConnectionLost:
            # Abort: COMMIT was not sent, so the server can only roll back.
            self.close()

    @property
    def usable(self) -> bool:
        """May another capture begin on it?"""
        # What psycopg's lock is still held for (a suspended generator of notifications) would hold up every statement.
        is_free = not self._connection.lock.locked()
        return not (self._dead or self._is_last) and is_free and self._pgconn.transaction_status == TransactionStatus.IDLE

    def close(self) -> None:
        """Close the connection; not in a fork, where that would tell the server to end its parent's."""
        self._dead = self._lease.is_over = True
        if self._process != os.getpid():
            return
        self._awaited.close()
        self._connection.close()

    def _prepare(self, name: bytes, statement: bytes, *types: int) -> None:
        prepared = self._pgconn.prepare(name, statement, types)
        if prepared.status != ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(prepared)

    def _hand_over(self) -> None:
        """Give the server the nonces of the next captures, for this connection alone."""
        drawn = nonces.draw(_NONCES_AT_ONCE)
        given = b"".join(drawn).hex().encode()
        result = self._ask(self._pgconn.exec_params, _HAND_OVER, [given], [_TEXT])
        if result.status != ExecStatus.TUPLES_OK:
            self.close()
            raise Unreachable(f"resources.{self._name}: a capture cannot begin: {_sentence(result)}")
        self._nonces = drawn

    def _entry(self, capture: sql.Composable, place: sql.Composable) -> bytes:
        return _ENTER.format(table=self._table, capture=capture, place=place).as_bytes(self._connection)

    def _beginning(self, capture: bytes, place: int) -> bytes:
        """Return BEGIN and the row's insert, with the nonce at that place of those handed over."""
        value = _bytea(capture)
        if self._is_prepared:
            return b"begin; execute %s(%s, %d)" % (_PREPARED_ENTER, value, place)
        return b"begin; " + self._entry(sql.SQL(value.decode() + "::bytea"), sql.Literal(place))

    def _proof(self, capture: sql.Composable, partitions: sql.Composable) -> bytes:
        return _PROVE.format(
            table=self._table, not_begun=sql.Literal(_NOT_BEGUN), capture=capture, partitions=partitions
        ).as_bytes(self._connection)

    def _decision(self, capture: bytes, partitions: bytes) -> bytes:
        """Return the proof and COMMIT, which the server skips if the proof fails. Nothing in it is secret."""
        values = [_bytea(value) for value in (capture, partitions)]
        if self._is_prepared:
            return b"execute %s(%s, %s); commit" % (_PREPARED_PROOF, *values)
        proof = self._proof(*(sql.SQL(value.decode() + "::bytea") for value in values))
        return proof + b"; commit"

    def _finds(self, rows: bytes, *values: bytes) -> bool | None:
        """Are there such rows? None if that cannot be read on this connection."""
        if self._pgconn.transaction_status != TransactionStatus.IDLE:
            return None
        try:
            result = self._ask(
                self._pgconn.exec_params, rows, list(values), [_BYTEA] * len(values), [_BINARY] * len(values)
            )
        except _ConnectionLost:
            return None
        return result.ntuples > 0 if result.status == ExecStatus.TUPLES_OK else None

    def _savepoint(self, command: bytes, number: int) -> None:
        try:
            result = self._ask(self._pgconn.exec_, command % number)
        except _ConnectionLost as error:
            raise Unreachable(
                f"resources.{self._name}: the connection was lost; run the block again"
            ) from error
        if result.status not in _SUCCEEDED:
            raise psycopg.errors.error_from_result(result)

    def _ask(self, ask: Callable[..., PGresult], *what: Any) -> PGresult:
        """Wait for an answer, which may be a refusal. Raises _ConnectionLost."""
        if self._is_unread:
            # libpq would read it to its end first, and psycopg still holds the connection for it.
            self._lost(None)
        self._awaited.asked()
        try:
            result = ask(*what)
        except psycopg.OperationalError as error:
            self._lost(error)
        finally:
            self._awaited.answered()
        if self._pgconn.transaction_status == TransactionStatus.UNKNOWN:
            self._lost(None)
        return result

    @property
    def _is_unread(self) -> bool:
        """Has the block left a stream, a COPY or a pipeline open?"""
        return owes_answers(self._pgconn)

    def _lost(self, cause: Exception | None) -> NoReturn:
        self.close()
        raise _ConnectionLost from cause


def owes_answers(pgconn: PGconn) -> bool:
    """Is a stream, a COPY or a pipeline open on the connection?"""
    return pgconn.transaction_status == TransactionStatus.ACTIVE or pgconn.pipeline_status != PipelineStatus.OFF


def _bytea(value: bytes) -> bytes:
    """Return a literal, in which nothing has to be quoted. E: without it, a setting says what a backslash is."""
    return b"E'\\\\x%s'" % value.hex().encode()


def _sentence(failure: PGresult) -> str:
    raw = failure.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"no reason given"
    return raw.decode("utf-8", "replace")

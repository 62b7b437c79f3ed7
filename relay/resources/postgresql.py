"""PostgreSQL as a resource manager: the capture's COMMIT cannot happen unless it proves which transaction it ends.

Sessions speak to libpq directly for the statements of their own, since each capture pays for them: prepared, and
pipelined into one round trip to begin and one to decide.
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import psycopg
from psycopg import conninfo, sql
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from relay.message.envelope import ResourceName
from relay.message.errors import CaptureFenced, ConfigError, Unreachable
from relay.resources import schema
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
from relay.run import clock

CONNECT_TIMEOUT_S: Final = 5
ANSWER_TIMEOUT_S: Final = 10.0
"""How long a session waits for the answer to a statement of its own; then its connection is given up."""
IDLE_LIMIT_S: Final = 30
"""The server ends a capture whose publisher says nothing for this long (design section 4)."""
TCP_TIMEOUT_MS: Final = 10_000
_SCAN_TIMEOUT_S: Final = 120
_DECISIONS_TIMEOUT_S: Final = 8

_UNIQUE_VIOLATION: Final = b"23505"
_DIVISION_BY_ZERO: Final = b"22012"
_NO_SUCH_PREPARED: Final = b"26000"
_NO_RIGHT: Final = b"42501"
_REMEDIES: Final = {
    _NO_RIGHT: "; if the block sets a role, let it set its own back before it ends (`reset role`), or grant that role the relay's tables"
}

_BEGIN: Final = b"relay_begin"
_ENTER: Final = b"relay_enter"
_DECIDE: Final = b"relay_decide"
_COMMIT: Final = b"relay_commit"
_SUCCEEDED: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_BYTEA: Final = 17
_TEXT: Final = 25
_BINARY: Final = 1
_TABLE: Final = sql.SQL("""select n.nspname, c.relname from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass('relay_capture')""")
_PREPARED: Final = (
    (_BEGIN, sql.SQL("begin"), ()),
    (
        _ENTER,
        sql.SQL("insert into {table} (capture, nonce, outcome) values ($1, $2, 'committed')"),
        (_BYTEA, _BYTEA),
    ),
    # Another transaction than the one begun finds no row of its own: the division fails, COMMIT is not reached.
    # What a statement of the application said about `synchronous_commit` is over then: this comes after all of them.
    (
        _DECIDE,
        sql.SQL("""with decided as (
    update {table} set partitions = $2
    where capture = $1 and outcome = 'committed' and xmin = pg_current_xact_id()::xid
    returning 1
) select 1 / count(*),
    case when current_setting('synchronous_commit') in ('off', 'local') then set_config('synchronous_commit', 'on', true) end
from decided"""),
        (_BYTEA, _TEXT),
    ),
    (_COMMIT, sql.SQL("commit"), ()),
)
"""With the table's schema, since a block may set a search path of its own."""


def address(url: str) -> dict[str, Any]:
    """Return what psycopg is to connect with, so that a server that falls silent is noticed in seconds; the address's own words hold."""
    wanted: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "tcp_user_timeout": TCP_TIMEOUT_MS,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "application_name": "relay",
    }
    return {**wanted, **conninfo.conninfo_to_dict(url)}


def durable(*, local: bool) -> str:
    """Return the statement that raises `synchronous_commit` where a commit would be answered before it is on the server's disk."""
    # A database may ask for more than its own disk (remote_apply); only less is raised.
    return f"select set_config('synchronous_commit', 'on', {local}) where current_setting('synchronous_commit') in ('off', 'local')"


class _ConnectionLost(Exception):
    """The connection failed while a statement was under way."""


class PostgresqlResource:
    """A PostgreSQL database under its configured name; connections are made per session."""

    kind: Final = "postgresql"

    def __init__(self, name: str, url: str, lock_timeout_s: float) -> None:
        self.name = name
        self._url = url
        self._lock_timeout_s = lock_timeout_s

    def connect(self, **settings: float) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection in autocommit with server ``settings`` in seconds; Unreachable if there is none."""
        given = address(self._url)
        with reaching(self.name):
            connection = psycopg.connect(autocommit=True, **given)
            try:
                connection.execute(durable(local=False).encode())
                for setting, seconds in settings.items():
                    value = sql.Literal(f"{round(seconds * 1000)}ms")
                    connection.execute(sql.SQL("set {} = {}").format(sql.Identifier(setting), value))
            except BaseException:
                connection.close()
                raise
        return connection

    def identity(self) -> ResourceName:
        """Return name and uuid, read now."""
        return identity_of(self.name, self.decisions())

    def session(self) -> PostgresqlSession:
        """Open a connection for captures."""
        connection = self.connect(idle_in_transaction_session_timeout=IDLE_LIMIT_S)
        try:
            uuid = _uuid(connection, self.name)
            with reaching(self.name):
                table = sql.Identifier(*(connection.execute(_TABLE).fetchone() or ("relay_capture",)))
                for name, statement, types in _PREPARED:
                    text = statement.format(table=table).as_bytes(connection)
                    prepared = connection.pgconn.prepare(name, text, types)
                    if prepared.status != ExecStatus.COMMAND_OK:
                        raise psycopg.errors.error_from_result(prepared)
        except BaseException:
            connection.close()
            raise
        return PostgresqlSession(self.name, uuid, connection)

    def decisions(self) -> PostgresqlDecisions:
        """Open a connection for decisions."""
        connection = self.connect(
            lock_timeout=self._lock_timeout_s,
            statement_timeout=_DECISIONS_TIMEOUT_S,
            idle_in_transaction_session_timeout=IDLE_LIMIT_S,
        )
        try:
            with reaching(self.name):
                connection.execute("set default_transaction_isolation = 'read committed'")
        except BaseException:
            connection.close()
            raise
        return PostgresqlDecisions(self.name, connection)

    def create_tables(self) -> None:
        """Create what is missing of the relay's tables."""
        with self.connect() as connection, reaching(self.name):
            # Not one transaction: it would hold the locks of some tables while it waits for others' writers.
            connection.execute(schema.ONE_CONNECTION_AT_A_TIME)
            for statement in schema.statements("postgresql"):
                connection.execute(statement.encode())

    def renew_identity(self) -> str:
        """Give the database a new uuid and return it."""
        with self.connect() as connection, reaching(self.name):
            connection.execute(schema.new_identity("postgresql").encode())
            return _uuid(connection, self.name)

    def frozen_writer(self) -> int | None:
        """Return None: writers block each other by row, and the server ends an idle one."""
        return None


class PostgresqlSession:
    """One connection for captures."""

    def __init__(self, name: str, uuid: str, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
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

    def begin(self, capture: bytes, nonce: bytes) -> None:
        """Begin, with the decision as the first statement, in one round trip."""
        try:
            _, failure = self._pipelined((_BEGIN, []), (_ENTER, [capture, nonce]))
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
            return self._connection.execute(query, params)
        finally:
            self._spoke_at = clock.monotonic()

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
            proven, failure = self._pipelined((_DECIDE, [capture, partitions]), (_COMMIT, []))
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
        self.rollback()
        if state == _DIVISION_BY_ZERO and not proven:
            raise NotTheTransactionBegun(
                f"resources.{self._name}: the block's transaction is not the one begun"
            )
        # Abort: an error answer of the server means that the transaction is rolled back.
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

    def _savepoint(self, command: bytes, number: int) -> None:
        try:
            failure = self._exchange(command % number)
        except _ConnectionLost as error:
            raise Unreachable(
                f"resources.{self._name}: the connection was lost; run the block again"
            ) from error
        if failure is not None:
            raise psycopg.errors.error_from_result(failure)

    def _pipelined(self, *commands: tuple[bytes, list[bytes]]) -> tuple[int, PGresult | None]:
        """Run prepared statements in one round trip; return how many succeeded, and the first that failed or None.

        After a failure the server skips the rest, COMMIT among them. Raises _ConnectionLost.
        """
        pgconn = self._pgconn
        try:
            pgconn.enter_pipeline_mode()
            for name, values in commands:
                pgconn.send_query_prepared(name, values, [_BINARY] * len(values))
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


class PostgresqlDecisions:
    """The decision rows, on a connection of its own in autocommit and READ COMMITTED."""

    def __init__(self, name: str, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._name = name
        self._connection = connection

    def uuid(self) -> str:
        """Return the database's own uuid, read now."""
        return _uuid(self._connection, self._name)

    def abort_if_undecided(self, capture: bytes) -> None:
        """Insert (capture, aborted) unless there is a row."""
        with reaching(self._name):
            self._connection.execute(
                "insert into relay_capture (capture, outcome) values (%s, 'aborted') on conflict do nothing",
                (capture,),
            )

    def read(self, captures: Sequence[bytes]) -> dict[bytes, DecisionRow]:
        """Return the rows that exist."""
        with reaching(self._name):
            rows = self._connection.execute(
                "select capture, outcome, nonce from relay_capture where capture = any(%s)", (list(captures),)
            ).fetchall()
        return {bytes(row[0]): DecisionRow(row[1] == "committed", row[2]) for row in rows}

    def unmarked(self, older_than_s: float, limit: int) -> list[UnmarkedRow]:
        """Return committed captures of that age that are not marked; it may read the whole table."""
        with self._scanning():
            rows = self._connection.execute(
                "select capture, nonce, partitions from relay_capture"
                " where not marked and outcome = 'committed' and created_at <= now() - make_interval(secs => %s) limit %s",
                (older_than_s, limit),
            ).fetchall()
        return [UnmarkedRow(row[0], row[1], row[2].encode() if row[2] is not None else None) for row in rows]

    def mark(self, captures: Sequence[bytes]) -> None:
        """Note that the markers of these captures are acknowledged."""
        with reaching(self._name):
            self._connection.execute(
                "update relay_capture set marked = true where capture = any(%s) and not marked",
                (list(captures),),
            )

    def aged(self, older_than_s: float, limit: int, without: Sequence[str] = ()) -> list[AgedRow]:
        """Return rows older than that which are aborted, or committed and marked, and name none of ``without``.

        It may read the whole table.
        """
        with self._scanning():
            rows = self._connection.execute(
                "select capture, partitions, extract(epoch from now() - created_at)::float8 from relay_capture"
                " where created_at < now() - make_interval(secs => %s) and (marked or outcome = 'aborted')"
                " and not exists (select from unnest(%s::text[]) topic where position(topic in partitions) > 0) limit %s",
                (older_than_s, schema.quoted_topics(without), limit),
            ).fetchall()
        return [AgedRow(row[0], row[1].encode() if row[1] is not None else None, row[2]) for row in rows]

    def trim(self, captures: Sequence[bytes]) -> None:
        """Delete rows whose time is over."""
        with reaching(self._name):
            self._connection.execute("delete from relay_capture where capture = any(%s)", (list(captures),))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @contextmanager
    def _scanning(self) -> Iterator[None]:
        """Run a statement that reads as much as there is."""
        with reaching(self._name), self._connection.transaction():
            self._connection.execute(
                sql.SQL("set local statement_timeout = {}").format(sql.Literal(f"{_SCAN_TIMEOUT_S}s"))
            )
            yield


@contextmanager
def reaching(name: str) -> Iterator[None]:
    """Turn a failed connection into Unreachable, a held row into RowLocked, missing tables or rights into ConfigError."""
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise RowLocked(
            f"resources.{name}: a living publisher holds the decision row; ask again later"
        ) from error
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        raise ConfigError(
            f"resources.{name}: the relay's tables are missing or old; run `relay migrate`"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"resources.{name}: the role has no right to the relay's tables ({_first_line(error)}); grant it"
        ) from error
    except psycopg.Error as error:
        # Whatever else it says (read-only after a failover, out of memory): ask again later.
        raise Unreachable(f"resources.{name}: the database does not answer ({_first_line(error)})") from error


def _uuid(connection: psycopg.Connection[tuple[Any, ...]], name: str) -> str:
    with reaching(name):
        row = connection.execute("select uuid from relay_resource").fetchone()
    if row is None:
        raise ConfigError(f"resources.{name}: the database has no identity; run `relay migrate`")
    return str(row[0])


def _sentence(failure: PGresult) -> str:
    raw = failure.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"no reason given"
    return raw.decode("utf-8", "replace")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no reason given"])[0]

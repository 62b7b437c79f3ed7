"""PostgreSQL as a resource manager: its connections, the decision rows as a resolver sees them, its errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from relay.message.envelope import ResourceName
from relay.message.errors import ConfigError, Unreachable
from relay.resources import postgresql_session, schema
from relay.resources.addresses import connected
from relay.resources.patience import Awaited, await_on
from relay.resources.port import AgedRow, DecisionRow, RowLocked, UnmarkedRow, identity_of
from relay.resources.postgresql_pooler import refuse_shared
from relay.resources.postgresql_session import PostgresqlSession
from relay.resources.postgresql_states import TIME_IS_OVER

_SCAN_TIMEOUT_S: Final = 120
_DECISIONS_TIMEOUT_S: Final = 8
_SAYS_NOTHING: Final = frozenset({"08", "57", "58"})
"""Classes of SQLSTATE that are no word about the transaction: connection, operator intervention, system error."""

AS_WRITTEN: Final = b"set standard_conforming_strings = on; set array_nulls = on"
"""Without them psycopg's COPY and arrays hold other bytes than were given, and 'NULL' for NULL."""
UNLIMITED: Final = b"select set_config(name, '0', false) from pg_settings where name = 'transaction_timeout'"
"""Takes away what PostgreSQL 17 and later may set by default: each statement has its own limit, and their number has none."""
_LIMIT_MS_MAX: Final = 2**31 - 1
"""The longest limit of time that the server takes, 24 days: a handler may be given more."""

_SCHEMA: Final = """select n.nspname from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)"""


def durable() -> str:
    """Return the statement that raises `synchronous_commit` where a commit would be answered before it is on the server's disk."""
    # A database may ask for more than its own disk (remote_apply); only less is raised.
    return "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') in ('off', 'local')"


def leaves_commit_open(error: psycopg.Error) -> bool:
    """Does an error that COMMIT met leave open whether it took effect?

    So does one of the connection, and of the server as a whole: one that is told to cancel while it flushes has committed. So does
    whatever it ends the connection with: one that finds no room for the rest of its log may have written the commit before. Only
    what took too long was ended before COMMIT was heard.
    """
    is_end = error.diag.severity_nonlocalized in {"FATAL", "PANIC"} and error.sqlstate not in TIME_IS_OVER
    return is_end or error.sqlstate is None or error.sqlstate[:2] in _SAYS_NOTHING


@cache
def _as_psycopg_comes() -> AdaptersMap:
    """Return how values become SQL, and back, whatever the application has registered for all of its connections: lists as JSON, say."""
    made = AdaptersMap(types=psycopg.adapters.types)
    psycopg.postgres.register_default_adapters(made)
    return made


class _OwnCursor(psycopg.Cursor[tuple[Any, ...]]):
    @property
    def adapters(self) -> AdaptersMap:
        """How values become SQL, and back, as psycopg has it."""
        return _as_psycopg_comes()


def own_cursor(connection: psycopg.Connection[Any], *, binary: bool = False) -> psycopg.Cursor[tuple[Any, ...]]:
    """Return a cursor for the relay's statements, whatever an application has made of the connection, or of all connections.

    It may have given a handler's factories of its own, and all of them adapters, which know nothing of these statements.
    """
    cursor = _OwnCursor(connection, row_factory=tuple_row)
    cursor.format = psycopg.pq.Format.BINARY if binary else psycopg.pq.Format.TEXT
    return cursor


def schema_of(connection: psycopg.Connection[Any], table: str) -> str | None:
    """Return the schema in which a connection finds a table now; None if it finds none."""
    row = own_cursor(connection).execute(_SCHEMA, (table,)).fetchone()
    return None if row is None else str(row[0])


def before_names(connection: psycopg.Connection[Any], table: str) -> bytes:
    """Return what goes before the names of a table, and of those beside it, so that they are found whatever is said of
    `search_path` later; nothing if the connection does not find it.
    """
    schema = schema_of(connection, table)
    # Either would have to be written differently in a literal, or beside parameters: nobody's schema is called so.
    if schema is None or "'" in schema or "%" in schema:
        return b""
    return sql.Identifier(schema).as_bytes(connection) + b"."


def is_unread(connection: psycopg.Connection[Any]) -> bool:
    """Has somebody left a stream, a COPY or a pipeline open? A statement would wait for psycopg's lock, or for what is unread, for ever."""
    return not connection.closed and (postgresql_session.owes_answers(connection.pgconn) or connection.lock.locked())


def was_closed(connection: psycopg.Connection[Any]) -> bool:
    """Has somebody here closed the connection? Else the network or the server has."""
    return connection.closed and not connection.broken


class PostgresqlResource:
    """A PostgreSQL database under its configured name; connections are made per session."""

    kind: Final = "postgresql"

    def __init__(self, name: str, url: str, lock_timeout_s: float) -> None:
        self.name = name
        self._url = url
        self._lock_timeout_s = lock_timeout_s

    def connect(self, **settings: float) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection in autocommit with server ``settings`` in seconds; Unreachable if there is none."""
        with self._connecting(**settings) as (connection, _):
            connection.execute(AS_WRITTEN)
            return connection

    def identity(self) -> ResourceName:
        """Return name and uuid, read now."""
        return identity_of(self.name, self.decisions())

    def session(self) -> PostgresqlSession:
        """Open a connection for captures."""
        with self._connecting(idle_in_transaction_session_timeout=postgresql_session.IDLE_LIMIT_S) as (connection, awaited):
            uuid = _uuid(connection, self.name)
            schema = schema_of(connection, "relay_capture")
            table = sql.Identifier("relay_capture") if schema is None else sql.Identifier(schema, "relay_capture")
            return PostgresqlSession(self.name, uuid, connection, table, awaited)

    def decisions(self) -> PostgresqlDecisions:
        """Open a connection for decisions."""
        with self._connecting(
            lock_timeout=self._lock_timeout_s,
            statement_timeout=_DECISIONS_TIMEOUT_S,
            idle_in_transaction_session_timeout=postgresql_session.IDLE_LIMIT_S,
        ) as (connection, awaited):
            connection.execute(AS_WRITTEN)
            connection.execute(UNLIMITED)
            connection.execute("set default_transaction_isolation = 'read committed'")
            return PostgresqlDecisions(self.name, connection, awaited)

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

    @contextmanager
    def _connecting(self, **settings: float) -> Iterator[tuple[psycopg.Connection[tuple[Any, ...]], Awaited]]:
        """Connect; what the block asks of the connection has an end, and an error of it closes the connection."""
        with reaching(self.name):
            connection, given = connected(self._url)
            try:
                awaited = await_on(connection.fileno())
                with awaited.asking():
                    refuse_shared(f"resources.{self.name}", connection, given)
                    connection.execute(durable().encode())
                    for setting, seconds in settings.items():
                        value = sql.Literal(f"{min(round(seconds * 1000), _LIMIT_MS_MAX)}ms")
                        connection.execute(sql.SQL("set {} = {}").format(sql.Identifier(setting), value))
                with awaited.asking():
                    yield connection, awaited
            except BaseException:
                connection.close()
                raise


class PostgresqlDecisions:
    """The decision rows, on a connection of its own in autocommit and READ COMMITTED."""

    def __init__(self, name: str, connection: psycopg.Connection[tuple[Any, ...]], awaited: Awaited) -> None:
        self._name = name
        self._connection = connection
        self._awaited = awaited

    def uuid(self) -> str:
        """Return the database's own uuid, read now."""
        with self._asking():
            return _uuid(self._connection, self._name)

    def abort_if_undecided(self, capture: bytes) -> None:
        """Insert (capture, aborted) unless there is a row."""
        with self._asking():
            own_cursor(self._connection).execute(
                "insert into relay_capture (capture, outcome) values (%s, 'aborted') on conflict do nothing",
                (capture,),
            )

    def read(self, captures: Sequence[bytes]) -> dict[bytes, DecisionRow]:
        """Return the rows that exist."""
        with self._asking():
            rows = own_cursor(self._connection).execute(
                "select capture, outcome, nonce, partitions is not null from relay_capture where capture = any(%s)",
                (list(captures),),
            ).fetchall()
        return {bytes(row[0]): DecisionRow(row[1] == "committed", row[2], row[3]) for row in rows}

    def unmarked(self, older_than_s: float, limit: int) -> list[UnmarkedRow]:
        """Return committed captures of that age that are not marked; it may read the whole table."""
        with self._scanning():
            rows = own_cursor(self._connection).execute(
                "select capture, nonce, partitions from relay_capture"
                " where not marked and outcome = 'committed' and created_at <= now() - make_interval(secs => %s) limit %s",
                (older_than_s, limit),
            ).fetchall()
        return [UnmarkedRow(row[0], row[1], row[2].encode() if row[2] is not None else None) for row in rows]

    def mark(self, captures: Sequence[bytes]) -> None:
        """Note that the markers of these captures are acknowledged."""
        with self._asking():
            own_cursor(self._connection).execute(
                "update relay_capture set marked = true where capture = any(%s) and not marked",
                (list(captures),),
            )

    def aged(self, older_than_s: float, limit: int, without: Sequence[str] = ()) -> list[AgedRow]:
        """Return rows older than that which are aborted, or committed and marked, and name none of ``without``.

        It may read the whole table.
        """
        with self._scanning():
            rows = own_cursor(self._connection).execute(
                "select capture, partitions, extract(epoch from now() - created_at)::float8 from relay_capture"
                " where created_at < now() - make_interval(secs => %s) and (outcome = 'aborted' or (marked and partitions is not null))"
                " and not exists (select from unnest(%s::text[]) topic where position(topic in partitions) > 0) limit %s",
                (older_than_s, schema.quoted_topics(without), limit),
            ).fetchall()
        return [AgedRow(row[0], row[1].encode() if row[1] is not None else None, row[2]) for row in rows]

    def trim(self, captures: Sequence[bytes]) -> None:
        """Delete rows whose time is over."""
        with self._asking():
            own_cursor(self._connection).execute("delete from relay_capture where capture = any(%s)", (list(captures),))

    def close(self) -> None:
        """Close the connection."""
        self._awaited.close()
        self._connection.close()

    @contextmanager
    def _asking(self, more_s: float = 0.0) -> Iterator[None]:
        """The server bounds its statements itself, but it may have fallen silent."""
        with reaching(self._name), self._awaited.asking(more_s):
            yield

    @contextmanager
    def _scanning(self) -> Iterator[None]:
        """Run a statement that reads as much as there is."""
        with self._asking(_SCAN_TIMEOUT_S), self._connection.transaction():
            own_cursor(self._connection).execute(
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
    except psycopg.errors.InvalidSchemaName as error:
        raise ConfigError(
            f"resources.{name}: {_first_line(error)}; create the schema that search_path names, or correct search_path"
        ) from error
    except OSError as error:
        raise Unreachable(
            f"resources.{name}: {error.strerror or error}; this process is at one of its limits (`ulimit -a`)"
        ) from error
    except psycopg.Error as error:
        # Whatever else it says (read-only after a failover, out of memory): ask again later.
        raise Unreachable(
            f"resources.{name}: the database does not answer ({_first_line(error)}); {remedy(error)}"
        ) from error


def remedy(error: psycopg.Error) -> str:
    """Return what helps a person against it."""
    # A server that speaks is where the address says.
    if error.sqlstate is not None or "FATAL:" in str(error):
        return "correct what it names (user, password, database), or look at the server's log"
    if any(said in str(error) for said in ("SSL error: ", "does not support SSL", "certificate")):
        return "correct sslmode and sslrootcert of the address, or the server's certificate"
    # libpq says so of an address which it takes apart and does not try.
    if "connection is bad: invalid" in str(error):
        return "correct the address"
    return "start it, or correct the address"


def _uuid(connection: psycopg.Connection[tuple[Any, ...]], name: str) -> str:
    with reaching(name):
        row = own_cursor(connection).execute("select uuid from relay_resource").fetchone()
    if row is None:
        raise ConfigError(f"resources.{name}: the database has no identity; run `relay migrate`")
    return str(row[0])


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no reason given"])[0]

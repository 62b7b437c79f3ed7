"""Databases as the auditor reads them: one snapshot, server-side cursors, nothing written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader

from relay.audit.ledger import Outcome
from relay.audit.stored_ids import AsStored, as_postgresql_stores, as_sqlite_stores
from relay.config.model import ResourceConfig
from relay.message.errors import ConfigError, Unreachable
from relay.resources.postgresql import remedy

ROWS: Final = 10_000
CONNECT_TIMEOUT_S: Final = 5
_OUTCOMES: Final = {"committed": Outcome.COMMITTED, "aborted": Outcome.ABORTED}
_INBOX: Final = (
    "select digest, outcome, applied, {} from relay_inbox where relay = {} and route = {} order by applied"
)
_QUEUED: Final = (
    "select publisher, id from relay_queue_message"
    " where parents is null and queue = (select id from relay_queue where name = {})"
)
_ROUTES: Final = "select distinct relay, route, topic from relay_position"
_POSITIONS: Final = (
    "select topic_id, partition, position from relay_position"
    " where relay = {} and route = {} and position is not null"
)


class InboxRow(NamedTuple):
    """A row of the inbox; ``transaction`` tells delivery transactions apart."""

    digest: bytes
    outcome: int
    applied: int
    transaction: int


class Store(Protocol):
    """A database as one snapshot. Every method raises Unreachable, or ConfigError for a missing table or column."""

    def uuid(self) -> str:
        """Return the database's own uuid; empty if it has none."""

    def captures(self, wanted: Sequence[bytes]) -> dict[bytes, Outcome]:
        """Return the decisions that exist."""

    def positions(self, relay: str, route: str) -> dict[tuple[bytes, int], int]:
        """Return the route's positions by topic id and partition."""

    def inbox(self, relay: str, route: str) -> Iterator[InboxRow]:
        """Yield the route's inbox in the order of ``applied``."""

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Sequence[str | None]]:
        """Yield columns of every row of a table, as text."""

    def as_stored(self, table: str, column: str) -> AsStored | None:
        """Return how a text reads once a column has it, None if as it was."""

    def queued(self, queue: str) -> Iterator[tuple[str, str]]:
        """Yield (publisher, id) of every message that a route has put, whatever its state: a handler's have parents."""

    def routes(self) -> set[tuple[str, str, str]]:
        """Return the routes that have positions here, also those that there are no more: (relay, route, topic read)."""

    def close(self) -> None:
        """Close the connection."""


def open_store(name: str, resource: ResourceConfig) -> Store:
    """Open a snapshot of a resource."""
    url = resource.url.get_secret_value()
    return _Sqlite(name, url) if resource.kind == "sqlite" else _Postgresql(name, url)


def _readable(raw: bytes | bytearray | memoryview) -> str:
    """Return a text, whatever it holds: a row that somebody else has written is no message of the log, and hides no other row."""
    return str(raw, "utf-8", "replace")


class _Text(Loader):
    """Reads a text where the database lets it be of any characters."""

    def load(self, data: Buffer) -> str:
        return _readable(data)


class _Postgresql:
    """PostgreSQL: a read-only transaction at repeatable read is one snapshot."""

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._cursors = 0
        with self._reaching():
            self._connection = psycopg.connect(
                url, connect_timeout=CONNECT_TIMEOUT_S, application_name="relay verify", client_encoding="utf8"
            )
            self._connection.read_only = True
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            if self._connection.info.parameter_status("server_encoding") == "SQL_ASCII":
                # Such a server refuses to send as UTF-8 what is none.
                self._connection.execute("set client_encoding = 'SQL_ASCII'")
                self._connection.adapters.register_loader("text", _Text)
            # The snapshot waits while the log is read, whatever the server's limits for applications are.
            self._connection.execute("set idle_in_transaction_session_timeout = 0")
            self._connection.execute("set statement_timeout = 0")
            # Without it the arrays of bytes that are asked for hold other bytes.
            self._connection.execute("set standard_conforming_strings = on")
            # The snapshot is taken by the first query, which this one is.
            self._connection.execute("select set_config(name, '0', false) from pg_settings where name = 'transaction_timeout'")

    def uuid(self) -> str:
        found = self._all(sql.SQL("select uuid from relay_resource"))
        return str(found[0][0]) if found else ""

    def captures(self, wanted: Sequence[bytes]) -> dict[bytes, Outcome]:
        query = sql.SQL("select capture, outcome from relay_capture where capture = any({})")
        return {bytes(c): _OUTCOMES[o] for c, o in self._all(query.format(sql.Literal(list(wanted))))}

    def positions(self, relay: str, route: str) -> dict[tuple[bytes, int], int]:
        found = self._all(sql.SQL(_POSITIONS).format(sql.Literal(relay), sql.Literal(route)))
        return {(bytes(topic_id), partition): position for topic_id, partition, position in found}

    def inbox(self, relay: str, route: str) -> Iterator[InboxRow]:
        # Rows of one delivery transaction share xmin: they became visible together, in no order among themselves.
        query = sql.SQL(_INBOX).format(sql.SQL("xmin::text::bigint"), sql.Literal(relay), sql.Literal(route))
        for digest, outcome, applied, transaction in self._stream(query):
            yield InboxRow(bytes(digest), outcome, applied, transaction)

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Sequence[str | None]]:
        chosen = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(column)) for column in columns)
        return self._stream(sql.SQL("select {} from {}").format(chosen, sql.Identifier(*table.split("."))))

    def as_stored(self, table: str, column: str) -> AsStored | None:
        query = sql.SQL("select {} from {} limit 0")
        with self._reaching():
            found = self._connection.execute(query.format(sql.Identifier(column), sql.Identifier(*table.split("."))))
        assert found.description is not None, "a query has a description"
        # A domain is described as the type that it is of.
        known = self._connection.adapters.types.get(found.description[0].type_code)
        return as_postgresql_stores(known.name) if known is not None else None

    def queued(self, queue: str) -> Iterator[tuple[str, str]]:
        return self._stream(sql.SQL(_QUEUED).format(sql.Literal(queue)))

    def routes(self) -> set[tuple[str, str, str]]:
        return set(self._all(sql.SQL(_ROUTES)))

    def close(self) -> None:
        self._connection.close()

    def _all(self, query: sql.SQL | sql.Composed) -> list[Any]:
        with self._reaching():
            found: list[Any] = self._connection.execute(query).fetchall()
        return found

    def _stream(self, query: sql.SQL | sql.Composed) -> Iterator[Any]:
        self._cursors += 1
        with self._reaching(), self._connection.cursor(name=f"relay_verify_{self._cursors}") as cursor:
            cursor.itersize = ROWS
            cursor.execute(query)
            yield from cursor

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (
            psycopg.errors.UndefinedTable,
            psycopg.errors.UndefinedColumn,
            psycopg.errors.InsufficientPrivilege,
        ) as error:
            raise _wrong(self._name, error) from error
        except psycopg.Error as error:
            raise _away(self._name, error) from error


class _Sqlite:
    """SQLite: a read transaction on a read-only connection is one snapshot."""

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        path = Path(url.removeprefix("sqlite:///")).absolute()
        with self._reaching():
            self._connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
            self._connection.text_factory = _readable
            self._connection.execute("begin")
            self._connection.execute("select count(*) from sqlite_master")

    def uuid(self) -> str:
        found = self._all("select uuid from relay_resource")
        return str(found[0][0]) if found else ""

    def captures(self, wanted: Sequence[bytes]) -> dict[bytes, Outcome]:
        return {
            bytes(capture): _OUTCOMES[outcome]
            for each in wanted
            for capture, outcome in self._all(
                "select capture, outcome from relay_capture where capture = ?", each
            )
        }

    def positions(self, relay: str, route: str) -> dict[tuple[bytes, int], int]:
        found = self._all(_POSITIONS.format("?", "?"), relay, route)
        return {(bytes(topic_id), partition): position for topic_id, partition, position in found}

    def inbox(self, relay: str, route: str) -> Iterator[InboxRow]:
        # SQLite does not say which rows were written together: each counts as a transaction of its own.
        for digest, outcome, applied, _ in self._stream(_INBOX.format("0", "?", "?"), relay, route):
            yield InboxRow(bytes(digest), outcome, applied, applied)

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Sequence[str | None]]:
        # Both names were checked as plain identifiers when the configuration was read.
        chosen = ", ".join(f'cast("{column}" as text)' for column in columns)
        name = ".".join(f'"{part}"' for part in table.split("."))
        return self._stream(f"select {chosen} from {name}")  # noqa: S608

    def as_stored(self, table: str, column: str) -> AsStored | None:
        schema, _, name = table.rpartition(".")
        found = self._all("select type from pragma_table_info(?, ?) where name = ? collate nocase", name, schema or "main", column)
        return as_sqlite_stores(found[0][0]) if found else None

    def queued(self, queue: str) -> Iterator[tuple[str, str]]:
        return self._stream(_QUEUED.format("?"), queue)

    def routes(self) -> set[tuple[str, str, str]]:
        return set(self._all(_ROUTES))

    def close(self) -> None:
        self._connection.close()

    def _all(self, query: str, *parameters: Any) -> list[Any]:
        with self._reaching():
            return self._connection.execute(query, parameters).fetchall()

    def _stream(self, query: str, *parameters: Any) -> Iterator[Any]:
        with self._reaching():
            cursor = self._connection.execute(query, parameters)
            while rows := cursor.fetchmany(ROWS):
                yield from rows

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "no such" in str(error):
                raise _wrong(self._name, error) from error
            raise _away(self._name, error) from error
        except sqlite3.Error as error:
            raise _away(self._name, error) from error


def _wrong(name: str, error: Exception) -> ConfigError:
    reason = str(error).splitlines()[0]
    return ConfigError(
        f"resource {name}: {reason}; run `relay migrate`, correct the route, or grant the right to read"
    )


def _away(name: str, error: Exception) -> Unreachable:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    helps = remedy(error) if isinstance(error, psycopg.Error) else "correct its url, or try again"
    return Unreachable(f"resource {name}: the database does not answer ({reason}); {helps}")

"""Databases with the relay's tables and a ledger, the messages that go into it, and the plan that says how."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import psycopg

from relay.delivery.table.postgresql.cursor import PostgresqlCursor
from relay.delivery.table.sqlite.cursor import SqliteCursor
from relay.delivery.table.verdicts import TablePlan
from relay.message import identity
from relay.message.record import LogMessage, LogPartition
from relay.resources.schema import statements
from relay.transfer.cursor import TableCursor, Verdict

TOPIC_ID = b"\x01" * 16
P0, P1 = LogPartition("orders", 0), LogPartition("orders", 1)
COLUMNS = {"id": "ce:id", "customer": "json:/customer", "total": "json:/total"}
LEDGER = "create table ledger (id text primary key, customer text, total bigint not null check (total >= 0))"


def message(offset: int, total: Any = None, *, name: str | None = None, partition: int = 0, **over: Any) -> LogMessage:
    name = name or f"m-{partition}-{offset}"
    value = over.pop("value", None) or orjson.dumps({"customer": "ann", "total": offset if total is None else total})
    headers = [("ce_id", name.encode()), ("ce_source", b"/checkout")]
    digest = identity.cloudevents(dict(headers), b"orders", value)
    assert digest is not None
    content = identity.content_digest(None, value)
    return LogMessage("orders", partition, offset, None, value, headers, digest, content, b"", None, 0, **over)


def outcomes(verdicts: Sequence[Verdict]) -> list[int]:
    return [verdict.outcome for verdict in verdicts]


class Store:
    """A database with the relay's tables and a ledger: makes cursors and looks at what they left."""

    url: str

    def cursor(self, **plan: Any) -> TableCursor:
        raise NotImplementedError

    def all(self, query: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def ids(self) -> list[str]:
        return [row[0] for row in self.all("select id from ledger order by id")]

    def position(self, partition: int = 0) -> int | None:
        return self.all(f"select position from relay_position where partition = {partition}")[0][0]


def plan(**over: Any) -> TablePlan:
    facts: dict[str, Any] = {"table": "ledger", "mode": "insert", "columns": COLUMNS, **over}
    return TablePlan(relay="shop", route="to-table", resource="shop", **facts)


class PostgresqlStore(Store):
    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True)
        self.cursors: list[PostgresqlCursor] = []
        for statement in (*statements("postgresql"), LEDGER):
            self.connection.execute(statement.encode())

    def cursor(self, **over: Any) -> PostgresqlCursor:
        self.cursors.append(PostgresqlCursor(self.url, plan(**over)))
        return self.cursors[-1]

    def all(self, query: str) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []



class SqliteStore(Store):
    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.cursors: list[SqliteCursor] = []
        self.connection.execute("pragma journal_mode = wal")
        for statement in (*statements("sqlite"), LEDGER):
            self.connection.execute(statement)

    def cursor(self, **over: Any) -> SqliteCursor:
        self.cursors.append(SqliteCursor(self.url, plan(**over)))
        return self.cursors[-1]

    def all(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query).fetchall()

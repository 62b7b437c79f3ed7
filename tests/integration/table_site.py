"""A PostgreSQL with the relay's tables and a ledger, and cursors on it."""

from __future__ import annotations

import time

import psycopg

from relay.delivery.table.postgresql.cursor import PostgresqlCursor
from relay.delivery.table.verdicts import Limits
from relay.resources.schema import statements
from tests.contracts.table_databases import (
    LEDGER,
    plan,
)

WAIT_S = 20.0


class Database:
    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True)
        self.cursors: list[PostgresqlCursor] = []
        for statement in (*statements("postgresql"), LEDGER):
            self.connection.execute(statement.encode())

    def cursor(self, url: str | None = None, limits: Limits | None = None, **over: object) -> PostgresqlCursor:
        self.cursors.append(PostgresqlCursor(url or self.url, plan(**over), limits))
        return self.cursors[-1]

    def one(self, query: str) -> object:
        row = self.connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]

    def do(self, query: str) -> None:
        self.connection.execute(query.encode())

    def until(self, query: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not self.one(query):
            assert time.monotonic() < deadline, f"never true: {query}"
            time.sleep(0.01)

    def close(self) -> None:
        for cursor in self.cursors:
            cursor.close()
        self.connection.close()

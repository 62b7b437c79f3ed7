"""SQL text on a simulated database: what a transaction sees is copied into SQLite, run there, and compared after.

Slow and complete: for the contract suites, whose cases are written in SQL. Simulations run functions instead.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Any

from tests.simulation.databases import Backend, StatementRefused, Table

_PARAMETER = re.compile(r"%(?:(%)|\((\w+)\)s)")
_HIDDEN = "hidden_number"


class Result:
    """What a statement returned."""

    def __init__(self, rows: list[tuple[Any, ...]], rowcount: int) -> None:
        self._rows = rows
        self.rowcount = rowcount

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows."""
        return self._rows


def run_sql(backend: Backend, text: str, params: Any = None) -> Result:
    """Run one statement inside the backend's transaction, or in one of its own."""
    word = text.strip().lower()
    if word in ("begin", "commit", "rollback"):
        getattr(backend, word)()
        return Result([], 0)
    if not backend.in_transaction:
        return backend.autocommit(lambda inside: run_sql(inside, text, params))
    scratch = sqlite3.connect(":memory:", isolation_level=None)
    try:
        _copy_in(backend, scratch)
        try:
            cursor = scratch.execute(_PARAMETER.sub(lambda m: "%" if m[1] else f":{m[2]}", text), params or ())
            rows = cursor.fetchall()
        except sqlite3.IntegrityError as error:
            raise StatementRefused("integrity_constraint_violation", str(error)) from None
        _copy_out(backend, scratch)
        return Result(rows, cursor.rowcount)
    finally:
        scratch.close()


def _copy_in(backend: Backend, scratch: sqlite3.Connection) -> None:
    for table in backend.database.tables.values():
        columns = ", ".join(f'"{name}" {kind}' for name, kind in table.columns.items())
        if table.key:
            columns += f", primary key ({', '.join(table.key)})"
        scratch.execute(f'create table "{table.name}" ({columns})')
        names = ", ".join(["rowid", *table.columns] if not table.key else table.columns)
        for key, row in backend.items(table.name):
            values = [*(key if not table.key else ()), *row.values()]
            scratch.execute(
                f'insert into "{table.name}" ({names}) values ({", ".join("?" * len(values))})', values
            )


def _copy_out(backend: Backend, scratch: sqlite3.Connection) -> None:
    database = backend.database
    names = [row[0] for row in scratch.execute("select name from sqlite_master where type = 'table'")]
    for name in [name for name in database.tables if name not in names]:
        del database.tables[name]
    for name in names:
        table = database.tables.get(name)
        if table is None:
            table = database.create(_table(scratch, name))
        before = dict(backend.items(name))
        after = {}
        for number, *values in scratch.execute(f'select rowid, * from "{name}"'):
            row = dict(zip(table.columns, values, strict=True))
            after[table.key_of(row) if table.key else (number,)] = row
        for key in [key for key in {**before, **after} if before.get(key) != after.get(key)]:
            backend.put(name, key, after.get(key))


def _table(scratch: sqlite3.Connection, name: str) -> Table:
    facts = scratch.execute("select name, type, pk from pragma_table_info(?)", (name,)).fetchall()
    references = scratch.execute('select "from", "table", "to" from pragma_foreign_key_list(?)', (name,)).fetchall()
    return Table(
        name,
        {column: kind for column, kind, _ in facts},
        tuple(column for column, _, place in facts if place),
        references=[tuple(row) for row in references],
    )

"""How rows take effect in SQLite, and its errors sorted by what a delivery must do."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, Final, Protocol

from relay.delivery.table.copy_text import json_text, moment, plain
from relay.delivery.table.row_search import RowFault
from relay.delivery.table.verdicts import TablePlan, quoted
from relay.message.errors import MessageRejected, RelayError, Retriable, Stopped

_PARAMETER: Final = re.compile(r"%(?:(%)|\((\w+)\)s)")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_ROW_FAULTS: Final = ("SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG")
_DATATYPE: Final = 3091
"""SQLITE_CONSTRAINT_DATATYPE, of a STRICT table's column."""
_VALUE_FAULTS: Final = (
    "malformed JSON", "bad JSON path", "JSON path error", "JSON cannot hold BLOB", "integer overflow",
    "LIKE or GLOB pattern", "ESCAPE expression",
)
"""SQLITE_ERROR says nothing more; these are found when a row runs, in a generated column, an index or an own statement."""
_INTEGERS_END: Final = 1 << 63
"""SQLite's integers have 64 bits, one of them the sign; beyond them a number goes as text."""
_RETRY: Final = (
    "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_INTERRUPT", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_NOMEM", "SQLITE_PROTOCOL",
    "SQLITE_SCHEMA", "SQLITE_ABORT", "SQLITE_CANTOPEN",
)
_DAMAGED: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_UNNAMED: Final = {getattr(sqlite3, name): name for name in (*_ROW_FAULTS, *_RETRY, *_DAMAGED)}
"""By the code's last byte: a kind that SQLite has and Python's module does not know is "unknown" there."""
# What the sqlite3 module itself refuses: an integer beyond 64 bits, a text that is no UTF-8, a type it does not know.
REFUSED_VALUES: Final = (OverflowError, UnicodeEncodeError, sqlite3.InterfaceError)


class RowEffect(Protocol):
    """One way of writing rows."""

    def finish(self, columns: list[list[Any]]) -> list[Any]:
        """Return the rows of a run of mapped columns in the form that ``apply`` takes."""

    def apply(self, connection: sqlite3.Connection, rows: Sequence[Any]) -> None:
        """Write rows; an error leaves some of them to be rolled back."""


class SqliteEffect:
    """Writes rows by one statement with parameters, once for each row, in their order."""

    def __init__(self, connection: sqlite3.Connection, plan: TablePlan) -> None:
        assert all(_IDENTIFIER.fullmatch(name) for name in plan.columns)
        self._names = tuple(plan.columns)
        self._own = plan.mode == "sql"
        if self._own:
            assert plan.sql is not None
            self._forms: list[Form] = [_kept if s in ("kafka:key", "kafka:value") else _plain for s in plan.columns.values()]
            self._statement = _PARAMETER.sub(lambda m: "%" if m[1] else f":{m[2]}", plan.sql)
            return
        types = _types(connection, plan)
        self._forms = [_form(types[name], source) for name, source in plan.columns.items()]
        self._statement = _insert(plan)

    def finish(self, columns: list[list[Any]]) -> list[Any]:
        """Return one tuple, or for an own statement one dictionary, for each message."""
        formed = [
            [form(value, name) for value in values]
            for values, name, form in zip(columns, self._names, self._forms, strict=True)
        ]
        rows = list(zip(*formed, strict=True))
        return [dict(zip(self._names, row, strict=True)) for row in rows] if self._own else rows

    def apply(self, connection: sqlite3.Connection, rows: Sequence[Any]) -> None:
        """Write rows; an error leaves some of them to be rolled back."""
        connection.executemany(self._statement, rows)


def _types(connection: sqlite3.Connection, plan: TablePlan) -> dict[str, str]:
    schema, _, bare = plan.table.rpartition(".")
    found = connection.execute("select name, type from pragma_table_info(?, ?)", (bare, schema or "main")).fetchall()
    if not found:
        raise Stopped(f"{plan.where} does not exist; create it, or correct the route")
    types = {name: declared.upper() for name, declared in found}
    for name in plan.columns:
        if name not in types:
            raise Stopped(f"{plan.where} has no column {name!r}; add it, or correct the route's columns")
    return types


def _insert(plan: TablePlan) -> str:
    """Compose the statement; every name is an identifier that the configuration has checked."""
    assert all(_IDENTIFIER.fullmatch(part) for part in plan.table.split("."))
    assert all(_IDENTIFIER.fullmatch(name) for name in plan.key)
    table = quoted(plan.table)
    names = ", ".join(f'"{name}"' for name in plan.columns)
    statement = f"insert into {table} ({names}) values ({', '.join('?' * len(plan.columns))})"  # noqa: S608
    if plan.mode == "insert":
        return statement
    changed = ", ".join(f'"{name}" = excluded."{name}"' for name in plan.columns if name not in plan.key)
    action = f"update set {changed}" if changed else "nothing"
    key = ", ".join(f'"{name}"' for name in plan.key)
    return f"{statement} on conflict ({key}) do {action}"


Form = Callable[[Any, str], Any]


def _form(declared: str, source: str) -> Form:
    if "BLOB" in declared:
        return _binary
    if "JSON" in declared:
        return json_text
    if source == "kafka:timestamp" and ("DATE" in declared or "TIME" in declared):
        return moment
    return _plain


def _kept(value: Any, name: str) -> Any:  # noqa: ARG001 - the signature of a form
    return value


def _binary(value: Any, name: str) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (plain(value, name) or "").encode()


def _plain(value: Any, name: str) -> Any:
    kind = type(value)
    if kind is int and not -_INTEGERS_END <= value < _INTEGERS_END:
        return str(value)
    if kind is str or kind is int or kind is float or value is None:
        return value
    if kind is bool:
        return int(value)
    return value.isoformat() if isinstance(value, date) else plain(value, name)


def judge(error: Exception, plan: TablePlan) -> RelayError | RowFault:
    """Return what to raise for an error after which the transaction is known to have had no effect."""
    if isinstance(error, REFUSED_VALUES):
        sentence = f"{plan.where} cannot take one of the row's values ({type(error).__name__})"
        return RowFault(MessageRejected("apply", "value_refused", sentence))
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if name == "unknown":
        code = getattr(error, "sqlite_errorcode", 0)
        name = "SQLITE_CONSTRAINT_DATATYPE" if code == _DATATYPE else _UNNAMED.get(code & 0xFF, name)
    if name.startswith(_ROW_FAULTS):
        # SQLite names columns and constraints here; the text of a trigger is the user's and may hold anything.
        reason = "" if name in {"SQLITE_CONSTRAINT_TRIGGER", "SQLITE_CONSTRAINT"} else f" ({error})"
        return RowFault(MessageRejected("apply", name, f"{plan.where} refuses the row: {name}{reason}"))
    if name == "SQLITE_ERROR" and str(error).startswith(_VALUE_FAULTS):
        # Without the text, which may quote the value.
        sentence = f"{plan.where} refuses the row: {name}, in a function on one of its values"
        return RowFault(MessageRejected("apply", name, sentence))
    if name.startswith(_RETRY):
        return Retriable(f"{plan.where}: {name}; nothing was written, and it is tried again")
    remedy = "correct the table, the file or the route, or run `relay migrate`, and start again"
    if name.startswith(_DAMAGED):
        remedy = (
            "the file is damaged, as one is that was replaced while it was in use: stop what uses it, put a whole copy in its place "
            "without the files of the same name that end with -wal and -shm, and start again"
        )
    return Stopped(f"route {plan.route!r}: {plan.where} cannot be written: {name} ({error}); {remedy}")

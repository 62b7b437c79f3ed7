"""How rows take effect in PostgreSQL: COPY for inserts, one statement for upserts, the route's own statement."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import psycopg
from psycopg import sql

from relay.delivery.table.copy_text import FORMS, Taking, as_json, render
from relay.delivery.table.verdicts import TablePlan, quoted
from relay.message.errors import MessageRejected, Stopped

Connection = psycopg.Connection[tuple[Any, ...]]

Row = TypeVar("Row")

_COLUMNS: Final = """
with recursive typed (name, type) as (
    select attname, atttypid from pg_attribute where attrelid = to_regclass(%(table)s) and attnum > 0 and not attisdropped
    union all select name, typbasetype from typed join pg_type on oid = type where typtype = 'd'
) select t.name, format_type(t.type, -1), b.typname, c.relkind in ('r', 'p') and not c.relhasrules and not row_security_active(c.oid)
from typed t join pg_type b on b.oid = t.type and b.typtype <> 'd' join pg_class c on c.oid = to_regclass(%(table)s)
"""
_NAMESPACE: Final = """
select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)
"""
IS_UNFILLED: Final = """
    c.relkind in ('r', 'p') and a.attnotnull and not a.atthasdef and a.attidentity = '' and t.typdefault is null
    and not exists (
        select from pg_trigger g where g.tgtype & 7 = 7 and g.tgenabled <> 'D'
            and (g.tgrelid = c.oid or g.tgrelid in (select relid from pg_partition_tree(c.oid)))
    )
"""
"""Must a column ``a`` of a table ``c`` be given its value? Its type ``t`` may have a default, and a trigger before inserts of rows give one."""
_UNMAPPED: Final = f"""
select a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_type t on t.oid = a.atttypid
where a.attrelid = to_regclass(%(table)s) and a.attnum > 0 and not a.attisdropped and a.attname <> all(%(mapped)s) and {IS_UNFILLED}
order by a.attnum limit 1
"""  # noqa: S608 - no value is in it
"""A column that no row has a value for."""
_NUMBERED: Final = """
select x.relname, a.attname
from pg_index i join pg_class x on x.oid = i.indexrelid
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])
where i.indisunique and a.attname <> all(%(mapped)s)
    and (i.indrelid = to_regclass(%(table)s) or i.indrelid in (select relid from pg_partition_tree(to_regclass(%(table)s))))
    and (a.attidentity <> '' or exists (
        select from pg_attrdef d
        join pg_depend p on p.classid = 'pg_attrdef'::regclass and p.objid = d.oid and p.refclassid = 'pg_class'::regclass
        join pg_class s on s.oid = p.refobjid and s.relkind = 'S'
        where d.adrelid = a.attrelid and d.adnum = a.attnum
    ))
"""
"""Unique indexes with a column whose value no row brings: a sequence numbers it."""
_TAKING: Final = {
    "bytea": Taking.BINARY,
    "json": Taking.JSON,
    "jsonb": Taking.JSON,
    "timestamptz": Taking.TIME,
    "timestamp": Taking.TIME,
    "date": Taking.TIME,
}
_UNIQUE: Final = "23505"
_SMALLER: Final = 16
_UNBOUNDED: Final = 1 << 62
_OWN_AT_ONCE: Final = 500
"""Rows of an own statement between two answers: each has its own time, so no timeout would ever make them fewer."""
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class Effect(Protocol):
    """One mode of writing. ``finish`` runs in any thread; ``apply``, also of no row, and ``is_current`` raise psycopg's errors."""

    def finish(self, columns: list[list[Any]]) -> list[Any]:
        """Return the rows of a run of mapped columns in the form that ``apply`` takes."""

    def apply(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Write rows, in their order."""

    def is_current(self, connection: Connection) -> bool:
        """Is the table what it was when this was made? Asked behind the rows, whose locks keep it so until COMMIT."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A mapped column of the table: its type without length or precision, and how it takes values.

    Tables with row security, and views, take no COPY; nor do tables whose rules rewrite inserts notice one.
    """

    name: str
    type: str
    taking: Taking
    by_copy: bool


def qualified(connection: Connection, table: str, plan: TablePlan) -> sql.Identifier:
    """Return a table's full name, so that no later change of the search path leads elsewhere; Stopped if there is none."""
    row = connection.execute(_NAMESPACE, [quoted(table)]).fetchone()
    if row is None:
        remedy = "run `relay migrate`" if table.startswith("relay_") else "create it, or correct the route"
        raise Stopped(
            f"route {plan.route!r}: table {table!r} of resource {plan.resource!r} does not exist for the worker's role; {remedy}"
        )
    return sql.Identifier(*row)


def table_columns(connection: Connection, table: str, plan: TablePlan) -> list[TableColumn]:
    """Read the types of a plan's columns from the catalog; Stopped if one is missing."""
    found = {row[0]: row for row in connection.execute(_COLUMNS, {"table": quoted(table)})}
    if not found:
        qualified(connection, table, plan)  # it may be gone since it was looked for last
    columns = []
    for name, source in plan.columns.items():
        if name not in found:
            raise Stopped(f"{plan.where} has no column {name!r}; add it, or correct the route's columns")
        taking = _TAKING.get(found[name][2], Taking.PLAIN)
        if taking is Taking.TIME and source != "kafka:timestamp":
            taking = Taking.PLAIN
        columns.append(TableColumn(name, found[name][1], taking, found[name][3]))
    return columns


def stop_if_no_row_fits(connection: Connection, plan: TablePlan) -> None:
    """Raise Stopped if the table has a column that must have a value, and gets none: whatever a row has, it is refused."""
    if plan.mode == "sql" or not plan.table:
        return
    row = connection.execute(_UNMAPPED, {"table": quoted(plan.table), "mapped": list(plan.columns)}).fetchone()
    if row is not None:
        raise Stopped(
            f"route {plan.route!r}: column {row[0]!r} of {plan.where} must not be null, has no default and is not mapped, so that no "
            "row goes through; map it, or give it a default, and start again"
        )


def stop_if_numbers_are_taken(connection: Connection, plan: TablePlan, found: Collection[MessageRejected]) -> None:
    """Raise Stopped if a row is refused for the number that a sequence gave it: the next one's may be taken as well."""
    refused = {one.constraint for one in found if one.code == _UNIQUE}
    if not refused or plan.mode == "sql" or not plan.table:
        return
    rows = connection.execute(_NUMBERED, {"table": quoted(plan.table), "mapped": list(plan.columns)})
    for constraint, column in rows.fetchall():
        if constraint in refused:
            raise Stopped(
                f"route {plan.route!r}: {plan.where} has rows already with numbers that the sequence of its column {column!r} gives, "
                f"which constraint {constraint} refuses; set the sequence beyond them (setval), and start again"
            )


def effect(connection: Connection, plan: TablePlan) -> Effect:
    """Return the effect of a plan, with the types of its table as they are now."""
    assert all(_IDENTIFIER.fullmatch(name) for name in plan.columns)
    if plan.mode == "sql":
        assert plan.sql is not None
        return OwnStatement(plan.sql, plan)
    table, columns = qualified(connection, plan.table, plan), table_columns(connection, plan.table, plan)
    if plan.mode == "insert" and all(column.by_copy for column in columns):
        return Copy(connection, table, columns, plan)
    return Unnested(connection, table, columns, plan)


class _Columns:
    """The columns of a plan's table, with their types as they were."""

    def __init__(self, columns: list[TableColumn], plan: TablePlan) -> None:
        self._columns = columns
        self._plan = plan

    def is_current(self, connection: Connection) -> bool:
        """Has no mapped column another type by now, and is the table written to as before?

        A cast to the former type would cut values off, or refuse them.
        """
        return table_columns(connection, self._plan.table, self._plan) == self._columns


class Copy(_Columns):
    """Inserts by COPY: a row is a line of text."""

    def __init__(
        self, connection: Connection, table: sql.Identifier, columns: list[TableColumn], plan: TablePlan
    ) -> None:
        super().__init__(columns, plan)
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
        statement = sql.SQL("copy {} ({}) from stdin (format text, encoding 'UTF8')").format(table, names)
        self._statement = statement.as_bytes(connection)

    def finish(self, columns: list[list[Any]]) -> list[Any]:
        """Return one line for each message."""
        fields = [render(values, c.name, c.taking) for values, c in zip(columns, self._columns, strict=True)]
        return list(map("\t".join, zip(*fields, strict=True)))

    def apply(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Send all lines as one piece."""
        if not rows:
            return
        with connection.cursor() as cursor, cursor.copy(self._statement) as copy:
            copy.write(("\n".join(rows) + "\n").encode())


class Unnested(_Columns):
    """Inserts or upserts from arrays of text, each cast to its column's type without length or precision.

    The length and the precision are left to the assignment: a cast to them would cut a value off in silence.
    Of several rows of one key in one batch only the last is written, as if each had replaced the one before.
    """

    def __init__(
        self, connection: Connection, table: sql.Identifier, columns: list[TableColumn], plan: TablePlan
    ) -> None:
        super().__init__(columns, plan)
        key = plan.key if plan.mode == "upsert" else ()
        names = [column.name for column in columns]
        self._key = [names.index(name) for name in key]
        casts = (
            sql.SQL("{}::").format(sql.Identifier(f"v{i}")) + sql.SQL(_type(column.type))
            for i, column in enumerate(columns)
        )
        statement = sql.SQL(
            "insert into {table} ({names}) select {casts} from unnest({arrays}) with ordinality as u ({values}, i) order by i"
        ).format(
            table=table,
            names=sql.SQL(", ").join(map(sql.Identifier, names)),
            casts=sql.SQL(", ").join(casts),
            arrays=sql.SQL(", ").join([sql.SQL("%s::text[]")] * len(names)),
            values=sql.SQL(", ").join(sql.Identifier(f"v{i}") for i in range(len(names))),
        )
        if key:
            statement += _on_conflict(names, key)
        self._statement = statement.as_bytes(connection)

    def finish(self, columns: list[list[Any]]) -> list[Any]:
        """Return one tuple of texts for each message."""
        texts = []
        for values, column in zip(columns, self._columns, strict=True):
            form = FORMS[column.taking]
            texts.append([form(value, column.name) for value in values])
        return list(zip(*texts, strict=True))

    def apply(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Write all rows in one statement."""
        if not rows:
            return
        if self._key:
            # Removed and added again, a key stands where its last row stood.
            last: dict[tuple[Any, ...], Any] = {}
            for n, row in enumerate(rows):
                key = tuple([row[i] for i in self._key])
                if None in key:
                    key = (n,)  # NULL equals nothing: such a row replaces none, in the table neither
                last.pop(key, None)
                last[key] = row
            rows = list(last.values())
        connection.execute(self._statement, [list(column) for column in zip(*rows, strict=True)])


def _on_conflict(names: Sequence[str], key: Sequence[str]) -> sql.Composed:
    target = sql.SQL(", ").join(map(sql.Identifier, key))
    changed = [name for name in names if name not in key]
    if not changed:
        return sql.SQL(" on conflict ({}) do nothing").format(target)
    settings = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in changed)
    return sql.SQL(" on conflict ({}) do update set {}").format(target, settings)


def _type(name: str) -> str:
    """Return a type's name as the catalog itself quotes it; it comes from format_type, never from a message."""
    assert ";" not in name
    assert "%" not in name
    return name


class OwnStatement:
    """The route's own statement, once for each message, with the message's values as parameters."""

    def __init__(self, statement: str, plan: TablePlan) -> None:
        self._statement = statement.strip().rstrip(";").encode()
        self._names = tuple(plan.columns)
        # The types are the statement's business: bytes of the record stay bytes, headers are text.
        self._forms: list[Callable[[Any, str], Any]] = [
            _kept if source in ("kafka:key", "kafka:value") else _parameter for source in plan.columns.values()
        ]

    def finish(self, columns: list[list[Any]]) -> list[Any]:
        """Return one dictionary of parameters for each message."""
        formed = [
            [form(value, name) for value in values]
            for values, name, form in zip(columns, self._names, self._forms, strict=True)
        ]
        return [dict(zip(self._names, row, strict=True)) for row in zip(*formed, strict=True)]

    def apply(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Run the statement for every row; psycopg pipelines them."""
        if not rows:
            return
        with connection.cursor() as cursor:
            cursor.executemany(self._statement, rows)

    def is_current(self, connection: Connection) -> bool:  # noqa: ARG002 - the statement has its own types
        """The server plans the statement anew when a table of it changes."""
        return True


def _kept(value: Any, name: str) -> Any:  # noqa: ARG001 - the signature of a form
    return value


def _parameter(value: Any, name: str) -> Any:
    if isinstance(value, dict | list):
        return as_json(value, name)
    return FORMS[Taking.PLAIN](value, name) if isinstance(value, bytes) else value


class TooSlow(Exception):
    """A statement of many rows ran into its timeout, as it would again; the transaction is void."""


class RowTooSlow(Exception):
    """A statement of one row, the one at this place, ran into its timeout."""

    def __init__(self, at: int, canceled: psycopg.errors.QueryCanceled) -> None:
        super().__init__(str(canceled))
        self.at = at
        self.canceled = canceled


class Pieces:
    """Writes rows of a batch, as many at once as the time of one statement allows.

    After a timeout it is a sixteenth of them, again and again if it must be, for so many batches. Each piece that is
    answered is progress: all of them may take longer than any wait for the batch's answer.
    """

    def __init__(self, batches: int, progressed: Callable[[], object]) -> None:
        self._batches = batches
        self._progressed = progressed
        self._small_for = 0
        self._rows_at_once = _UNBOUNDED

    def begin_batch(self) -> None:
        """Count the batches for which the pieces stay small."""
        self._small_for -= 1
        if self._small_for < 0:
            self._rows_at_once = _UNBOUNDED

    def write(self, connection: Connection, by: Effect, rows: Sequence[Any]) -> None:
        """Write rows by their effect; raises as ``each``, and RowTooSlow for one that was alone."""
        done = 0

        def apply(some: Sequence[Any]) -> None:
            nonlocal done
            by.apply(connection, some)
            done += len(some)

        try:
            self.each(rows, apply, _OWN_AT_ONCE if isinstance(by, OwnStatement) else _UNBOUNDED)
        except psycopg.errors.QueryCanceled as canceled:
            raise RowTooSlow(done, canceled) from None

    def each(self, rows: Sequence[Row], apply: Callable[[Sequence[Row]], object], most: int = _UNBOUNDED) -> None:
        """Apply rows piece by piece, in their order.

        Raises TooSlow when they are to be tried again in smaller pieces, and what ``apply`` raises.
        """
        size = max(1, min(len(rows), self._rows_at_once, most))
        try:
            for start in range(0, len(rows), size):
                if start:
                    self._progressed()
                apply(rows[start : start + size])
        except psycopg.errors.QueryCanceled:
            if size == 1:
                raise
            self._rows_at_once, self._small_for = max(1, size // _SMALLER), self._batches
            raise TooSlow from None

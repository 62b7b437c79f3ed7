"""What a database must offer: the relay's own tables, and tables that take what a route writes to them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, LiteralString
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from relay.config.model import ResourceConfig, TableDestination
from relay.delivery.table.postgresql.effects import IS_UNFILLED
from relay.delivery.table.verdicts import quoted
from relay.message.errors import Unreachable
from relay.resources.addresses import address
from relay.resources.postgresql import remedy
from relay.resources.schema import own_columns
from relay.setup.check_topics import Findings

_CONNECT_S: Final = 5

OWN_TABLES: Final = {
    "relay_resource": ("select",),
    "relay_capture": ("select", "insert", "update", "delete"),
    "relay_position": ("select", "insert", "update", "delete"),
    "relay_inbox": ("select", "insert", "update", "delete"),
    "relay_range": ("select", "insert", "update", "delete"),
    "relay_attempt": ("select", "insert", "delete"),
    "relay_correlation": ("select", "insert", "update", "delete"),
}
"""The relay's own tables and the rights that the worker's role needs on them; none of them is DDL."""

_RIGHTS: Final = """
select owned, granted, to_regclass(owned) is not null, coalesce(has_table_privilege(to_regclass(owned), granted), false)
from unnest(%s::text[], %s::text[]) as wanted (owned, granted)
"""

_OWN_COLUMNS: Final = """
select owned, wanted.name from unnest(%s::text[], %s::text[]) as wanted (owned, name)
where to_regclass(owned) is not null
  and not exists (select from pg_attribute where attrelid = to_regclass(owned) and attname = wanted.name and not attisdropped)
"""
_COLUMNS: Final = f"""
select a.attname, {IS_UNFILLED},
       has_column_privilege(a.attrelid, a.attnum, 'insert'), has_column_privilege(a.attrelid, a.attnum, 'update'),
       has_column_privilege(a.attrelid, a.attnum, 'select'), a.attgenerated <> '', a.attidentity = 'a',
       coalesce((
           select s.oid::regclass::text from pg_attrdef d
           join pg_depend p on p.classid = 'pg_attrdef'::regclass and p.objid = d.oid and p.refclassid = 'pg_class'::regclass
           join pg_class s on s.oid = p.refobjid
           where d.adrelid = a.attrelid and d.adnum = a.attnum
             and case when s.relkind = 'S' then not has_sequence_privilege(s.oid, 'usage, update') end limit 1
       ), '')
from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_type t on t.oid = a.atttypid
where a.attrelid = %s::oid and a.attnum > 0 and not a.attisdropped
"""  # noqa: S608 - no value is in it
_TAKES_ROWS: Final = """
select case when relkind in ('r', 'p', 'f') then true else pg_relation_is_updatable(oid, true) & 8 <> 0 end from pg_class where oid = %s::oid
"""
"""Do inserts go through? The server tells of views, with their triggers, and of whatever else there is."""
_SQLITE_VIEW: Final = """
select 1 from sqlite_schema where type = 'view' and name = ?1 collate nocase
and not exists (select 1 from sqlite_schema where type = 'trigger' and tbl_name = ?1 collate nocase)
"""
"""In SQLite a view takes rows by a trigger only."""
_UNIQUE: Final = """
select array_agg(a.attname::text) from pg_index i join pg_attribute a
  on a.attrelid = i.indrelid and a.attnum = any((i.indkey::smallint[])[0:i.indnkeyatts - 1])
where i.indrelid = %s::oid and i.indisunique and i.indpred is null and i.indexprs is null and i.indisvalid and i.indimmediate
group by i.indexrelid
"""
"""Those that an upsert may match by: neither deferrable nor left behind by a build that failed, and without included columns."""
_ELSEWHERE: Final = """
select c.oid::regclass::text, c.relkind = 'f' from pg_class c
where (c.oid = %(oid)s::oid or c.oid in (select relid from pg_partition_tree(%(oid)s::oid)))
  and (c.relkind = 'f' or c.relpersistence <> 'p') order by 1
"""
"""A table and its partitions, as far as their rows do not last as the inbox does, which says they were delivered."""
_GAPS: Final = """
select partrelid::regclass::text from pg_partitioned_table
where (partrelid = %(oid)s::oid or partrelid in (select relid from pg_partition_tree(%(oid)s::oid)))
  and partstrat <> 'h' and partdefid = 0 order by 1
"""
"""A table and its partitions, as far as they are partitioned by ranges or lists and have no default for all other rows."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the database describes it to the worker's role; a ``numbered`` one takes a value by COPY only (identity, always).

    ``sequence`` is that of its default, if the role has no right to it.
    """

    required: bool
    insert: bool = True
    update: bool = True
    select: bool = True
    generated: bool = False
    numbered: bool = False
    sequence: str = ""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table as the worker's role sees it; ``unique`` are the column sets of its unique indexes.

    ``unlogged`` and ``foreign`` name it, or partitions of it, if a crash empties them or another database holds them;
    ``gaps`` those that have no partition for some rows. A view, or whatever else it is, may not ``takes_rows``.
    """

    columns: dict[str, Column]
    unique: list[frozenset[str]]
    unlogged: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    takes_rows: bool = True


def judge_table(to: TableDestination, facts: TableFacts | None, key: str, findings: Findings) -> None:
    """Compare a destination with its table; None means that there is no such table. No I/O."""
    if facts is None:
        remedy = "create it, correct the name or write schema.table; and let the role see its schema"
        findings.fault(f"{key}.table", repr(to.table), f"resource {to.resource} has no such table", remedy)
        return
    if not facts.takes_rows:
        remedy = "deliver into a table, or into a view that can be written to"
        findings.fault(f"{key}.table", repr(to.table), "it is no table, and takes no rows", remedy)
        return
    _judge_lasting(to, facts, key, findings)
    findings.notes.extend(
        f"{key}.table = {to.table!r}: {name} has no default partition; a message that no partition is for becomes a dead letter "
        "(23514): make partitions ahead of time, or a default one"
        for name in facts.gaps
    )
    for name in to.columns:
        column = facts.columns.get(name)
        if column is None:
            findings.fault(
                f"{key}.columns.{name}", to.columns[name], f"{to.table} has no such column", "correct it"
            )
            continue
        if column.generated or (column.numbered and to.mode == "upsert"):
            problem, remedy = f"{to.table} makes its value by itself (generated always)", f"do not map {name}, or make it a plain column"
            findings.fault(f"{key}.columns.{name}", to.columns[name], problem, remedy)
        missing = [] if column.insert else ["insert"]
        if to.mode == "upsert":
            # ON CONFLICT reads the columns of the key; of the others, PostgreSQL counts EXCLUDED as a look at the table.
            missing += [] if column.select else ["select"]
            missing += [] if column.update or name in to.key else ["update"]
        if missing:
            rights = " and ".join(missing)
            remedy = f"grant {rights} on {to.table} to the role of resources.{to.resource}.url"
            findings.fault(
                f"{key}.columns.{name}", to.columns[name], f"the right to {rights} is missing", remedy
            )
    for name, column in facts.columns.items():
        if column.required and name not in to.columns:
            problem = f"{to.table}.{name} must not be null, has no default and is not mapped"
            findings.fault(f"{key}.columns", "", problem, f"map {name}, or give it a default")
        elif column.sequence and name not in to.columns:
            problem = f"the default of {to.table}.{name} is a number of {column.sequence}, and the right to usage is missing"
            remedy = f"grant usage on sequence {column.sequence} to the role of resources.{to.resource}.url"
            findings.fault(f"{key}.columns", "", problem, remedy)
    if to.mode == "upsert" and frozenset(to.key) not in facts.unique:
        remedy = f"create a unique index on exactly ({', '.join(to.key)})"
        findings.fault(f"{key}.key", repr(to.key), f"{to.table} has no unique index on it", remedy)


def _judge_lasting(to: TableDestination, facts: TableFacts, key: str, findings: Findings) -> None:
    """The inbox outlives a crash and says that its messages were delivered: their rows must outlive it, too."""
    for name in facts.unlogged:
        problem = f"{name} is unlogged: a crash of the server empties it, and nothing is delivered again"
        findings.fault(f"{key}.table", repr(to.table), problem, f"alter table {name} set logged")
    for name in facts.foreign:
        problem = f"{name} is a foreign table: its rows are not committed together with the inbox"
        remedy = "deliver into a table of this database, or make the other database a resource of its own"
        findings.fault(f"{key}.table", repr(to.table), problem, remedy)


def look_at(name: str, resource: ResourceConfig, table: str) -> TableFacts | None:
    """Return the facts of a table, or None if there is none that the role may see; Unreachable if the database does not answer."""
    url = resource.url.get_secret_value()
    if resource.kind == "sqlite":
        return _sqlite_table(name, url, table)
    try:
        with psycopg.connect(autocommit=True, **address(url)) as connection:
            return _postgres_table(connection, table)
    except psycopg.errors.InsufficientPrivilege:
        return None  # a schema that the role may not use is not even asked whether it has the table
    except psycopg.OperationalError as error:
        raise away(name, url, error) from None


def judge_own_tables(name: str, resource: ResourceConfig, findings: Findings) -> None:
    """Look for the relay's own tables and the rights on them; Unreachable if the database does not answer."""
    url = resource.url.get_secret_value()
    if resource.kind == "sqlite":
        for table in OWN_TABLES:
            facts = _sqlite_table(name, url, table)
            if facts is None:
                findings.fault(f"resources.{name}", table, "the table does not exist", "run `relay migrate`")
            else:
                _judge_age(name, table, own_columns()[table] - facts.columns.keys(), findings)
        path = url.removeprefix("sqlite:///")
        if Path(path).exists() and not os.access(path, os.W_OK):
            findings.fault(
                f"resources.{name}.url", path, "the file cannot be written", "change its permissions"
            )
        return
    wanted = [(table, right) for table, rights in OWN_TABLES.items() for right in rights]
    missing: dict[str, list[str]] = {}
    for table, right, exists, granted in _ask(
        name, url, _RIGHTS, [list(part) for part in zip(*wanted, strict=True)]
    ):
        if not exists:
            missing[table] = []
        elif not granted:
            missing.setdefault(table, []).append(right)
    for table, rights in missing.items():
        if rights:
            words = ", ".join(rights)
            remedy = f"grant {words} on {table} to the role of resources.{name}.url"
            findings.fault(f"resources.{name}", table, f"the right to {words} is missing", remedy)
        else:
            remedy = "run `relay migrate`, and let the role see the schema it creates them in"
            findings.fault(f"resources.{name}", table, "the table does not exist", remedy)
    columns = [(table, column) for table in OWN_TABLES for column in own_columns()[table]]
    for table, column in _ask(name, url, _OWN_COLUMNS, [list(part) for part in zip(*columns, strict=True)]):
        _judge_age(name, table, [column], findings)


def _judge_age(name: str, table: str, lacking: Iterable[str], findings: Findings) -> None:
    for column in sorted(lacking):
        problem = "the column does not exist: the table is an earlier version's"
        findings.fault(f"resources.{name}", f"{table}.{column}", problem, "run `relay migrate`")


def judge_writable(name: str, resource: ResourceConfig, findings: Findings) -> None:
    """Find a server or role that only reads: whoever writes there waits for that to change; Unreachable if there is no answer."""
    query = "select current_setting('transaction_read_only') = 'on', pg_is_in_recovery()"
    ((reads_only, is_standby),) = _ask(name, resource.url.get_secret_value(), query, [])
    if is_standby:
        remedy = "write the primary's address, or the hosts of all with target_session_attrs=read-write"
        findings.fault(f"resources.{name}", "", "the server is a standby, which takes no writes", remedy)
    elif reads_only:
        remedy = "take it back where it was set (alter role, alter database, the server's configuration, the address)"
        findings.fault(f"resources.{name}", "default_transaction_read_only = on", "nothing can be written", remedy)


def postgres_notes(name: str, resource: ResourceConfig) -> list[str]:
    """Return what is said about a PostgreSQL resource although it is no fault."""
    query = "select current_setting('synchronous_commit'), current_setting('synchronous_standby_names')"
    ((commit, standbys),) = _ask(name, resource.url.get_secret_value(), query, [])
    notes = []
    if commit == "off":
        notes.append(
            f"resource {name} has synchronous_commit = off; the relay's own transactions set it to on"
        )
    if not standbys:
        notes.append(
            f"resource {name} has no synchronous standby: promoting an asynchronous one may lose decided captures "
            "and delivered effects, which is outside the promise"
        )
    return notes


def _ask(name: str, url: str, query: LiteralString, parameters: list[Any]) -> list[tuple[Any, ...]]:
    try:
        with psycopg.connect(autocommit=True, **address(url)) as connection:
            return connection.execute(query, parameters).fetchall()
    except psycopg.OperationalError as error:
        raise away(name, url, error) from None


def away(name: str, url: str, error: psycopg.Error) -> Unreachable:
    """Return the sentence for a database that does not answer, without its user and password."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    try:
        facts = conninfo_to_dict(url)
        where = f"{facts.get('host', 'localhost')}:{facts.get('port', 5432)}/{facts.get('dbname', '')}"
        if facts.get("password"):
            reason = reason.replace(str(facts["password"]), "(hidden)")
    except psycopg.Error:
        where, reason = "(hidden)", type(error).__name__
    return Unreachable(
        f"resources.{name}.url = {where}: no answer ({reason}); {remedy(error)}"
    )


def _postgres_table(connection: psycopg.Connection, table: str) -> TableFacts | None:
    found = connection.execute("select to_regclass(%s)::oid", [quoted(table)]).fetchone()
    if found is None or found[0] is None:
        return None
    oid = found[0]
    columns = {row[0]: Column(*row[1:]) for row in connection.execute(_COLUMNS, [oid])}
    unique = [frozenset(row[0]) for row in connection.execute(_UNIQUE, [oid])]
    elsewhere = connection.execute(_ELSEWHERE, {"oid": oid}).fetchall()
    unlogged, foreign = (tuple(name for name, far in elsewhere if far is kind) for kind in (False, True))
    gaps = tuple(name for (name,) in connection.execute(_GAPS, {"oid": oid}))
    takes_rows = connection.execute(_TAKES_ROWS, [oid]).fetchone() == (True,)
    return TableFacts(columns, unique, unlogged, foreign, gaps, takes_rows)


def _sqlite_table(name: str, url: str, table: str) -> TableFacts | None:
    path = Path(url.removeprefix("sqlite:///"))
    if not path.exists():
        # A file that was never migrated is a database without tables, not one that is away.
        return None
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_CONNECT_S)
    except sqlite3.OperationalError as error:
        raise _sqlite_away(name, path, error) from None
    schema, _, bare = table.rpartition(".")
    try:
        info = connection.execute(
            'select name, "notnull", dflt_value, pk, type from pragma_table_info(?, ?)',
            (bare, schema or "main"),
        )
        rows = info.fetchall()
        if not rows:
            return None
        indexes = connection.execute(
            'select name, origin from pragma_index_list(?, ?) where "unique" = 1 and not partial',
            (bare, schema or "main"),
        ).fetchall()
        unique = [
            frozenset(row[0] for row in connection.execute("select name from pragma_index_info(?)", (index,)))
            for index, _ in indexes
        ]
        takes_rows = connection.execute(_SQLITE_VIEW, (bare,)).fetchone() is None
    except sqlite3.DatabaseError as error:  # also: not a database at all
        raise _sqlite_away(name, path, error) from None
    finally:
        connection.close()
    primary = frozenset(row[0] for row in rows if row[3])
    if primary:
        unique.append(primary)
    # A key that has no index is the rowid, to which SQLite gives a number by itself.
    rowid = primary if "pk" not in {origin for _, origin in indexes} else frozenset()
    columns = {row[0]: Column(required=bool(row[1]) and row[2] is None and row[0] not in rowid) for row in rows}
    return TableFacts(columns, unique, takes_rows=takes_rows)


def _sqlite_away(name: str, path: Path, error: sqlite3.Error) -> Unreachable:
    return Unreachable(
        f"resources.{name}.url = {path}: the file cannot be opened ({error}); {_SQLITE_REMEDY}"
    )


_SQLITE_REMEDY: Final = "run `relay migrate`, or correct the path"

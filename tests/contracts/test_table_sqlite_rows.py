"""The table cursor on SQLite: values that its functions refuse, numbers beyond its own, and deferred foreign keys."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.delivery.table.row_search import RowFault
from relay.delivery.table.sqlite.effects import judge
from relay.message.errors import Retriable, Stopped
from relay.message.record import LogMessage
from relay.transfer.cursor import DEAD, DELIVERED
from tests.contracts.table_databases import P0, TOPIC_ID, SqliteStore, Store, message, outcomes, plan


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = SqliteStore(tmp_path / "shop.db")
    yield store
    for cursor in store.cursors:
        cursor.close()
    store.connection.close()


@pytest.mark.parametrize(
    "ddl",
    [
        "create table docs (id text primary key, doc text, total as (json_extract(doc, '$.total')))",
        "create table docs (id text primary key, doc text, total as (json_extract(doc, '$.total')) stored)",
    ],
)
def test_a_value_that_a_function_of_the_table_refuses_condemns_its_row_only(store: Store, ddl: str) -> None:
    store.all(ddl)
    store.all("create index docs_total on docs (total)")
    cursor = store.cursor(table="docs", columns={"id": "ce:id", "doc": "kafka:value"})
    cursor.claim({P0: TOPIC_ID})
    batch = [message(0), message(1, value=b"canary"), message(2)]
    verdicts = cursor.deliver({P0: 3}, cursor.prepare(batch))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
    assert store.all("select id from docs order by id") == [("m-0-0",), ("m-0-2",)]


@pytest.mark.parametrize("mode", ["insert", "sql"])
def test_whole_numbers_beyond_its_integers_are_written_as_text(store: Store, mode: str) -> None:
    store.all("create table wide (id text primary key, n text, free any) strict")
    own = {"sql": "insert into wide values (%(id)s, %(n)s, %(free)s)"} if mode == "sql" else {}
    columns = {"id": "ce:id", "n": "json:/n", "free": "json:/n"}
    cursor = store.cursor(table="wide", mode=mode, columns=columns, **own)
    cursor.claim({P0: TOPIC_ID})
    numbers = [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, -(2**64)]
    batch = [message(i, value=b'{"n": %d}' % number) for i, number in enumerate(numbers)]
    assert outcomes(cursor.deliver({P0: 7}, cursor.prepare(batch))) == [DELIVERED] * 7
    free = [n if -(2**63) <= n < 2**63 else str(n) for n in numbers]
    expected = [(str(n), other) for n, other in zip(numbers, free, strict=True)]
    assert store.all("select n, free from wide order by id") == expected


@pytest.mark.parametrize("mode", ["insert", "upsert", "sql"])
def test_a_value_of_another_type_than_a_strict_tables_column_condemns_its_row_only(store: Store, mode: str) -> None:
    store.all("create table firm (id text primary key, n integer) strict")
    how = {"sql": {"sql": "insert into firm values (%(id)s, %(n)s)"}, "upsert": {"key": ("id",)}}.get(mode, {})
    cursor = store.cursor(table="firm", mode=mode, columns={"id": "ce:id", "n": "json:/n"}, **how)
    cursor.claim({P0: TOPIC_ID})
    batch = [message(n, value=orjson.dumps({"n": value})) for n, value in enumerate([1, "canary", 2])]
    verdicts = cursor.deliver({P0: 3}, cursor.prepare(batch))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
    assert verdicts[1].cause is not None
    assert verdicts[1].cause.code == "SQLITE_CONSTRAINT_DATATYPE"
    assert "canary" not in str(verdicts[1].cause)
    assert store.all("select n from firm order by id") == [(1,), (2,)]


def test_a_function_of_an_own_statement_that_refuses_a_value_condemns_its_row_only(store: Store) -> None:
    own = "insert into ledger values (%(id)s, json_extract('{\"a\": \"ann\"}', %(path)s), 1)"
    cursor = store.cursor(mode="sql", sql=own, columns={"id": "ce:id", "path": "json:/path"})
    cursor.claim({P0: TOPIC_ID})
    batch = [message(n, value=orjson.dumps({"path": path})) for n, path in enumerate(["$.a", "canary", "$.a"])]
    verdicts = cursor.deliver({P0: 3}, cursor.prepare(batch))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
    assert "canary" not in str(verdicts[1].cause)


COLUMNS = {"id": "json:/id", "parent": "json:/parent", "n": "json:/n"}
OWN = "insert into tree (id, parent, n) values (%(id)s, %(parent)s, %(n)s)"
MODES: dict[str, dict[str, Any]] = {
    "insert": {"mode": "insert"}, "upsert": {"mode": "upsert", "key": ("id",)}, "sql": {"mode": "sql", "sql": OWN},
}  # fmt: skip
BAD = ("bad", "root", -1)
ORPHAN = ("orphan", "nobody", 1)
BATCHES = {
    "an orphan": [("good", "root", 1), ORPHAN, ("better", "root", 1)],
    "orphans among many": [*[(f"r{i}", "root", 1) for i in range(40)], ORPHAN, ("bad", "no one", 1), ("last", "root", 1)],
    "an orphan and a bad one": [("good", "root", 1), ORPHAN, BAD, ("better", "root", 1)],
    "a parent behind it and an orphan": [("child", "parent", 1), ORPHAN, ("parent", "root", 1)],
    "a chain, last first": [("c", "b", 1), ("b", "a", 1), ORPHAN, ("a", "root", 1), BAD],
    "a parent behind it and a bad one": [("child", "parent", 1), BAD, ("parent", "root", 1)],
    "those of an orphan": [("grandchild", "orphan", 1), ORPHAN, ("good", "root", 1), ("child", "good", 1)],
    "orphans only": [ORPHAN, ("bad", "no one", 1)],
}
DIE = {"bad", "orphan", "grandchild"}


def tree(store: Store) -> None:
    store.all(
        "create table tree (id text unique, parent text references tree (id) deferrable initially deferred,"
        " n integer check (n >= 0), place integer primary key)"
    )
    store.all("insert into tree (id) values ('root')")


def rows(given: list[tuple[str, str, int]]) -> list[LogMessage]:
    return [message(i, value=orjson.dumps(dict(zip(COLUMNS, row, strict=True)))) for i, row in enumerate(given)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", BATCHES)
def test_a_deferred_foreign_key_condemns_its_row_only(store: Store, batch: str, mode: str) -> None:
    tree(store)
    cursor = store.cursor(table="tree", columns=COLUMNS, **MODES[mode])
    cursor.claim({P0: TOPIC_ID})
    given = BATCHES[batch]

    verdicts = cursor.deliver({P0: 50}, cursor.prepare(rows(given)))

    assert outcomes(verdicts) == [DEAD if row[0] in DIE else DELIVERED for row in given]
    found = store.all("select id from tree where id <> 'root' order by place")
    assert [row[0] for row in found] == [row[0] for row in given if row[0] not in DIE], "in the order of delivery"
    assert store.position() == 50
    orphan = next(verdict for row, verdict in zip(given, verdicts, strict=True) if row[0] in DIE)
    assert orphan.cause is not None
    assert orphan.cause.code in {"SQLITE_CONSTRAINT_FOREIGNKEY", "SQLITE_CONSTRAINT_CHECK"}


def test_what_was_violated_before_is_nobodys_fault(store: Store) -> None:
    tree(store)
    store.all("pragma foreign_keys = off")
    store.all("insert into tree (id, parent) values ('old', 'gone')")
    cursor = store.cursor(table="tree", columns=COLUMNS)
    cursor.claim({P0: TOPIC_ID})
    verdicts = cursor.deliver({P0: 3}, cursor.prepare(rows(BATCHES["an orphan"])))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]


def test_a_later_row_of_the_same_key_stays_the_later_one(store: Store) -> None:
    tree(store)
    cursor = store.cursor(table="tree", columns=COLUMNS, **MODES["upsert"])
    cursor.claim({P0: TOPIC_ID})
    given = [("child", "parent", 1), ORPHAN, ("child", "root", 2), ("parent", "root", 3)]
    verdicts = cursor.deliver({P0: 9}, cursor.prepare(rows(given)))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED, DELIVERED]
    assert store.all("select parent, n from tree where id = 'child'") == [("root", 2)]


def test_a_row_that_a_later_one_leads_to_nothing_is_not_at_fault(store: Store) -> None:
    tree(store)
    cursor = store.cursor(table="tree", columns=COLUMNS, **MODES["upsert"])
    cursor.claim({P0: TOPIC_ID})
    given = [("child", "root", 1), ("child", "nobody", 2), ("good", "root", 1)]
    verdicts = cursor.deliver({P0: 9}, cursor.prepare(rows(given)))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
    assert store.all("select parent, n from tree where id = 'child'") == [("root", 1)]


def test_nor_is_one_that_the_trigger_of_a_later_one_leads_to_nothing(store: Store) -> None:
    tree(store)
    store.all(
        "create trigger adopt after insert on tree when new.id = 'thief' begin"
        " update tree set parent = 'nobody' where id = 'child'; end"
    )
    cursor = store.cursor(table="tree", columns=COLUMNS)
    cursor.claim({P0: TOPIC_ID})
    given = [("child", "root", 1), ("thief", "root", 2), ("good", "root", 1)]
    assert outcomes(cursor.deliver({P0: 9}, cursor.prepare(rows(given)))) == [DELIVERED, DEAD, DELIVERED]


def test_rows_of_a_trigger_and_of_a_table_without_numbers_are_found_too(store: Store) -> None:
    tree(store)
    store.all(
        "create table leaf (id text primary key, parent text references tree (id) deferrable initially deferred)"
        " without rowid"
    )
    store.all("create trigger grow after insert on ledger begin insert into leaf values (new.id, new.customer); end")
    cursor = store.cursor()
    cursor.claim({P0: TOPIC_ID})
    batch = [message(i, value=orjson.dumps({"customer": name, "total": 1})) for i, name in enumerate(["root", "no", "root"])]
    assert outcomes(cursor.deliver({P0: 3}, cursor.prepare(batch))) == [DELIVERED, DEAD, DELIVERED]
    assert store.all("select id from leaf order by id") == [("m-0-0",), ("m-0-2",)]


def test_a_route_that_wants_no_dead_letters_stops_at_an_orphan(store: Store) -> None:
    tree(store)
    cursor = store.cursor(table="tree", columns=COLUMNS, stop_on_dead=True)
    cursor.claim({P0: TOPIC_ID})
    with pytest.raises(Stopped, match="on_dead"):
        cursor.deliver({P0: 3}, cursor.prepare(rows(BATCHES["an orphan"])))
    assert store.all("select count(*) from relay_inbox") == [(0,)]


def test_of_a_damaged_file_is_said_what_helps(store: SqliteStore, tmp_path: Path) -> None:
    cursor = store.cursor()
    cursor.claim({P0: TOPIC_ID})
    ((page,),) = store.all("select rootpage from sqlite_schema where name = 'ledger'")
    ((size,),) = store.all("pragma page_size")
    store.all("pragma wal_checkpoint(truncate)")
    with (tmp_path / "shop.db").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))
    with pytest.raises(Stopped, match=r"SQLITE_CORRUPT.* put a whole copy in its place without the files .*-wal"):
        cursor.deliver({P0: 1}, cursor.prepare([message(0)]))


@pytest.mark.parametrize(("code", "name"), [(8714, "SQLITE_IOERR"), (25363, "SQLITE_CONSTRAINT")])
def test_an_error_that_python_has_no_name_for_is_judged_by_its_kind(code: int, name: str) -> None:
    """Such as SQLITE_IOERR_IN_PAGE, which came with SQLite 3.42: it is tried again."""
    error = sqlite3.OperationalError("of a later SQLite")
    error.sqlite_errorcode, error.sqlite_errorname = code, "unknown"
    failure = judge(error, plan())
    assert isinstance(failure, RowFault if name == "SQLITE_CONSTRAINT" else Retriable)
    assert name in str(failure)

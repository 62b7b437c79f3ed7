"""PostgreSQL: rows that refer to others of their own batch, beside a row that is bad."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from relay.delivery.table.verdicts import Limits
from relay.message.record import LogMessage
from relay.transfer.cursor import DEAD, DELIVERED
from tests.contracts.table_databases import P0, TOPIC_ID, message, outcomes
from tests.integration.table_site import Database

COLUMNS = {"id": "json:/id", "parent": "json:/parent", "n": "json:/n"}
OWN = "insert into tree (id, parent, n) values (%(id)s, %(parent)s, %(n)s)"
MODES: dict[str, dict[str, Any]] = {
    "insert": {"mode": "insert"}, "upsert": {"mode": "upsert", "key": ("id",)}, "sql": {"mode": "sql", "sql": OWN},
}  # fmt: skip


def tree(database: Database, deferred: str = "") -> None:
    database.do(
        "create table tree (id text primary key, parent text, n int check (n >= 0), place serial);"
        f"alter table tree add foreign key (parent) references tree (id) {deferred};"
        "insert into tree values ('root', null, 0)"
    )


def rows(*given: tuple[str, str | None] | tuple[str, str | None, int]) -> list[LogMessage]:
    found = []
    for offset, (name, parent, *n) in enumerate(given):
        value = {"id": name, "parent": parent, "n": n[0] if n else 1}
        found.append(message(offset, value=orjson.dumps(value)))
    return found


BAD = ("bad", "root", -1)
ORPHAN = ("orphan", "nobody")
BATCHES = {
    "its parent behind it": [("child", "parent"), BAD, ("parent", "root")],
    "and an orphan": [("child", "parent"), ORPHAN, ("parent", "root")],
    "a chain, last first": [("c", "b"), ("b", "a"), ORPHAN, ("a", "root"), BAD],
    "each other": [("a", "b"), ("b", "a"), BAD],
    "far apart": [("child", "parent"), *[(f"r{i}", "root") for i in range(40)], BAD, ("parent", "root")],
    "its parent before it": [("parent", "root"), BAD, ("child", "parent")],
    "those of an orphan": [("grandchild", "orphan"), ORPHAN, ("good", "root"), ("child", "good")],
}
DIE = {"bad", "orphan", "grandchild"}
DEFERRED = "deferrable initially deferred"


# An own statement writes each row by itself: what is checked at once finds no parent that is behind, bad row or none.
@pytest.mark.parametrize(
    ("mode", "deferred"),
    [(mode, deferred) for mode in MODES for deferred in ("", "deferrable", DEFERRED) if mode != "sql" or deferred == DEFERRED],
)
@pytest.mark.parametrize("batch", BATCHES)
def test_a_row_that_refers_to_another_of_its_batch_is_delivered_beside_a_bad_one(
    database: Database, batch: str, deferred: str, mode: str
) -> None:
    tree(database, deferred)
    cursor = database.cursor(table="tree", columns=COLUMNS, **MODES[mode])
    cursor.claim({P0: TOPIC_ID})
    given = BATCHES[batch]

    verdicts = cursor.deliver({P0: 50}, cursor.prepare(rows(*given)))

    assert outcomes(verdicts) == [DEAD if row[0] in DIE else DELIVERED for row in given]
    found = database.connection.execute("select id from tree where id <> 'root' order by place").fetchall()
    assert [row[0] for row in found] == [row[0] for row in given if row[0] not in DIE], "in the order of delivery"
    assert database.one("select count(*) from relay_inbox where outcome = 1") == outcomes(verdicts).count(DEAD)


def test_a_later_row_of_the_same_key_stays_the_later_one(database: Database) -> None:
    tree(database)
    cursor = database.cursor(table="tree", columns=COLUMNS, **MODES["upsert"])
    cursor.claim({P0: TOPIC_ID})
    given = [("child", "parent", 1), BAD, ("child", "root", 2), ("parent", "root", 3)]
    verdicts = cursor.deliver({P0: 9}, cursor.prepare(rows(*given)))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED, DELIVERED]
    assert database.one("select parent || n from tree where id = 'child'") == "root2"


def test_so_it_is_where_one_statement_has_no_time_for_all(database: Database) -> None:
    tree(database)
    database.do(
        "create function dawdle() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(0.01); return new; end $$;"
        "create trigger dawdle before insert on tree for each row execute function dawdle()"
    )
    cursor = database.cursor(table="tree", columns=COLUMNS, limits=Limits(0.2, 0.5, 5))
    cursor.claim({P0: TOPIC_ID})
    given = [("child", "parent"), *[(f"r{i}", "root") for i in range(80)], BAD, ("parent", "root")]
    verdicts = cursor.deliver({P0: 99}, cursor.prepare(rows(*given)))
    assert outcomes(verdicts) == [DEAD if row[0] in DIE else DELIVERED for row in given]
    assert database.one("select count(*) from tree") == 83

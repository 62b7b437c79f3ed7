"""PostgreSQL refuses a row in words that would also mean a wrong statement: which of them it is, other rows show."""

from __future__ import annotations

import orjson
import pytest

from relay.delivery.table.postgresql.effects import Copy
from relay.message.errors import Fenced, Stopped
from relay.transfer.cursor import DEAD, DELIVERED
from tests.contracts.table_databases import P0, TOPIC_ID, message, outcomes
from tests.integration.table_site import Database

CANARY = "canary"
COLUMNS = {"id": "ce:id", "x": "json:/x"}


def trigger(body: str, when: str = "before insert") -> str:
    constraint = "constraint" if "deferred" in when else ""
    return (
        f"create or replace function judge() returns trigger language plpgsql as $$begin {body}; return new; end$$;"
        f"create {constraint} trigger judge {when} for each row execute function judge()"
    )


# State, table, a value that it takes and one that it refuses.
REFUSED = {
    "generated column": (
        "0A000",
        "create table t (id text primary key, x numeric, n bigint generated always as ((x * 100)::bigint) stored)",
        1, "NaN",
    ),
    "generated query": (
        "42601",
        ("create table t (id text primary key, x text,"
        " q tsquery generated always as (to_tsquery('simple', x)) stored)"),
        "a", f"{CANARY} b",
    ),
    "check": (
        "42601", "create table t (id text primary key, x text check (x::jsonpath is not null))", "$.a", f"$.{CANARY} ?",
    ),
    "trigger": (
        "42704", "create table t (id text primary key, x text);" + trigger("perform new.x::regtype", "before insert on t"),
        "int", CANARY,
    ),
    "trigger behind the row": (
        "42P01", "create table t (id text primary key, x text);" + trigger("perform new.x::regclass", "after insert on t"),
        "t", CANARY,
    ),
    "function": (
        "42P01",
        ("create function size(x text) returns bigint language plpgsql immutable as $$begin return x::regclass::oid; end$$;"
        "create table t (id text primary key, x text, n bigint generated always as (size(x)) stored)"), "t", CANARY,
    ),
    "deferred trigger": (
        "3F000",
        "create table t (id text primary key, x text);"
        + trigger("perform new.x::regclass", "after insert on t deferrable initially deferred"),
        "t", f"{CANARY}.t",
    ),
    "missing schema": ("3F000", "create table t (id text primary key, x text check (x::regclass > 0))", "t", f"{CANARY}.t"),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["insert", "upsert", "sql"])
@pytest.mark.parametrize("where", REFUSED)
def test_a_value_refused_in_words_that_else_mean_the_statement_condemns_its_row_only(
    database: Database, where: str, mode: str
) -> None:
    state, ddl, good, bad = REFUSED[where]
    database.do(ddl)
    cast = "::text::numeric" if "numeric" in ddl else ""
    own = {"sql": f"insert into t values (%(id)s, %(x)s{cast})"} if mode == "sql" else {}
    cursor = database.cursor(table="t", columns=COLUMNS, mode=mode, key=("id",) if mode == "upsert" else (), **own)
    cursor.claim({P0: TOPIC_ID})

    batch = [message(i, value=orjson.dumps({"x": x})) for i, x in enumerate([good, bad, good])]
    verdicts = cursor.deliver({P0: 3}, cursor.prepare(batch))

    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
    assert verdicts[1].cause is not None
    assert verdicts[1].cause.code == state
    assert CANARY not in str(verdicts[1].cause)
    assert database.one("select count(*) from t") == 2


# A row is refused, each for what it is in fact: no statement, or no function, takes any row.
WRONG = {
    "a function that takes nothing": trigger("perform (new.id || ' ?')::jsonpath", "before insert on ledger"),
    "the same at COMMIT": trigger(
        "perform (new.id || ' ?')::jsonpath", "after insert on ledger deferrable initially deferred"
    ),
    "the table is gone": "alter table ledger rename to gone",
    "a view in its place": (
        "alter table ledger rename to gone; create view ledger as select id, customer, max(total) as total from gone group by 1, 2"
    ),
    "a key that is gone": "alter table ledger drop constraint ledger_pkey",
    "a trigger behind the row": trigger("perform (new.id || ' ?')::jsonpath", "after insert on ledger"),
    "a missing column in a trigger": trigger("perform new.colour", "before insert on ledger"),
}
COUNT = 3000


@pytest.mark.parametrize(
    ("wrong", "mode"),
    [(wrong, mode) for wrong in WRONG for mode in ("insert", "upsert", "sql") if "key" not in wrong or mode == "upsert"],
)
@pytest.mark.parametrize("earlier", [False, True], ids=["from the start", "after good rows"])
def test_a_statement_that_is_wrong_for_every_row_stops_soon_and_kills_no_message(
    database: Database, wrong: str, mode: str, earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"sql": "insert into ledger values (%(id)s, %(customer)s, %(total)s)"} if mode == "sql" else {}
    cursor = database.cursor(mode=mode, key=("id",) if mode == "upsert" else (), **own)
    cursor.claim({P0: TOPIC_ID})
    if earlier:
        cursor.deliver({P0: 1}, cursor.prepare([message(0)]))
    batch = cursor.prepare([message(i) for i in range(1, COUNT)])
    database.do(WRONG[wrong])
    if wrong == "a view in its place" and mode != "sql":
        with pytest.raises(Fenced, match="was altered"):
            cursor.deliver({P0: COUNT + 1}, batch)
        cursor.claim({P0: TOPIC_ID})
        batch = cursor.prepare([message(i) for i in range(1, COUNT)])
    tried: list[int] = []
    write = cursor._pieces.write
    monkeypatch.setattr(cursor._pieces, "write", lambda c, by, rows: (tried.append(len(rows)), write(c, by, rows)))

    for few in (batch, cursor.prepare([message(COUNT)])):
        with pytest.raises(Stopped, match=r"resource 'shop'.* correct the"):
            cursor.deliver({P0: COUNT + 1}, few)

    assert database.one("select count(*) from relay_inbox") == int(earlier)
    assert database.one("select coalesce(position, 0) from relay_position") == int(earlier)
    assert len(tried) < 200, "it is known long before all rows were asked"


TWO_COMMANDS = "insert into ledger values (%(id)s, %(customer)s, %(total)s); update ledger set total = total"


def test_an_own_statement_of_two_commands_stops_and_kills_no_message(database: Database) -> None:
    cursor = database.cursor(mode="sql", table="", sql=TWO_COMMANDS)
    cursor.claim({P0: TOPIC_ID})
    with pytest.raises(Stopped, match="42601"):
        cursor.deliver({P0: 9}, cursor.prepare([*map(message, range(9))]))
    assert database.one("select count(*) from relay_inbox") == 0


def of(x: object, offset: int) -> list:
    return [message(offset, value=orjson.dumps({"x": x}))]


def test_alone_in_its_batch_a_row_is_judged_by_the_last_one_that_went_through(database: Database) -> None:
    database.do(REFUSED["generated column"][1])
    cursor = database.cursor(table="t", columns=COLUMNS)
    cursor.claim({P0: TOPIC_ID})
    with pytest.raises(Stopped, match="0A000"):
        cursor.deliver({P0: 1}, cursor.prepare(of("NaN", 0)))
    assert outcomes(cursor.deliver({P0: 1}, cursor.prepare(of(1, 0)))) == [DELIVERED]
    assert outcomes(cursor.deliver({P0: 2}, cursor.prepare(of("NaN", 1)))) == [DEAD]
    assert database.one("select count(*) from t") == 1, "the witness leaves nothing"


def test_few_die_by_an_earlier_rows_word_before_another_goes_through(database: Database) -> None:
    database.do(REFUSED["generated column"][1])
    cursor = database.cursor(table="t", columns=COLUMNS)
    cursor.claim({P0: TOPIC_ID})
    cursor.deliver({P0: 1}, cursor.prepare(of(1, 0)))
    for offset in (1, 2, 3):
        assert outcomes(cursor.deliver({P0: offset + 1}, cursor.prepare(of("NaN", offset)))) == [DEAD]
    with pytest.raises(Stopped, match="0A000"):
        cursor.deliver({P0: 5}, cursor.prepare(of("NaN", 4)))
    cursor.deliver({P0: 6}, cursor.prepare(of(1, 5)))
    assert outcomes(cursor.deliver({P0: 6}, cursor.prepare(of("NaN", 4)))) == [DEAD]


def test_where_most_rows_are_refused_in_such_words_the_route_stops(database: Database) -> None:
    database.do(trigger("if new.total > 3 then perform (new.id || ' ?')::jsonpath; end if", "before insert on ledger"))
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    with pytest.raises(Stopped, match="42601"):
        cursor.deliver({P0: 9}, cursor.prepare([*map(message, range(9))]))
    assert outcomes(cursor.deliver({P0: 8}, cursor.prepare([*map(message, range(8))]))) == [DELIVERED] * 4 + [DEAD] * 4


BROKEN = """create or replace function judge() returns trigger language plpgsql as
    $$begin perform (new.id || ' ?')::jsonpath; return new; end$$"""


def test_a_function_that_is_replaced_while_rows_are_tried_kills_no_message(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of before have gone through; only asked once more do they show that none goes through any longer."""
    database.do(trigger("perform 1", "before insert on ledger"))
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    apply, alone = Copy.apply, []

    def replacing(by: Copy, connection: object, rows: list) -> None:
        if len(rows) == 1:
            alone.append(rows)
            if len(alone) == 2:
                database.do(BROKEN)
        apply(by, connection, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(Copy, "apply", replacing)
    with pytest.raises(Stopped, match="42601"):
        cursor.deliver({P0: 4}, cursor.prepare([message(0), message(1), message(2, -1), message(3)]))
    assert database.one("select count(*) from relay_inbox") == 0


def test_a_dead_message_that_is_redriven_and_refused_again_stops_nothing(database: Database) -> None:
    database.do(REFUSED["generated column"][1])
    cursor = database.cursor(table="t", columns=COLUMNS)
    cursor.claim({P0: TOPIC_ID})
    dead = of("NaN", 1)
    cursor.deliver({P0: 2}, cursor.prepare([*of(1, 0), *dead]))
    heir = database.cursor(table="t", columns=COLUMNS)
    heir.claim({P0: TOPIC_ID})
    assert outcomes(heir.deliver({P0: 2}, heir.prepare(dead, redriven=True))) == [DEAD]

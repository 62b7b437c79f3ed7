"""The table cursor against a real PostgreSQL: types, refused values, and what takes no COPY."""

from __future__ import annotations

import os
from typing import Any

import orjson
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.errors import LockNotAvailable

from relay.config.model import ResourceConfig, TableDestination
from relay.message.errors import Fenced, Stopped
from relay.setup.check_table import judge_table, look_at
from relay.setup.check_topics import Findings
from relay.transfer.cursor import DEAD, DELIVERED
from tests.contracts.table_databases import (
    COLUMNS,
    P0,
    TOPIC_ID,
    message,
    outcomes,
)
from tests.integration.table_site import Database


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_types_of_all_sorts(database: Database, mode: str) -> None:
    database.do(
        "create table typed (id uuid primary key, amount numeric(8,2), at timestamptz, day date, ok boolean,"
        " doc jsonb, name varchar(5), code char(3), raw bytea)"
    )
    columns = {name: f"json:/{name}" for name in ("id", "amount", "day", "ok", "doc", "name", "code")}
    columns |= {"at": "kafka:timestamp", "raw": "kafka:key"}
    cursor = database.cursor(table="typed", mode=mode, key=("id",) if mode == "upsert" else (), columns=columns)
    cursor.claim({P0: TOPIC_ID})
    good = (
        b'{"id": "00000000-0000-0000-0000-000000000001", "amount": 12.5, "day": "2026-02-03", "ok": true,'
        b' "doc": {"a": [1, "x\\ty"]}, "name": "abcde", "code": "xyz"}'
    )
    long = good.replace(b'"abcde"', b'"abcdef"').replace(b"01", b"02", 1)
    word = good.replace(b"12.5", b'"much"').replace(b"0001", b"0003")
    string = good.replace(b'{"a": [1, "x\\ty"]}', b'"only text"').replace(b"0001", b"0004")
    batch = [
        message(i, value=value)._replace(key=b"\x00\\", timestamp_ms=1_700_000_000_123)
        for i, value in enumerate([good, long, word, string])
    ]
    verdicts = cursor.deliver({P0: 4}, cursor.prepare(batch))
    assert [v.cause.code if v.cause else None for v in verdicts] == [None, "22001", "22P02", None]
    assert "much" not in str(verdicts[2].cause)
    rows = database.connection.execute(
        "select amount::text, at at time zone 'UTC', day::text, ok, doc, name, code, raw from typed order by id"
    ).fetchall()
    assert [str(row[1]) for row in rows] == ["2023-11-14 22:13:20.123000"] * 2
    assert rows[0][0] == "12.50"
    assert rows[0][2:] == ("2026-02-03", True, {"a": [1, "x\ty"]}, "abcde", "xyz", b"\x00\\")
    assert rows[1][4] == "only text"


@pytest.mark.parametrize("mode", ["insert", "upsert", "sql"])
def test_a_text_with_a_zero_character_condemns_its_row_only(database: Database, mode: str) -> None:
    database.do("create table texts (id text primary key, body text)")
    key = ("id",) if mode == "upsert" else ()
    own = "insert into texts values (%(id)s, %(body)s)" if mode == "sql" else None
    columns = {"id": "json:/id", "body": "json:/body"}
    cursor = database.cursor(table="texts", mode=mode, key=key, sql=own, columns=columns)
    cursor.claim({P0: TOPIC_ID})
    values = [b'{"id": "a", "body": "x"}', b'{"id": "b", "body": "x\\u0000y"}', b'{"id": "c", "body": "z"}']
    verdicts = cursor.deliver({P0: 3}, cursor.prepare([message(i, value=value) for i, value in enumerate(values)]))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
    assert database.one("select string_agg(id, '' order by id) from texts") == "ac"


def test_a_type_that_an_own_statement_does_not_take_condemns_its_row_only(database: Database) -> None:
    own = "insert into ledger values (%(id)s, %(customer)s, %(total)s)"
    cursor = database.cursor(table="", mode="sql", sql=own)
    cursor.claim({P0: TOPIC_ID})
    batch = [message(0), message(1, value=b'{"customer": "ann", "total": true}'), message(2)]
    verdicts = cursor.deliver({P0: 3}, cursor.prepare(batch))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
    assert verdicts[1].cause is not None
    assert verdicts[1].cause.code == "42804"
    with pytest.raises(Stopped, match="all 1 of its batch"):
        cursor.deliver({P0: 4}, cursor.prepare([message(3, value=b'{"customer": "ann", "total": true}')]))
    assert database.one("select count(*) from ledger") == 2
    assert database.one("select count(*) from relay_inbox") == 3

CANARY = "canary"
REFUSED_BY_THE_TYPE = {
    "tsvector": f"{CANARY} '",
    "tsquery": f"{CANARY} &",
    "jsonpath": f"$.{CANARY} ?",
    "regclass": CANARY,
    "regtype": CANARY,
    "macaddr": CANARY,
}
"""Their input functions speak of syntax and of tables that do not exist, as if the statement were wrong."""


@pytest.mark.parametrize("mode", ["insert", "upsert", "sql"])
@pytest.mark.parametrize("kind", REFUSED_BY_THE_TYPE)
def test_a_value_that_its_type_refuses_in_whatever_words_condemns_its_row_only(
    database: Database, kind: str, mode: str
) -> None:
    database.do(f"create table odd (id text primary key, note {kind})")
    own = {"sql": f"insert into odd values (%(id)s, (%(note)s::text)::{kind})"} if mode == "sql" else {}
    columns = {"id": "ce:id", "note": "json:/note"}
    cursor = database.cursor(table="odd", columns=columns, mode=mode, key=("id",) if mode == "upsert" else (), **own)
    cursor.claim({P0: TOPIC_ID})
    bad = orjson.dumps({"note": REFUSED_BY_THE_TYPE[kind]})
    batch = [message(0, value=b"{}"), message(1, value=bad), message(2, value=b"{}")]
    verdicts = cursor.deliver({P0: 3}, cursor.prepare(batch))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
    assert CANARY not in str(verdicts[1].cause)
    assert database.one("select count(*) from odd") == 2


def test_the_refused_column_is_named(database: Database) -> None:
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    (verdict,) = cursor.deliver({P0: 1}, cursor.prepare([message(0, "canary")]))
    assert verdict.cause is not None
    assert "column total" in str(verdict.cause)
    assert "canary" not in str(verdict.cause)


def test_a_deferred_constraint_condemns_its_row_only(database: Database) -> None:
    database.do("create table parents (id text primary key); insert into parents values ('ann')")
    database.do(
        "alter table ledger add foreign key (customer) references parents (id) deferrable initially deferred"
    )
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    orphan = message(1, value=b'{"customer": "nobody", "total": 1}')
    verdicts = cursor.deliver({P0: 3}, cursor.prepare([message(0), orphan, message(2)]))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
    assert verdicts[1].cause is not None
    assert verdicts[1].cause.code == "23503"


def test_a_trigger_that_raises_condemns_its_row_only(database: Database) -> None:
    database.do(
        "create function refuse() returns trigger language plpgsql as"
        " $$begin if new.total = 1 then raise exception 'canary %', new.customer; end if; return new; end$$"
    )
    database.do("create trigger refuse before insert on ledger for each row execute function refuse()")
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    verdicts = cursor.deliver({P0: 3}, cursor.prepare([*map(message, range(3))]))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
    assert "canary" not in str(verdicts[1].cause)


IN_A_TRIGGER = {
    "20000": "case new.x when 'a' then null; when 'b' then null; end case",
    "2F005": "perform 1 where answered(new.x)",
    "38001": "if new.x = 'z' then raise exception 'canary' using errcode = '38001'; end if",
    "39004": "if new.x = 'z' then raise exception 'canary' using errcode = '39004'; end if",
    "UA001": "if new.x = 'z' then raise exception 'canary' using errcode = 'UA001'; end if",
    "2200H": "if new.x = 'z' then raise sequence_generator_limit_exceeded; end if",
    "42501": "if new.x = 'z' then raise insufficient_privilege; end if",
    "42P01": "if new.x = 'z' then raise undefined_table; end if",
}
"""What a trigger says of one row only, under whatever state its author or the language chose."""


@pytest.mark.parametrize("mode", ["insert", "upsert", "sql"])
@pytest.mark.parametrize("state", IN_A_TRIGGER)
def test_what_a_trigger_refuses_in_a_state_of_its_own_condemns_its_row_only(
    database: Database, state: str, mode: str
) -> None:
    database.do("create table judged (id text primary key, x text)")
    database.do(
        "create function answered(x text) returns bool language plpgsql as"
        " $$begin if x <> 'z' then return true; end if; end$$"
    )
    database.do(
        f"create function refuse() returns trigger language plpgsql as $$begin {IN_A_TRIGGER[state]}; return new; end$$"
    )
    database.do("create trigger refuse before insert on judged for each row execute function refuse()")
    own = {"sql": "insert into judged values (%(id)s, %(x)s)"} if mode == "sql" else {}
    key = ("id",) if mode == "upsert" else ()
    cursor = database.cursor(table="judged", columns={"id": "ce:id", "x": "json:/x"}, mode=mode, key=key, **own)
    cursor.claim({P0: TOPIC_ID})
    batch = [message(i, value=b'{"x": "%s"}' % x) for i, x in enumerate([b"a", b"z", b"b"])]
    verdicts = cursor.deliver({P0: 3}, cursor.prepare(batch))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
    assert verdicts[1].cause is not None
    assert verdicts[1].cause.code == state
    assert "canary" not in str(verdicts[1].cause)


def test_a_trigger_whose_own_statement_is_wrong_stops_the_route(database: Database) -> None:
    database.do(
        "create function note_it() returns trigger language plpgsql as"
        " $$begin insert into not_there values (new.id); return new; end$$"
    )
    database.do("create trigger note_it before insert on ledger for each row execute function note_it()")
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    with pytest.raises(Stopped, match="42P01"):
        cursor.deliver({P0: 1}, cursor.prepare([message(0)]))


@pytest.mark.parametrize("mode", ["insert", "upsert", "sql"])
def test_a_sequence_without_further_numbers_stops_the_route(database: Database, mode: str) -> None:
    """It is no row's doing, and every message until somebody mends it would be a dead letter."""
    database.do("create sequence few maxvalue 2")
    database.do("create table numbered (id text primary key, n bigint default nextval('few'))")
    own = {"sql": "insert into numbered values (%(id)s)"} if mode == "sql" else {}
    key = ("id",) if mode == "upsert" else ()
    cursor = database.cursor(table="numbered", columns={"id": "ce:id"}, mode=mode, key=key, **own)
    cursor.claim({P0: TOPIC_ID})
    with pytest.raises(Stopped, match="2200H"):
        cursor.deliver({P0: 3}, cursor.prepare([*map(message, range(3))]))
    assert database.one("select count(*) from numbered") == database.one("select count(*) from relay_inbox") == 0
    database.do("alter sequence few maxvalue 100")
    assert outcomes(cursor.deliver({P0: 3}, cursor.prepare([*map(message, range(3))]))) == [DELIVERED] * 3


@pytest.mark.parametrize("constant", ["'12a'::int", "date '2026-02-30'"])
def test_a_constant_of_an_own_statement_that_its_type_refuses_stops_the_route(database: Database, constant: str) -> None:
    database.do("create table dated (id text primary key, note text)")
    own = f"insert into dated values (%(id)s, ({constant})::text)"
    cursor = database.cursor(table="dated", columns={"id": "ce:id"}, mode="sql", sql=own)
    cursor.claim({P0: TOPIC_ID})
    with pytest.raises(Stopped, match=r"cannot be written: 22.*(12a|2026-02-30)"):
        cursor.deliver({P0: 1}, cursor.prepare([message(0)]))
    assert database.one("select count(*) from relay_inbox") == 0


def test_a_value_that_a_cast_of_an_own_statement_refuses_condemns_its_row_only(database: Database) -> None:
    database.do("create table cast_to (id text primary key, n int)")
    own = "insert into cast_to values (%(id)s, %(n)s::text::int)"
    cursor = database.cursor(table="cast_to", columns={"id": "ce:id", "n": "json:/n"}, mode="sql", sql=own)
    cursor.claim({P0: TOPIC_ID})
    batch = [message(i, value=b'{"n": "%s"}' % n) for i, n in enumerate([b"1", b"canary", b"3"])]
    verdicts = cursor.deliver({P0: 3}, cursor.prepare(batch))
    assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
    assert "canary" not in str(verdicts[1].cause)


@pytest.mark.parametrize(
    "ddl",
    [
        "create view seen as select * from ledger",
        ("create table seen (like ledger); alter table seen enable row level security, force row level security;"
        "create policy all_in on seen for insert with check (true)"),
    ],
    ids=["view", "row security"],
)
def test_what_takes_no_copy_is_inserted_into(database: Database, ddl: str) -> None:
    role = f"plain_{os.getpid()}"
    database.do(ddl)
    database.do(f"create role {role} login password 'x'")
    try:
        database.do(f"grant select, insert, update, delete on all tables in schema public to {role}")
        cursor = database.cursor(make_conninfo(database.url, user=role, password="x"), table="seen")
        cursor.claim({P0: TOPIC_ID})
        assert outcomes(cursor.deliver({P0: 2}, cursor.prepare([message(0), message(1)]))) == [DELIVERED] * 2
        cursor.close()
    finally:
        database.do(f"drop owned by {role}")
        database.do(f"drop role {role}")


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_a_row_that_row_security_refuses_condemns_its_row_only(database: Database, mode: str) -> None:
    role = f"guarded_{os.getpid()}"
    database.do("create table seen (like ledger); alter table seen add unique (id); alter table seen enable row level security;"
        "create policy some_in on seen using (total <> 1)")
    database.do(f"create role {role} login password 'x'")
    try:
        database.do(f"grant select, insert, update, delete on all tables in schema public to {role}")
        key = ("id",) if mode == "upsert" else ()
        cursor = database.cursor(make_conninfo(database.url, user=role, password="x"), table="seen", mode=mode, key=key)
        cursor.claim({P0: TOPIC_ID})
        verdicts = cursor.deliver({P0: 3}, cursor.prepare([message(0), message(1), message(2)]))
        assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
        assert verdicts[1].cause is not None
        assert verdicts[1].cause.code == "42501"
        database.do(f"revoke insert on seen from {role}")
        with pytest.raises(Stopped, match="permission denied"):
            cursor.deliver({P0: 4}, cursor.prepare([message(3)]))
        cursor.close()
    finally:
        database.do(f"drop owned by {role}")
        database.do(f"drop role {role}")


def test_tables_of_another_schema_and_a_changing_search_path(database: Database) -> None:
    database.do("create schema books")
    database.do("create table books.ledger (id text, customer text, total bigint)")
    database.do(
        "create function elsewhere() returns trigger language plpgsql as"
        " $$begin perform set_config('search_path', 'pg_catalog', false); return new; end$$"
    )
    database.do("create trigger elsewhere before insert on books.ledger for each row execute function elsewhere()")
    cursor = database.cursor(table="books.ledger")
    cursor.claim({P0: TOPIC_ID})
    for offset in range(3):
        cursor.deliver({P0: offset + 1}, cursor.prepare([message(offset)]))
    assert database.one("select count(*) from books.ledger") == 3


ALTERED = [
    # What the former type would cut off in silence, and what it would refuse.
    ("upsert", "date", "timestamp", "2026-01-01T10:11:12", "2026-01-01 10:11:12"),
    ("upsert", "integer", "bigint", "3000000000", "3000000000"),
    ("upsert", "real", "double precision", "0.123456789", "0.123456789"),
    ("insert", "bytea", "text", "abc", "abc"),
    ("insert", "text", "jsonb", '"abc"', '"abc"'),
]


@pytest.mark.parametrize(("mode", "before", "after", "value", "stands"), ALTERED)
def test_what_was_mapped_for_a_table_that_was_altered_is_mapped_anew(
    database: Database, mode: str, before: str, after: str, value: str, stands: str
) -> None:
    database.do(f"create table altered (id text primary key, x {before})")
    columns = {"id": "ce:id", "x": "kafka:value"}
    cursor = database.cursor(table="altered", mode=mode, key=("id",) if mode == "upsert" else (), columns=columns)
    cursor.claim({P0: TOPIC_ID})
    mapped = cursor.prepare([message(0, value=value.encode())])
    using = {"bytea": " using convert_from(x, 'utf8')", "text": " using to_jsonb(x)"}.get(before, "")
    database.do(f"alter table altered alter x type {after}{using}")

    with pytest.raises(Fenced, match="was altered"):
        cursor.deliver({P0: 1}, mapped)
    assert database.one("select count(*) filter (where position > 0) from relay_position") == 0
    assert database.one("select count(*) from altered") == 0

    cursor.claim({P0: TOPIC_ID})
    verdicts = cursor.deliver({P0: 1}, cursor.prepare([message(0, value=value.encode())]))
    assert outcomes(verdicts) == [DELIVERED]
    assert database.one("select x::text from altered") == stands


def test_a_table_that_is_altered_waits_for_the_batch_that_was_looked_at(database: Database) -> None:
    database.do("create table altered (id text primary key, x integer)")
    cursor = database.cursor(table="altered", columns={"id": "ce:id", "x": "kafka:value"})
    cursor.claim({P0: TOPIC_ID})
    mapped = cursor.prepare([message(0, value=b"1")])
    database.do("set lock_timeout = '200ms'")
    refused: list[object] = []
    commit = cursor._link.commit

    def committing(connection: Any, *, doubts: bool) -> None:
        with pytest.raises(LockNotAvailable):
            database.do("alter table altered alter x type bigint")
        refused.append(connection)
        commit(connection, doubts=doubts)

    cursor._link.commit = committing  # type: ignore[method-assign]
    assert outcomes(cursor.deliver({P0: 1}, mapped)) == [DELIVERED]
    assert len(refused) == 1


@pytest.mark.parametrize("mode", ["insert", "upsert"])
@pytest.mark.parametrize("count", [1, 40])
def test_a_column_that_no_row_has_a_value_for_stops_the_route_and_no_message_dies(database: Database, mode: str, count: int) -> None:
    """As a migration adds one, before the configuration maps it."""
    cursor = database.cursor(mode=mode, key=("id",) if mode == "upsert" else ())
    cursor.claim({P0: TOPIC_ID})
    assert outcomes(cursor.deliver({P0: 1}, cursor.prepare([message(0)]))) == [DELIVERED]
    database.do("alter table ledger add region text not null default 'eu'; alter table ledger alter region drop default")
    batch = [message(i) for i in range(1, count + 1)]
    with pytest.raises(Stopped, match=r"column 'region' of table 'ledger' .* is not mapped"):
        cursor.deliver({P0: count + 1}, cursor.prepare(batch))
    assert database.one("select count(*) from relay_inbox") == 1
    database.do("alter table ledger alter region set default 'eu'")
    assert outcomes(cursor.deliver({P0: count + 1}, cursor.prepare(batch))) == [DELIVERED] * count


FILLED = {
    "a trigger": "add region text not null",
    "generated": "add region text not null generated always as (customer || '!') stored",
    "a domain": "add region region not null",
}


@pytest.mark.parametrize("by", FILLED)
def test_one_that_has_a_value_all_the_same_stops_nothing(database: Database, by: str) -> None:
    database.do("create domain region as text default 'eu'; alter table ledger " + FILLED[by])
    if by == "a trigger":
        database.do(
            "create function fill() returns trigger language plpgsql as $$begin new.region = new.customer; return new; end$$;"
            "create trigger fill before insert on ledger for each row execute function fill()"
        )
    database.do("alter table ledger alter customer set not null")
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    batch = [message(0), message(1, value=b'{"customer": null, "total": 1}')]
    assert outcomes(cursor.deliver({P0: 2}, cursor.prepare(batch))) == [DELIVERED, DEAD]


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_a_domain_of_a_domain_takes_what_its_type_takes(database: Database, mode: str) -> None:
    database.do(
        "create domain a_raw as bytea; create domain raw as a_raw; create domain a_doc as jsonb; create domain doc as a_doc;"
        "create domain a_time as timestamptz; create domain instant as a_time; create domain a_sum as numeric(6,2);"
        "create domain amount as a_sum check (value > 0);"
        "create table typed (id text primary key, raw raw, doc doc, at instant, amount amount)"
    )
    columns = {"id": "ce:id", "raw": "kafka:key", "doc": "json:/doc", "at": "kafka:timestamp", "amount": "json:/amount"}
    cursor = database.cursor(table="typed", mode=mode, key=("id",) if mode == "upsert" else (), columns=columns)
    cursor.claim({P0: TOPIC_ID})
    values = [b'{"doc": "text", "amount": 1.239}', b'{"doc": "text", "amount": -1}']
    batch = [message(i, value=value)._replace(key=b"\0\\", timestamp_ms=1_700_000_000_123) for i, value in enumerate(values)]
    verdicts = cursor.deliver({P0: 2}, cursor.prepare(batch))
    assert [verdict.cause.code if verdict.cause else None for verdict in verdicts] == [None, "23514"]
    rows = database.connection.execute("select raw, doc, at at time zone 'UTC', amount::text from typed").fetchall()
    assert [(raw, doc, str(at), amount) for raw, doc, at, amount in rows] == [(b"\0\\", "text", "2023-11-14 22:13:20.123000", "1.24")]


MADE_INTO = {
    "a view": "alter table ledger rename to entries; create view ledger as select * from entries",
    "a table with a rule": (
        "create table entries (like ledger);"
        "create rule entered as on insert to ledger do instead insert into entries values (new.id, new.customer, new.total)"
    ),
}


@pytest.mark.parametrize("what", MADE_INTO)
def test_a_table_that_takes_no_copy_any_more_is_written_to_otherwise(database: Database, what: str) -> None:
    """As migrations do that keep the old name as a view while two versions of an application run."""
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    assert outcomes(cursor.deliver({P0: 1}, cursor.prepare([message(0)]))) == [DELIVERED]
    database.do(MADE_INTO[what])
    with pytest.raises(Fenced, match="was altered"):
        cursor.deliver({P0: 2}, cursor.prepare([message(1)]))
    cursor.claim({P0: TOPIC_ID})
    assert outcomes(cursor.deliver({P0: 2}, cursor.prepare([message(1)]))) == [DELIVERED]
    assert database.one("select count(*) from entries where id = 'm-0-1'") == 1


MATCHED = {
    "primary key (id)": True,
    "primary key (id) deferrable": False,
    "unique (id) include (total)": True,
    "unique (id, total)": False,
    "unique nulls not distinct (id)": True,
}


@pytest.mark.parametrize("constraint", MATCHED)
def test_a_check_knows_what_an_upsert_may_match_by(database: Database, constraint: str) -> None:
    database.do(f"create table matched (id text, customer text, total bigint, {constraint})")
    findings = Findings()
    to = TableDestination(table="matched", resource="shop", columns=COLUMNS, mode="upsert", key=("id",))
    judge_table(to, look_at("shop", ResourceConfig(url=database.url), "matched"), "routes.r.to", findings)
    assert [fault.key for fault in findings.faults] == ([] if MATCHED[constraint] else ["routes.r.to.key"])
    cursor = database.cursor(table="matched", mode="upsert", key=("id",))
    cursor.claim({P0: TOPIC_ID})
    if MATCHED[constraint]:
        assert outcomes(cursor.deliver({P0: 1}, cursor.prepare([message(0)]))) == [DELIVERED]
    else:
        with pytest.raises(Stopped, match="cannot be written"):
            cursor.deliver({P0: 1}, cursor.prepare([message(0)]))


PARTITIONS = {
    "range (total)": ("from (0) to (1)", ["entries"]),
    "list (total)": ("in (0)", ["entries"]),
    "list (customer)": ("in (null) partition by range (total)", ["entries", "entry"]),
    "hash (id)": ("with (modulus 1, remainder 0)", []),
    "range (id)": ("default", []),
}


@pytest.mark.parametrize("by", PARTITIONS)
def test_a_row_without_a_partition_dies_with_the_remedy_and_the_check_knows_it_could(database: Database, by: str) -> None:
    values, gaps = PARTITIONS[by]
    bounds = values if values == "default" else f"for values {values}"
    database.do(
        f"create table entries (id text, customer text, total bigint) partition by {by};"
        f"create table entry partition of entries {bounds}"
    )
    findings = Findings()
    to = TableDestination(table="entries", resource="shop", columns=COLUMNS)
    judge_table(to, look_at("shop", ResourceConfig(url=database.url), "entries"), "routes.r.to", findings)
    assert findings.faults == []
    assert [note.split(": ")[1].split()[0] for note in findings.notes] == gaps
    cursor = database.cursor(table="entries")
    cursor.claim({P0: TOPIC_ID})
    (verdict,) = cursor.deliver({P0: 1}, cursor.prepare([message(0, value=b'{"customer": "c", "total": 7}')]))
    if gaps:
        assert verdict.cause is not None
        assert verdict.cause.code == "23514"
        assert "no partition is for it; make that one, and redrive the message" in str(verdict.cause)
    else:
        assert verdict.outcome == DELIVERED

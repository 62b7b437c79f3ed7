"""The table cursor against a real PostgreSQL: lost answers, killed workers, locks, rights, and what only it can do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from relay.delivery import postgresql_effects
from relay.delivery.table import Limits, TablePlan
from relay.delivery.table_postgresql import PostgresqlCursor
from relay.message.errors import Fenced, InDoubt, Retriable, Stopped, Unreachable
from relay.resources.schema import statements
from relay.transfer.cursor import DEAD, DELIVERED, DUPLICATE
from relay.transfer.sending import Sending
from relay.transfer.timers import ResendTimers
from tests.contracts.test_table_cursor_contract import (
    COLUMNS,
    LEDGER,
    P0,
    P1,
    TOPIC_ID,
    message,
    outcomes,
    plan,
)

WAIT_S = 20.0


class CommitEater(threading.Thread):
    """A proxy that forwards everything until a COMMIT passes; then it cuts the line before or after the server has it."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(daemon=True)
        self.target = (host, port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.cut: str | None = None
        self.cuts = 0

    def run(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._back, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.cut and b"commit\0" in data:
                    self.cuts += 1
                    if self.cut == "after":
                        # The answer is waited for, so that the server has surely committed, and then thrown away.
                        self.cut = None
                        client.shutdown(socket.SHUT_WR)
                        server.sendall(data)
                        return
                    self.cut = None
                    break
                server.sendall(data)
        for end in (client, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _back(server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


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


@pytest.fixture
def database(postgres: str) -> Iterator[Database]:
    database = Database(postgres)
    yield database
    for cursor in database.cursors:
        cursor.close()
    database.connection.close()


@pytest.fixture
def eater(database: Database) -> Iterator[CommitEater]:
    facts = conninfo_to_dict(database.url)
    eater = CommitEater(str(facts["host"]), int(facts["port"] or 5432))
    eater.start()
    yield eater
    eater.listener.close()


def through(eater: CommitEater, database: Database) -> PostgresqlCursor:
    cursor = database.cursor(make_conninfo(database.url, port=eater.port, sslmode="disable"))
    cursor.claim({P0: TOPIC_ID})
    return cursor


def test_a_commit_whose_answer_is_lost_is_in_doubt_and_found_delivered(database: Database, eater: CommitEater) -> None:
    cursor = through(eater, database)
    batch = cursor.prepare([message(0), message(1, -1), message(2)])
    eater.cut = "after"
    with pytest.raises(InDoubt):
        cursor.deliver({P0: 3}, batch)
    assert eater.cuts == 1
    database.until("select count(*) = 3 from relay_inbox")
    again = cursor.deliver({P0: 3}, batch)
    assert outcomes(again) == [DELIVERED, DEAD, DELIVERED]
    assert again[1].cause is not None
    assert again[1].cause.code == "23514", "the cause outlives the lost answer"
    assert database.one("select count(*) from ledger") == 2


def test_a_commit_that_never_arrived_is_in_doubt_and_delivered_again(database: Database, eater: CommitEater) -> None:
    cursor = through(eater, database)
    batch = cursor.prepare([message(0), message(1)])
    eater.cut = "before"
    with pytest.raises(InDoubt):
        cursor.deliver({P0: 2}, batch)
    assert database.one("select count(*) from ledger") == 0
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            verdicts = cursor.deliver({P0: 2}, batch)
            break
        except Retriable:  # the old transaction still holds its rows
            assert time.monotonic() < deadline
    assert outcomes(verdicts) == [DELIVERED, DELIVERED]
    assert database.one("select count(*) from ledger") == 2


def test_abandoning_a_hanging_statement_frees_its_thread_at_once(database: Database) -> None:
    cursor = database.cursor(limits=Limits(lock_timeout_s=60, statement_timeout_s=60))
    cursor.claim({P0: TOPIC_ID})
    batch = cursor.prepare([message(0)])
    raised: list[BaseException] = []

    def deliver() -> None:
        try:
            cursor.deliver({P0: 1}, batch)
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            raised.append(error)

    with psycopg.connect(database.url) as blocker:
        blocker.execute("lock table ledger in access exclusive mode")
        thread = threading.Thread(target=deliver)
        thread.start()
        database.until(
            "select count(*) > 0 from pg_stat_activity"
            " where application_name = 'relay:to-table' and wait_event_type = 'Lock' and datname = current_database()"
        )
        cursor.abandon()
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert [type(error) for error in raised] == [Retriable]
    assert outcomes(_until_delivered(cursor, batch)) == [DELIVERED]
    assert database.one("select count(*) from ledger") == 1


def _until_delivered(cursor: PostgresqlCursor, batch: object) -> list:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return cursor.deliver({P0: 1}, batch)
        except Retriable:
            assert time.monotonic() < deadline


def test_abandoning_an_idle_cursor_costs_one_repeat(database: Database) -> None:
    cursor = database.cursor()
    cursor.abandon()
    cursor.claim({P0: TOPIC_ID})
    cursor.abandon()
    batch = cursor.prepare([message(0)])
    with pytest.raises(Retriable):
        cursor.deliver({P0: 1}, batch)
    assert outcomes(cursor.deliver({P0: 1}, batch)) == [DELIVERED]


def test_a_session_that_the_server_ends_is_retriable(database: Database) -> None:
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    database.do("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'relay:to-table'")
    batch = cursor.prepare([message(0)])
    with pytest.raises(Retriable):
        cursor.deliver({P0: 1}, batch)
    assert outcomes(cursor.deliver({P0: 1}, batch)) == [DELIVERED]


def test_a_locked_row_is_retriable(database: Database) -> None:
    cursor = database.cursor(limits=Limits(lock_timeout_s=0.05))
    cursor.claim({P0: TOPIC_ID})
    batch = cursor.prepare([message(0)])
    with psycopg.connect(database.url) as blocker:
        blocker.execute("select * from relay_position for update")
        with pytest.raises(Retriable, match="LockNotAvailable"):
            cursor.deliver({P0: 1}, batch)
    assert outcomes(cursor.deliver({P0: 1}, batch)) == [DELIVERED]


@pytest.mark.parametrize("bad", [(), (7,)], ids=["good rows", "a bad row"])
def test_rows_too_many_for_the_time_of_one_statement_are_written_in_pieces(
    database: Database, bad: tuple[int, ...]
) -> None:
    database.do(
        "create function dawdle() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(0.01); return new; end $$"
    )
    database.do("create trigger dawdle before insert on ledger for each row execute function dawdle()")
    cursor = database.cursor(limits=Limits(0.2, 0.5, 5))
    cursor.claim({P0: TOPIC_ID})
    batch = cursor.prepare([message(i, -1 if i in bad else i) for i in range(80)])
    assert outcomes(cursor.deliver({P0: 80}, batch)) == [DEAD if i in bad else DELIVERED for i in range(80)]
    assert database.one("select count(*) from ledger") == 80 - len(bad)


@pytest.mark.parametrize("own", [False, True], ids=["insert", "own statement"])
def test_a_batch_that_takes_longer_than_any_wait_for_its_answer_gets_through(
    own: bool, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_effects, "_OWN_AT_ONCE", 10)
    database.do(
        "create function dawdle() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(0.01); return new; end $$"
    )
    database.do("create trigger dawdle before insert on ledger for each row execute function dawdle()")
    statement = "insert into ledger values (%(id)s, %(customer)s, %(total)s)"
    over: dict[str, Any] = {"mode": "sql", "sql": statement, "table": ""} if own else {}
    cursor = database.cursor(limits=Limits(0.2, 0.5, 5), **over)
    cursor.claim({P0: TOPIC_ID})
    sending = Sending(cursor, ResendTimers(0.4, 0.8, lambda: 0.0), time.monotonic)

    sending.send({P0: 200}, cursor.prepare([message(i) for i in range(200)]))  # two seconds
    deadline = time.monotonic() + WAIT_S
    while not (answers := sending.answers()) and time.monotonic() < deadline:
        sending.wait(0.05)
        sending.tend(time.monotonic())

    assert answers, f"sent again {sending.resent} times, and no end"
    assert outcomes(answers[0]) == [DELIVERED] * 200
    sending.close()


def test_a_database_that_is_not_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    cursor = PostgresqlCursor(f"postgresql://u:canary-secret@127.0.0.1:{port}/x", plan())
    with pytest.raises(Unreachable) as caught:
        cursor.claim({P0: TOPIC_ID})
    assert "canary" not in str(caught.value)


def test_missing_tables_and_rights_stop_the_route(database: Database) -> None:
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    batch = cursor.prepare([message(0)])
    database.do("alter table ledger drop column total")
    with pytest.raises(Stopped, match="total"):
        cursor.deliver({P0: 1}, batch)
    database.do("drop table relay_inbox")
    with pytest.raises(Stopped, match="relay migrate"):
        database.cursor().claim({P0: TOPIC_ID})


def test_a_role_without_the_right_stops_the_route(database: Database) -> None:
    role = f"worker_{os.getpid()}"
    database.do(f"create role {role} login password 'x'")
    try:
        database.do(f"grant select, insert, update, delete on relay_position, relay_inbox, relay_range to {role}")
        cursor = database.cursor(make_conninfo(database.url, user=role, password="x"))
        cursor.claim({P0: TOPIC_ID})
        batch = cursor.prepare([message(0)])
        with pytest.raises(Stopped, match="permission denied for table ledger"):
            cursor.deliver({P0: 1}, batch)
        database.do(f"grant insert on ledger to {role}")
        assert outcomes(cursor.deliver({P0: 1}, batch)) == [DELIVERED]
        cursor.close()
    finally:
        database.do(f"drop owned by {role}")
        database.do(f"drop role {role}")


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


def test_every_session_has_its_limits(database: Database) -> None:
    database.do("alter database " + str(conninfo_to_dict(database.url)["dbname"]) + " set synchronous_commit = off")
    settings = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "synchronous_commit")
    cursor = database.cursor(limits=Limits(1, 2, 3), mode="sql", table="", sql=(
        "insert into settings select name, setting from pg_settings where name = any(string_to_array(%(id)s, ','))"
    ))
    database.do("create table settings (name text, setting text)")
    cursor.claim({P0: TOPIC_ID})
    cursor.deliver({P0: 1}, cursor.prepare([message(0, name=",".join(settings))]))
    found = dict(database.connection.execute("select * from settings").fetchall())
    assert [found[name] for name in settings] == ["1000", "2000", "3000", "on"]


def test_two_routes_owners_race_and_one_digest_has_one_effect(database: Database) -> None:
    """dedup = "route": a producer that repeats an id in another partition, owned by another worker."""
    first, second = database.cursor(), database.cursor()
    first.claim({P0: TOPIC_ID})
    second.claim({P1: TOPIC_ID})
    ids = [f"id-{i}" for i in range(400)]
    batches = {
        first: (P0, [message(i, 1, name=name) for i, name in enumerate(ids)]),
        second: (P1, [message(i, 1, name=name, partition=1) for i, name in enumerate(reversed(ids))]),
    }
    found: dict[PostgresqlCursor, list[int]] = {}

    def run(cursor: PostgresqlCursor) -> None:
        place, messages = batches[cursor]
        prepared = cursor.prepare(messages)
        while cursor not in found:
            with suppress(Retriable):
                found[cursor] = outcomes(cursor.deliver({place: 400}, prepared))

    threads = [threading.Thread(target=run, args=(cursor,)) for cursor in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(found[first] + found[second]) == [DELIVERED] * 400 + [DUPLICATE] * 400
    assert database.one("select count(*) from ledger") == 400


CRASHES = ["begun", "position", "inbox", "effect", "committing", "committed"]
WORKER = """
import sys
from relay.delivery.table_postgresql import PostgresqlCursor
from tests.contracts.test_table_cursor_contract import P0, TOPIC_ID, message, plan
cursor = PostgresqlCursor(sys.argv[1], plan())
claim = cursor.claim({P0: TOPIC_ID})[P0]
start = claim.position or 0
cursor.deliver({P0: start + 3}, cursor.prepare([message(i, -1 if i % 3 == 1 else i) for i in range(start, start + 3)]))
cursor.close()
"""


@pytest.mark.parametrize("step", CRASHES)
def test_a_worker_killed_at_any_step_leaves_all_or_nothing(database: Database, step: str) -> None:
    def run(crash_at: str) -> int:
        environment = {**os.environ, "RELAY_CRASH_AT": crash_at}
        command = [sys.executable, "-c", WORKER, database.url]
        return subprocess.run(command, env=environment, timeout=60, check=False).returncode

    # The first delivery meets a bad row and runs twice, so each step but the last two is passed twice.
    passed = {"effect": 1, "committing": 1, "committed": 1}.get(step, 2)
    assert run(f"table.{step}:{passed}") == 137
    rows = database.one("select count(*) from ledger")
    assert rows == (2 if step == "committed" else 0)
    assert database.one("select count(*) from relay_inbox") == (3 if step == "committed" else 0)
    assert database.one("select position from relay_position") == (3 if step == "committed" else None)
    assert run("") == 0
    assert database.one("select count(*) from ledger") == (4 if step == "committed" else 2)
    assert database.one("select array_agg(log_offset order by applied) is not null from relay_inbox")
    assert database.one("select count(*) = count(distinct id) from ledger")


def test_a_restored_database_is_filled_again(database: Database) -> None:
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    cursor.deliver({P0: 2}, cursor.prepare([message(0), message(1)]))
    # As a backup of before would leave it: position, inbox and effects go back together, so the epoch does too.
    database.do("delete from ledger; delete from relay_inbox; update relay_position set position = 0, epoch = 1")
    database.do("update relay_position set worker = 'of the backup'")
    with pytest.raises(Fenced):
        cursor.deliver({P0: 3}, cursor.prepare([message(2)]))
    assert cursor.claim({P0: TOPIC_ID})[P0].position == 0
    again = cursor.deliver({P0: 3}, cursor.prepare([message(0), message(1), message(2)]))
    assert outcomes(again) == [DELIVERED] * 3


def test_repeats_are_expected_after_some_were_met(database: Database) -> None:
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    cursor.deliver({P0: 1}, cursor.prepare([message(0, 1, name="a")]))
    for offset in range(1, 80):
        verdicts = cursor.deliver({P0: offset + 1}, cursor.prepare([message(offset, 1, name="a")]))
        assert outcomes(verdicts) == [DUPLICATE]
    assert database.one("select count(*) from relay_inbox") == 1


def test_the_plan_says_what_it_writes_to() -> None:
    assert TablePlan("r", "t", "shop", "ledger", "insert", COLUMNS).where == "table 'ledger' of resource 'shop'"

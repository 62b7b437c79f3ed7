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

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from relay.delivery.table.postgresql import effects as postgresql_effects
from relay.delivery.table.postgresql.cursor import PostgresqlCursor
from relay.delivery.table.verdicts import Limits, TablePlan
from relay.message.errors import Fenced, InDoubt, Retriable, Stopped, Unreachable
from relay.transfer.cursor import DEAD, DELIVERED, DUPLICATE, RangeRow
from relay.transfer.timers import ResendTimes
from tests.contracts.table_databases import (
    COLUMNS,
    P0,
    P1,
    TOPIC_ID,
    message,
    outcomes,
    plan,
)
from tests.integration.table_site import WAIT_S, Database
from tests.sent_through import sent_through


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


def test_a_commit_that_was_cancelled_when_it_was_durable_is_in_doubt_and_found_delivered(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    batch = cursor.prepare([message(0), message(1, -1), message(2)])
    execute = psycopg.Connection.execute

    def cancelled(connection: psycopg.Connection[Any], query: Any, *arguments: Any, **options: Any) -> Any:
        found = execute(connection, query, *arguments, **options)
        if query == "commit":
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        return found

    monkeypatch.setattr(psycopg.Connection, "execute", cancelled)
    with pytest.raises(InDoubt):
        cursor.deliver({P0: 3}, batch)
    monkeypatch.undo()

    assert outcomes(cursor.deliver({P0: 3}, batch)) == [DELIVERED, DEAD, DELIVERED]
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


def test_a_transaction_that_has_failed_unnoticed_is_no_delivery(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL answers its COMMIT with ROLLBACK, and that is no error."""
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    batch = cursor.prepare([message(0)])

    def failing(_: object, connection: psycopg.Connection[Any], __: object) -> dict[Any, int]:
        with suppress(psycopg.Error):
            connection.execute("select 1 / 0")
        return {}

    with monkeypatch.context() as patch:
        patch.setattr(PostgresqlCursor, "_trim_beside", failing)
        with pytest.raises(Retriable, match="nothing was written"):
            cursor.deliver({P0: 1}, batch)
    assert outcomes(cursor.deliver({P0: 1}, batch)) == [DELIVERED]
    assert database.one("select count(*) from ledger") == 1


def test_ranges_that_a_predecessor_writes_until_its_epoch_is_raised_come_with_the_claim(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = database.cursor()
    former.claim({P0: TOPIC_ID})
    raised = PostgresqlCursor._raise_epochs

    def raising(cursor: PostgresqlCursor, *given: Any) -> list[tuple[Any, ...]]:
        monkeypatch.setattr(PostgresqlCursor, "_raise_epochs", raised)
        former.deliver({P0: 1}, former.prepare([message(0)], [RangeRow(P0, bytes(16), b"state")]))
        return raised(cursor, *given)

    monkeypatch.setattr(PostgresqlCursor, "_raise_epochs", raising)
    claimed = database.cursor().claim({P0: TOPIC_ID})[P0]
    assert (claimed.position, [row.state for row in claimed.ranges]) == (1, [b"state"])


def test_a_server_that_only_reads_for_now_is_waited_for(database: Database) -> None:
    """As a standby does until it takes over: no message is at fault, and no person must mend anything."""
    database.do(f"alter database {conninfo_to_dict(database.url)['dbname']} set default_transaction_read_only = on")
    cursor = database.cursor()
    with pytest.raises(Retriable, match="nothing was written"):
        cursor.claim({P0: TOPIC_ID})

    database.do(f"alter database {conninfo_to_dict(database.url)['dbname']} reset default_transaction_read_only")
    assert cursor.claim({P0: TOPIC_ID})[P0].position is None, "a session keeps what was said when it began"


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
    batch = cursor.prepare([message(i) for i in range(200)])  # two seconds

    verdicts = sent_through(cursor, ResendTimes(0.4, 0.8, lambda: 0.0), {P0: 200}, batch)

    assert outcomes(verdicts) == [DELIVERED] * 200


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
    database.do("drop table ledger")
    with pytest.raises(Stopped, match="table 'ledger' of resource 'shop' does not exist for the worker's role; create it"):
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
from relay.delivery.table.postgresql.cursor import PostgresqlCursor
from tests.contracts.table_databases import P0, TOPIC_ID, message, plan
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


@pytest.mark.parametrize("mode", ["insert", "upsert"])
@pytest.mark.parametrize("number", ["serial", "bigint generated always as identity", "text default 'n-' || nextval('other')"])
def test_numbers_that_are_taken_stop_the_route_and_kill_no_message(database: Database, mode: str, number: str) -> None:
    database.do("create sequence other")
    database.do(f"create table t (n {number} primary key, id text unique, x int not null)")
    taken = "'n-' || i" if "text" in number else "i"
    database.do(f"insert into t overriding system value select {taken}, 'by-hand-' || i, 0 from generate_series(1, 2000) i")
    key = ("id",) if mode == "upsert" else ()
    cursor = database.cursor(table="t", columns={"id": "ce:id", "x": "json:/total"}, mode=mode, key=key)
    cursor.claim({P0: TOPIC_ID})
    batch = [message(0), message(1, "bad"), message(2)]
    with pytest.raises(Stopped, match=r"sequence of its column 'n'.*constraint t_pkey.*setval"):
        cursor.deliver({P0: 3}, cursor.prepare(batch))
    database.do("select setval(coalesce(pg_get_serial_sequence('t', 'n'), 'other')::regclass, 2000)")
    assert outcomes(cursor.deliver({P0: 3}, cursor.prepare(batch))) == [DELIVERED, DEAD, DELIVERED]


@pytest.mark.parametrize("columns", ["x serial primary key", "x int, n serial, unique (x) include (n)"])
def test_a_number_that_a_row_brings_itself_is_its_own_fault_where_it_is_taken(database: Database, columns: str) -> None:
    database.do(f"create table t (id text, {columns})")
    cursor = database.cursor(table="t", columns={"id": "ce:id", "x": "json:/total"})
    cursor.claim({P0: TOPIC_ID})
    found = cursor.deliver({P0: 2}, cursor.prepare([message(0, 7), message(1, 7)]))
    assert outcomes(found) == [DELIVERED, DEAD]

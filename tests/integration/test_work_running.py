"""One run of a handler on a real database: its writes and DONE in one commit, or neither, whatever the handler or the database does."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.message.errors import Stopped
from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Holder, QueueStore, Retired
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores import bind_store, open_store
from relay.queue.stores.sql_schema import create
from relay.resources import open_resource
from relay.work.desk import CallOver
from relay.work.desk_postgresql import PostgresqlDesk
from relay.work.desk_sqlite import SqliteDesk
from relay.work.desks import Database, Desks
from relay.work.dispatch import Outcome, Work
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import Handler, Unusable
from relay.world import schedule
from tests.capture_log import PANIC, DatabaseProxy
from tests.integration.handler_site import EFFECT, HOLDER, SETTINGS, OnceCancelled, Table, table

__all__ = ["table"]


def test_effect_and_done_are_one_commit(table: Table) -> None:
    ended = table.end(lambda _, db: db.execute(EFFECT))

    assert (ended.outcome, table.effects(), table.state()) == (Outcome.WRITTEN, 1, SubscriberState.DONE)


@pytest.mark.parametrize("says", ["", "set synchronous_commit = off", "set local synchronous_commit = off"])
def test_a_commit_that_others_rely_on_is_on_the_servers_disk_whatever_the_database_or_the_handler_says(
    says: str, postgres: str
) -> None:
    table = Table(postgres)
    table.run("create table at_commit (setting text)")
    table.run(
        """create function note() returns trigger language plpgsql as $$
        begin insert into at_commit values (current_setting('synchronous_commit')); return null; end $$"""
    )
    table.run(
        "create constraint trigger noted after insert on effect deferrable initially deferred for each row execute function note()"
    )
    with psycopg.connect(postgres) as connection:
        connection.execute(f"alter database {connection.info.dbname} set synchronous_commit = off".encode())

    def handle(_: Message, db: Database) -> None:
        if says:
            db.execute(says)
        db.execute(EFFECT)

    assert table.end(handle).outcome is Outcome.WRITTEN
    assert table.run("select setting from at_commit") == [("on",)]
    table.close()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_subscribers_that_end_at_once_close_their_message_whatever_isolation_the_database_has_by_default(
    level: str, postgres: str
) -> None:
    """The last of them must see the others: an older snapshot would leave the message open for ever."""
    settings = QueueSettings("q", Audience((Group("s", ("s",)), Group("t", ("t",)))))
    with psycopg.connect(postgres) as connection:
        create(connection)
        connection.execute(f"alter database {connection.info.dbname} set default_transaction_isolation = '{level}'".encode())
    store = open_store(settings, postgres)
    store.enter(Holder(HOLDER, "s", 0, None))
    store.put([NewMessage("p", "1", b"1")], 1)
    (taken,), (other,) = store.take("s", HOLDER, 1, 1), store.take("t", HOLDER, 1, 1)

    def bind(connection: Any) -> dict[str, QueueStore]:
        return {"q": bind_store(settings, postgres, connection)}

    desks = Desks(lambda: PostgresqlDesk("shop", psycopg.connect(postgres, autocommit=True), bind), 1)

    def handle(_: Message, db: Database) -> None:
        db.execute("select 1")
        assert store.finish("t", [other.ticket], 2) == [True]

    place = Place("q", "s", "queue:q", {"q": store}, {"q": schedule.lock()})
    (ended,) = Runner(Handler("q", handle, "shop", 0, "queue"), place, desks)(Work((taken,)))

    assert ended.outcome is Outcome.WRITTEN
    view = store.view(taken.ticket.handle)
    assert view is not None
    assert view.state is PublisherState.JOURNALLED
    desks.close()
    store.close()


def test_whoever_lost_the_message_meanwhile_leaves_no_effect(table: Table) -> None:
    def overtaken(_: Message, db: Database) -> None:
        # A peer takes this worker for dead while the handler runs.
        assert table.store.free("s", [table.taken.ticket], 2) == [True]
        db.execute(EFFECT)

    assert (table.end(overtaken).outcome, table.effects()) == (Outcome.LOST, 0)


def test_a_failure_takes_the_effect_back(table: Table) -> None:
    def failing(_: Message, db: Database) -> None:
        db.execute(EFFECT)
        raise ValueError("canary")

    ended = table.end(failing)

    assert (ended.outcome, table.effects(), table.state()) == (Outcome.FAILED, 0, SubscriberState.FETCHED)
    assert ended.cause.startswith("ValueError in failing")


def test_a_cause_names_the_line_of_the_handler_and_not_that_of_a_driver_or_library(table: Table) -> None:
    def failing(_: Message, db: Database) -> None:
        db.execute("insert into no_such_table values (1)")

    line = failing.__code__.co_firstlineno + 1
    assert table.end(failing).cause.endswith(f" in failing, line {line}")


@pytest.mark.parametrize("raised", [asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, SystemExit])
def test_whatever_a_handler_raises_is_a_failure_of_its_message(table: Table, raised: type[BaseException]) -> None:
    """Else one message ends process after process, and no failure of it is ever counted."""

    def failing(_: Message, db: Database) -> None:
        db.execute(EFFECT)
        raise raised

    ended = table.end(failing)

    assert (ended.outcome, table.effects(), table.state()) == (Outcome.FAILED, 0, SubscriberState.FETCHED)
    assert ended.cause.startswith(f"{raised.__name__} in failing")
    # The connection and the file's gate were given back.
    assert table.end(lambda _, db: db.execute(EFFECT)).outcome is Outcome.WRITTEN


def test_a_constraint_that_the_commit_checks_is_a_failure_of_the_message(table: Table) -> None:
    ended = table.end(lambda _, db: db.execute("insert into effect (number) values (2)"))

    assert (ended.outcome, table.effects(), table.state()) == (Outcome.FAILED, 0, SubscriberState.FETCHED)


@pytest.mark.parametrize("table", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        # Whatever state its author chose: as the database's doing it would be tried for ever.
        *((state, Outcome.FAILED) for state in ("P0001", "42501", "42P01", "55000", "54000", "53400")),
        *((state, Outcome.AWAY) for state in ("40001", "53100", "55P03")),  # what the server itself says when it is busy or full
        *((state, Outcome.BACK) for state in ("57P03", "58030")),  # no word about the transaction
    ],
)
def test_what_a_trigger_raises_only_at_the_commit_is_judged_by_its_state(table: Table, state: str, outcome: Outcome) -> None:
    table.run(
        f"""create function refuse() returns trigger language plpgsql as $$
        begin raise exception 'no' using errcode = '{state}'; end $$"""
    )
    table.run(
        "create constraint trigger refused after insert on effect deferrable initially deferred for each row execute function refuse()"
    )
    ended = table.end(lambda _, db: db.execute(EFFECT))

    assert (ended.outcome, table.effects(), table.state()) == (outcome, 0, SubscriberState.FETCHED)


@pytest.mark.parametrize("word", ["commit", "rollback"])
def test_a_handler_that_ends_the_transaction_itself_is_told_so(table: Table, word: str) -> None:
    def meddling(_: Message, db: Database) -> None:
        db.execute(EFFECT)
        db.execute(word)

    ended = table.end(meddling)

    assert ended.outcome is Outcome.FAILED
    assert "ended the transaction itself" in ended.cause
    assert table.state() is SubscriberState.FETCHED


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_handler_leaves_behind_writes_nothing_after_it_and_keeps_no_connection(table: Table, fails: bool) -> None:
    kept: list[Database] = []

    def leaving(_: Message, db: Database) -> None:
        kept.append(db)
        db.execute(EFFECT)
        if fails:
            raise ValueError

    table.end(leaving)
    before = table.effects()

    with pytest.raises(CallOver):
        kept[0].execute(EFFECT)
    with pytest.raises(CallOver):
        kept[0].executemany(EFFECT, [()])

    assert table.effects() == before
    desk = table.desks.borrow()  # the only one there is: it would wait for ever
    desk.rollback()
    table.desks.give_back(desk)


def test_an_error_that_the_handler_swallows_is_no_success(table: Table) -> None:
    def swallowing(_: Message, db: Database) -> None:
        db.execute(EFFECT)
        try:
            db.execute("select * from nowhere")
        except (psycopg.Error, sqlite3.Error):
            return

    ended = table.end(swallowing)

    # SQLite goes on after a statement that failed, PostgreSQL does not: either way effect and DONE agree.
    assert (table.effects() == 1) == (table.state() is SubscriberState.DONE)
    assert (ended.outcome is Outcome.WRITTEN) == (table.effects() == 1)


@pytest.mark.parametrize("table", ["postgresql"], indirect=True)
def test_an_error_that_the_handler_swallows_is_its_own_where_the_queue_lies_elsewhere(table: Table) -> None:
    def swallowing(_: Message, db: Database) -> None:
        with suppress(psycopg.Error):
            db.execute("select * from nowhere")

    table.desks = Desks(lambda: PostgresqlDesk("shop", psycopg.connect(table.url, autocommit=True), lambda _: {}), 1)
    ended = table.end(swallowing)

    assert ended.outcome is Outcome.FAILED, "as the database's doing it would be tried again for ever"
    assert "a statement had failed" in ended.cause


@pytest.mark.parametrize("table", ["postgresql"], indirect=True)
@pytest.mark.parametrize("says", [True, False])
def test_a_connection_lost_before_the_commit_is_the_databases_doing(table: Table, says: bool) -> None:
    """Also where the network cut it, and the server has said nothing."""

    def cut_off(_: Message, db: Database) -> None:
        db.execute(EFFECT)
        cursor = db.execute("select pg_backend_pid()")
        ((backend,),) = cursor.fetchall()
        if says:
            table.run(f"select pg_terminate_backend({backend})")
        else:
            with socket.socket(fileno=os.dup(cursor.connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)
        db.execute(EFFECT)

    assert (table.end(cut_off).outcome, table.effects()) == (Outcome.AWAY, 0)
    assert table.end(lambda _, db: db.execute(EFFECT)).outcome is Outcome.WRITTEN


@pytest.mark.parametrize("table", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("first", "outcome"),
    [
        (["set local transaction_read_only = on"], Outcome.AWAY),  # a standby, before it is promoted
        (["do $$begin raise sqlstate '53100'; end$$"], Outcome.AWAY),  # its disk is full
        (["set local statement_timeout = '1ms'", "select pg_sleep(1)"], Outcome.FAILED),
        (["do $$begin raise sqlstate 'P0001'; end$$"], Outcome.FAILED),
    ],
)
def test_a_database_that_does_not_write_now_costs_the_message_no_try(
    table: Table, first: list[str], outcome: Outcome
) -> None:
    def run(_: Message, db: Database) -> None:
        for statement in (*first, EFFECT):
            db.execute(statement)

    ended = table.end(run)

    assert (ended.outcome, table.effects()) == (outcome, 0)


@pytest.mark.parametrize("table", ["postgresql"], indirect=True)
def test_a_database_that_only_reads_after_a_failover_is_no_failure_of_the_message(table: Table) -> None:
    ((name,),) = table.run("select current_database()")
    table.run(f"alter database {name} set default_transaction_read_only = on")

    assert (table.end(lambda _, db: db.execute(EFFECT)).outcome, table.effects()) == (Outcome.AWAY, 0)


@pytest.mark.parametrize("table", ["postgresql"], indirect=True)
def test_a_handler_that_lets_its_session_only_read_keeps_no_later_message_from_its_effect(table: Table) -> None:
    def reading(_: Message, db: Database) -> None:
        db.execute("set default_transaction_read_only = on")

    assert table.end(reading).outcome is Outcome.WRITTEN
    desk = table.desks.borrow()
    ((reads_only,),) = desk.execute("show transaction_read_only").fetchall()
    desk.rollback()
    table.desks.give_back(desk)

    assert reads_only == "off"


@pytest.mark.parametrize("table", ["postgresql"], indirect=True)
def test_a_commit_without_an_answer_is_in_doubt_and_the_guarded_write_tells(table: Table) -> None:
    def cut_off(_: Message, db: Database) -> None:
        db.execute(EFFECT)
        desk = db.begun()
        ((backend,),) = db.execute("select pg_backend_pid()").fetchall()
        before = desk.commit

        def commit() -> None:
            table.run(f"select pg_terminate_backend({backend})")
            before()

        desk.commit = commit  # type: ignore[method-assign]

    assert table.end(cut_off).outcome is Outcome.BACK
    # The worker's next write frees it, which the database refuses if the commit had held.
    assert table.store.free("s", [table.taken.ticket], 2) == [table.effects() == 0]


@pytest.mark.parametrize("is_panic", [False, True])
def test_a_commit_that_is_answered_by_an_error_when_it_was_durable_is_found_to_hold(
    postgres: str, tmp_path: Path, is_panic: bool
) -> None:
    """Taken for a rollback, the message would have its effect a second time, and its child would be thrown away."""
    shop = psycopg.connect(postgres, autocommit=True)
    shop.execute("create table effect (number integer)")
    open_resource("shop", postgres).create_tables()
    queue, audit = (
        open_store(QueueSettings(name, SETTINGS.audience), f"sqlite:///{tmp_path}/queues.db") for name in ("q", "audit")
    )
    queue.enter(Holder(HOLDER, "s", 0, "resource:shop"))
    queue.put([NewMessage("p", "1", b"1")], 1)
    (taken,) = queue.take("s", HOLDER, 1, 1)

    def handle(message: Message, db: Database) -> None:
        db.execute(EFFECT)
        message.publish("audit", b"child")

    place = Place(
        "q", "s", "resource:shop", {"q": queue, "audit": audit}, {"q": schedule.lock(), "audit": schedule.lock()}
    )
    proxy = DatabaseProxy(postgres)
    proxy.lose_answer_to, proxy.instead = b"; commit\0", PANIC
    lost = psycopg.connect(proxy.url + "?sslmode=disable", autocommit=True) if is_panic else OnceCancelled.connect(postgres, autocommit=True)
    if isinstance(lost, OnceCancelled):
        lost.is_due = True
    connections = [lost]

    def opened() -> PostgresqlDesk:
        connection = connections.pop() if connections else psycopg.connect(postgres, autocommit=True)
        return PostgresqlDesk("shop", connection, lambda _: {})

    desks = Desks(opened, 1)

    with proxy:
        (ended,) = Runner(Handler("q", handle, "shop", 0, "queue"), place, desks)(Work((taken,)))

    assert shop.execute("select count(*) from effect").fetchall() == [(1,)]
    assert ended.outcome is Outcome.DONE
    assert len(audit.children(10)) == 1, "recovery shows it"
    desks.close()
    queue.close()
    audit.close()
    shop.close()


def test_an_error_after_the_decision_is_no_failure_of_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler's database has committed: given back, the message would have its effect a second time."""
    queue, audit = (
        open_store(QueueSettings(name, SETTINGS.audience), f"sqlite:///{tmp_path}/queues.db") for name in ("q", "audit")
    )
    queue.enter(Holder(HOLDER, "s", 0, "resource:shop"))
    queue.put([NewMessage("p", "1", b"1")], 1)
    (taken,) = queue.take("s", HOLDER, 1, 1)
    shop = sqlite3.connect(tmp_path / "shop.db", isolation_level=None, check_same_thread=False)
    shop.execute("create table relay_attempt (attempt text primary key, committed integer, settled_at integer)")
    shop.execute("create table effect (number integer)")
    desks = Desks(lambda: SqliteDesk("shop", shop, lambda _: {}, schedule.lock()), 1)

    def handle(message: Message, db: Database) -> None:
        db.execute(EFFECT)
        message.publish("audit", b"child")

    def refused(*_: object) -> list[bool]:
        raise Stopped("the queue's files are damaged")

    place = Place(
        "q", "s", "resource:shop", {"q": queue, "audit": audit}, {"q": schedule.lock(), "audit": schedule.lock()}
    )
    monkeypatch.setattr(audit, "accept", refused)

    (ended,) = Runner(Handler("q", handle, "shop", 0, "queue"), place, desks)(Work((taken,)))

    assert shop.execute("select count(*) from effect").fetchall() == [(1,)]
    assert ended.outcome is Outcome.DONE, "its effect holds, whoever shows the child"
    assert [one.attempt for one in audit.children(10)] == [place.attempt(taken)], "recovery shows it"
    desks.close()
    queue.close()
    audit.close()


@pytest.mark.parametrize("is_near", [False, True])
def test_a_queue_that_has_moved_ends_the_process_of_who_publishes_to_it(tmp_path: Path, is_near: bool) -> None:
    """The process has the old store open for good: tried again in it, its messages would never get through."""
    url = f"sqlite:///{tmp_path}/queues.db"
    queue, audit = (open_store(QueueSettings(name, SETTINGS.audience), url) for name in ("q", "audit"))
    queue.enter(Holder(HOLDER, "s", 0, None))
    queue.put([NewMessage("p", "1", b"1")], 1)
    (taken,) = queue.take("s", HOLDER, 1, 1)
    file = sqlite3.connect(tmp_path / "queues.db", isolation_level=None, check_same_thread=False)
    near = {name: bind_store(store.settings, url, file) for name, store in (("q", queue), ("audit", audit))}
    desks = Desks(lambda: SqliteDesk("shop", file, lambda _: near, schedule.lock()), 1)
    audit.retire()

    def handle(message: Message, *_: object) -> None:
        message.publish("audit", b"child")

    place = Place(
        "q", "s", "queue:q", {"q": queue, "audit": audit}, {"q": schedule.lock(), "audit": schedule.lock()}
    )
    runner = Runner(Handler("q", handle, "shop" if is_near else None, 0, "queue"), place, desks if is_near else None)

    with pytest.raises(Retired):
        runner(Work((taken,)))

    assert queue.holds("s", [taken.ticket]) == [SubscriberState.FETCHED], "recovery gives it back"
    desks.close()
    queue.close()
    audit.close()


def test_a_cause_is_written_whatever_it_quotes(table: Table) -> None:
    def unusable(*_: object) -> None:
        raise Unusable("no account a\0b \ud800 " + "x" * 100_000)

    ended = table.end(unusable)

    assert table.store.refuse("s", [(ended.taken.ticket, ended.cause)], 2) == [True]
    view = table.store.view(ended.taken.ticket.handle)
    assert view is not None
    cause = view.subscribers[0].cause
    assert cause is not None
    assert cause.startswith("no account a\\x00b \\ud800 xx")
    assert len(cause) < 5_000

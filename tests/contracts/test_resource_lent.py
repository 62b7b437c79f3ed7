"""What a block is lent of a database's connection: cursors that have their rows and end with it, and not its transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.adapt import AdaptersMap
from psycopg.types.json import JsonDumper
from psycopg.types.string import ByteaLoader

from relay.message.errors import CaptureError
from relay.resources import open_resource
from relay.resources.port import Resource, Session
from relay.resources.postgresql import own_cursor
from tests.contracts.resource_contract import LOCK_TIMEOUT_S, PLACED

SQLITE = pytest.mark.parametrize("kind", ["sqlite"])
POSTGRESQL = pytest.mark.parametrize("kind", ["postgresql"])


@pytest.fixture(params=["postgresql", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def resource(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    url = request.getfixturevalue("postgres") if kind == "postgresql" else f"sqlite:///{tmp_path}/shop.db"
    found: Any = open_resource("shop", url, LOCK_TIMEOUT_S)
    found.create_tables()
    connection = found.connect()
    connection.execute("create table orders (id integer primary key, what text)")
    connection.close()
    return found


@pytest.fixture
def session(resource: Resource) -> Iterator[Session]:
    opened = resource.session()
    yield opened
    opened.close()


def begin(session: Session) -> bytes:
    return session.begin()[0]


def rows(resource: Any) -> list[tuple[object, ...]]:
    connection = resource.connect()
    found = connection.execute("select id, what from orders order by id").fetchall()
    connection.close()
    return list(found)


@pytest.mark.parametrize("committed", [True, False])
def test_a_cursor_runs_nothing_behind_its_block_and_keeps_its_rows(session: Session, resource: Resource, committed: bool) -> None:
    capture = begin(session)
    cursor = session.execute("insert into orders values (1, 'tea') returning id")
    if committed:
        session.decide(capture, PLACED)
    else:
        session.rollback()
    idle = cursor.connection.cursor()
    between = begin(session)

    for kept in (cursor, idle):
        for use in (partial(kept.execute, "insert into orders values (2, 'milk')"), partial(kept.executemany, "delete from orders", [()])):
            with pytest.raises(CaptureError, match="the block of this cursor is over"):
                use()
    assert cursor.fetchall() == [(1,)]
    assert session.is_intact(between)
    session.rollback()
    assert rows(resource) == [(1, "tea")] * committed


@pytest.mark.parametrize("name", ["commit", "rollback"])
def test_the_transaction_is_not_lent(session: Session, name: str) -> None:
    capture = begin(session)
    connection = session.execute("insert into orders values (1, 'tea')").connection

    with pytest.raises(CaptureError, match=r"use tx\.savepoint\(\) to undo a part of it"):
        getattr(connection, name)()

    assert session.is_intact(capture)
    session.decide(capture, PLACED)


@POSTGRESQL
def test_neither_a_savepoint_of_the_drivers_nor_what_reads_on_behind_a_block(session: Session) -> None:
    capture = begin(session)
    cursor = session.execute("select 1")
    with pytest.raises(CaptureError, match=r"use tx\.savepoint\(\)"), cursor.connection.transaction():
        pass
    session.decide(capture, PLACED)

    for use in (lambda: next(cursor.stream("select 1")), lambda: cursor.copy("copy orders to stdout").__enter__()):
        with pytest.raises(CaptureError, match="the block of this cursor is over"):
            use()
    assert session.usable


def pages(session: Session) -> Iterator[int]:
    """Read rows as they are asked for."""
    with session.execute("select 1").connection.cursor("pages") as cursor:
        for row in cursor.execute("select generate_series(1, 10)"):
            yield row[0]


@POSTGRESQL
def test_rows_that_the_server_has_are_not_asked_for_in_a_later_block(session: Session, resource: Resource) -> None:
    capture = begin(session)
    closed, read = pages(session), pages(session)
    assert next(closed) == 1
    held = session.execute("select 1").connection.cursor("held", withhold=True)
    held.execute("select 1")
    session.decide(capture, PLACED)

    capture = begin(session)
    session.execute("insert into orders values (1, 'tea')")
    closed.close()  # as whoever collects a generator does
    for use in (held.fetchone, held.fetchall, held.fetchmany, partial(next, held), partial(held.scroll, 1), partial(held.execute, "select 1")):
        with pytest.raises(CaptureError, match="the block of this cursor is over"):
            use()
    held.close()
    assert list(read) == list(range(1, 11)), "this one begins in the block"
    session.decide(capture, PLACED)
    assert rows(resource) == [(1, "tea")]


INSERT = "insert into orders values (%s, 'tea')"


def fail_in_a_pipeline(session: Session) -> None:
    connection = session.execute(INSERT, (1,)).connection

    def send() -> None:
        with connection.pipeline():
            session.execute("select 1 / 0")
            connection.cursor().execute(INSERT, (2,), prepare=True)

    with pytest.raises(psycopg.errors.DivisionByZero):
        send()


def fail_on_many_rows(session: Session) -> None:
    connection = session.execute(INSERT, (1,)).connection
    connection.execute("alter table orders rename to bills")
    with pytest.raises(psycopg.errors.UndefinedTable):
        connection.cursor().executemany(INSERT, [(2,), (3,)])


@pytest.mark.parametrize("fail", [fail_in_a_pipeline, fail_on_many_rows])
@POSTGRESQL
def test_what_a_failed_pipeline_has_not_prepared_fails_no_later_block(resource: Resource, fail: Callable[[Session], None]) -> None:
    session = resource.session()
    begin(session)
    fail(session)
    session.rollback()

    later = session if session.usable else resource.session()
    capture = begin(later)
    later.execute(INSERT, (4,))
    later.decide(capture, PLACED)
    assert rows(resource) == [(4, "tea")]
    session.close()
    later.close()


@pytest.mark.parametrize("fail", [fail_in_a_pipeline, fail_on_many_rows])
@POSTGRESQL
def test_nor_what_comes_behind_a_savepoint_that_was_undone(session: Session, resource: Resource, fail: Callable[[Session], None]) -> None:
    capture = begin(session)
    for number in (5, 6):
        session.savepoint(1)
        fail(session)
        session.rollback_to(1)
        session.execute(INSERT, (number,))
    session.decide(capture, PLACED)

    assert rows(resource) == [(5, "tea"), (6, "tea")]
    assert not session.usable, "the next block would prepare nothing"


def changed_elsewhere(resource: Any, column: str) -> None:
    connection = resource.connect()
    connection.execute(f"alter table orders add column {column} text")
    connection.close()


@POSTGRESQL
def test_what_was_prepared_for_a_table_that_has_changed_fails_once(session: Session, resource: Resource) -> None:
    capture = begin(session)
    for number in range(7):  # more than psycopg runs unprepared
        session.execute(INSERT + " returning *", (number,))
    session.decide(capture, PLACED)
    changed_elsewhere(resource, "paid")
    begin(session)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="cached plan"):
        session.execute(INSERT + " returning *", (8,))
    session.rollback()

    later = session if session.usable else resource.session()
    capture = begin(later)
    assert later.execute(INSERT + " returning *", (9,)).fetchall() == [(9, "tea", None)]
    later.decide(capture, PLACED)
    later.close()


@POSTGRESQL
def test_and_once_in_a_savepoint(session: Session, resource: Resource) -> None:
    capture = begin(session)
    for number in range(7):
        session.execute(INSERT + " returning *", (number,))
    session.decide(capture, PLACED)
    changed_elsewhere(resource, "paid")
    capture = begin(session)
    session.savepoint(1)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="cached plan"):
        session.execute(INSERT + " returning *", (8,))
    session.rollback_to(1)

    assert session.execute(INSERT + " returning *", (9,)).fetchall() == [(9, "tea", None)]
    session.decide(capture, PLACED)


@POSTGRESQL
def test_what_an_application_registers_with_psycopg_is_for_its_statements_only(resource: Resource, monkeypatch: pytest.MonkeyPatch) -> None:
    registered = AdaptersMap(psycopg.adapters)
    registered.register_dumper(list, JsonDumper)
    monkeypatch.setattr(psycopg.postgres, "adapters", registered)
    session, decisions = resource.session(), resource.decisions()

    capture = begin(session)
    session.execute("insert into orders values (1, %s)", (["tea"],))
    session.decide(capture, PLACED)
    decisions.mark([capture])
    assert decisions.read([capture])[capture].committed
    assert decisions.aged(-60, 10, ["orders"]) == decisions.unmarked(-60, 10) == []
    assert rows(resource) == [(1, '["tea"]')]
    session.close()
    decisions.close()


@POSTGRESQL
def test_what_an_application_registers_with_its_connection_is_not_for_the_relays_statements_there(resource: Any) -> None:
    """Queues, and what handlers have done, are asked of it with lists."""
    with resource.connect() as connection:
        connection.adapters.register_dumper(list, JsonDumper)
        connection.adapters.register_loader("text", ByteaLoader)

        assert own_cursor(connection).execute("select 'tea' where 'tea' = any(%s)", (["tea"],)).fetchone() == ("tea",)


@SQLITE
def test_a_script_which_would_commit_is_not_run(session: Session, resource: Resource) -> None:
    capture = begin(session)
    cursor = session.execute("insert into orders values (1, 'tea')")

    for runs in (cursor, cursor.connection):
        with pytest.raises(CaptureError, match="for each statement of a script"):
            runs.executescript("insert into orders values (2, 'milk')")

    session.decide(capture, PLACED)
    assert rows(resource) == [(1, "tea")]


def test_rows_are_those_that_the_block_saw(session: Session) -> None:
    begin(session)
    session.execute("insert into orders values (1, 'tea'), (2, 'milk'), (3, 'bread')")
    cursor = session.execute("select what from orders order by id")
    session.rollback()
    begin(session)
    session.execute("insert into orders values (1, 'never'), (2, 'never'), (3, 'never')")

    assert cursor.fetchall() == [("tea",), ("milk",), ("bread",)]

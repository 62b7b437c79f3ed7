"""What a handler leaves under way on its connection, a stream or a thread of its own, neither hangs nor writes after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from relay.queue.states import SubscriberState
from relay.work.desk import CallOver
from relay.work.desks import Database
from relay.work.dispatch import Outcome
from relay.work.further import FurtherDatabase
from relay.work.message import Message
from relay.work.testing import database
from relay.world import clock, schedule
from tests.integration.handler_site import EFFECT, Books, Table
from tests.routes import wait_for

ROWS = "select generate_series(1, 100000)"


def stream(db: Database | FurtherDatabase) -> Iterator[Any]:
    """Begin to read rows, and leave the rest with the server."""
    rows = db.execute("select 1").connection.cursor().stream(ROWS)
    next(rows)
    return rows


def test_an_error_in_the_middle_of_a_stream_is_a_failure_of_the_message_and_holds_up_nothing(table: Table) -> None:
    kept = []

    def failing(_: Message, db: Database) -> None:
        db.execute(EFFECT)
        kept.append(stream(db))
        raise ValueError

    assert table.end(failing).outcome is Outcome.FAILED

    assert (table.effects(), table.state()) == (0, SubscriberState.FETCHED)
    assert table.end(lambda _, db: db.execute(EFFECT)).outcome is Outcome.WRITTEN


def test_a_stream_that_is_left_open_is_no_success(table: Table) -> None:
    kept = []

    def leaving(_: Message, db: Database) -> None:
        db.execute(EFFECT)
        kept.append(stream(db))

    ended = table.end(leaving)

    assert (ended.outcome, table.effects()) == (Outcome.FAILED, 0)
    assert "left a stream" in ended.cause


def test_a_copy_or_a_pipeline_that_is_left_open_is_no_success(table: Table) -> None:
    kept: list[Any] = []

    def copying(_: Message, db: Database) -> None:
        kept.append(db.execute("select 1").connection.cursor().copy("copy effect (number) from stdin"))
        kept[-1].__enter__().write_row((1,))

    def piping(_: Message, db: Database) -> None:
        kept.append(db.execute("select 1").connection.pipeline())
        kept[-1].__enter__()
        db.execute(EFFECT)

    assert "left a stream" in table.end(copying).cause
    assert "left a stream" in table.end(piping).cause
    assert table.effects() == 0
    assert table.end(lambda _, db: db.execute(EFFECT)).outcome is Outcome.WRITTEN


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_in_a_further_database_holds_up_nothing_either(books: Books, fails: bool) -> None:
    kept = []

    def leaving(_: Message, __: Database, ledger: FurtherDatabase) -> None:
        ledger.execute("insert into entry values (1)")
        kept.append(stream(ledger))
        if fails:
            raise ValueError

    assert books.end(leaving) is Outcome.FAILED

    assert (books.entries(), books.prepared.pending()) == (0, [])
    assert books.end(lambda _, __, ledger: ledger.execute("insert into entry values (1)")) is Outcome.WRITTEN


class LeftBehind:
    """Two threads of a handler's: the statement of the first runs, that of the second waits for it when the handler raises."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.ends: list[BaseException | None] = []

    def __call__(self, db: Database | FurtherDatabase, statement: str) -> None:
        (backend,) = db.execute("select pg_backend_pid()").fetchone()
        watching = psycopg.connect(self._url, autocommit=True)
        watching.execute("select pg_advisory_lock(1)")
        self._start(db, "select pg_advisory_xact_lock(1)")
        asked = "select 1 from pg_stat_activity where pid = %s and wait_event = 'advisory'"
        wait_for(lambda: watching.execute(asked, (backend,)).fetchone(), what="a statement of the thread")
        self._start(db, statement)
        clock.sleep(0.2)

        def let_go() -> None:
            with watching:
                wait_for(lambda: db._is_over, what="the handler's end being said while a statement runs")

        schedule.start_thread("lets-go", let_go)
        raise TimeoutError

    def _start(self, db: Database | FurtherDatabase, statement: str) -> None:
        def write() -> None:
            try:
                db.execute(statement)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
                self.ends.append(error)
            else:
                self.ends.append(None)

        schedule.start_thread("left-behind", write)

    def check(self) -> None:
        """The first was waited for, and the second told: it would have run after the transaction, by itself."""
        wait_for(lambda: len(self.ends) == 2, what="the end of both threads")
        first, second = self.ends
        assert first is None
        assert isinstance(second, CallOver)


def test_no_statement_of_a_thread_that_is_left_behind_runs_after_the_transaction(table: Table) -> None:
    left = LeftBehind(table.url)

    assert table.end(lambda _, db: left(db, EFFECT)).outcome is Outcome.FAILED

    left.check()
    assert table.effects() == 0


def test_no_statement_of_such_a_thread_runs_in_a_further_database_either(books: Books, postgres: str) -> None:
    left = LeftBehind(postgres)

    assert books.end(lambda _, __, ledger: left(ledger, "insert into entry values (1)")) is Outcome.FAILED

    left.check()
    assert books.entries() == 0


def test_a_statement_that_was_prepared_for_a_table_which_has_changed_fails_one_message(postgres: str) -> None:
    def run(*, fails: bool = False) -> list[Any]:
        with database(connection) as db:
            cursor = db.execute("insert into effect (number) values (1) returning *")
            if fails:
                raise ValueError("of its own")
            return list(cursor.fetchall())

    with psycopg.connect(postgres, autocommit=True) as admin, psycopg.connect(postgres, autocommit=True) as connection:
        admin.execute("create table effect (number integer)")
        with pytest.raises(ValueError, match="of its own"):
            run(fails=True)
        for _ in range(7):  # more than psycopg runs unprepared
            run()
        admin.execute("alter table effect add column what text")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="cached plan"):
            run()

        assert run() == [(1, None)]

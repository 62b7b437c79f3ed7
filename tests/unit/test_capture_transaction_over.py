"""A block whose database transaction is over, or is another process's: nothing more of it takes effect."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from relay.capture.block import CaptureBlock
from relay.capture.capture import Capture
from relay.message.errors import CaptureError, CaptureInDoubt
from relay.resources import open_resource
from relay.resources.port import AnswerLost, CommitRefused
from relay.world import clock

UNDONE_WHOLE = """create trigger never before insert on orders when new.id < 0
    begin select raise(rollback, 'a row that ends the transaction'); end"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def capture(path: Path) -> Iterator[Capture]:
    resource = open_resource("shop", f"sqlite:///{path}")
    resource.create_tables()
    with sqlite3.connect(path) as connection:
        connection.execute("create table orders (id integer primary key)")
        connection.execute(UNDONE_WHOLE)
    with Capture(kafka={"bootstrap.servers": "127.0.0.1:1"}, resource=resource, source="/s") as made:
        yield made


def orders(path: Path) -> list[int]:
    with sqlite3.connect(path) as connection:
        return [row[0] for row in connection.execute("select id from orders order by id")]


def fails_in_doubt(capture: Capture, block: Callable[[CaptureBlock], None]) -> None:
    def run() -> None:
        with capture.transaction() as tx:
            block(tx)

    with pytest.raises(CaptureInDoubt, match="ended the database transaction themselves"):
        run()


def test_a_statement_after_a_row_that_rolled_everything_back_is_not_run(capture: Capture, path: Path) -> None:
    def block(tx: CaptureBlock) -> None:
        tx.execute("insert into orders values (1)")
        with tx.savepoint():
            with suppress(sqlite3.Error):
                tx.execute("insert into orders values (-1)")
            tx.execute("insert into orders values (2)")

    fails_in_doubt(capture, block)

    assert orders(path) == []


def test_nor_a_savepoint_which_would_begin_a_transaction_of_its_own(capture: Capture, path: Path) -> None:
    def block(tx: CaptureBlock) -> None:
        tx._session.execute("rollback")
        with tx.savepoint():
            tx.execute("insert into orders values (2)")

    fails_in_doubt(capture, block)

    assert orders(path) == []


def test_a_statement_that_would_undo_rows_without_their_messages_is_not_run(capture: Capture, path: Path) -> None:
    with pytest.raises(CaptureError, match=r"SAVEPOINT in tx\.execute.*use tx\.savepoint"), capture.transaction() as tx:  # noqa: PT012
        tx.execute("insert into orders values (1)")
        tx.execute("savepoint item")

    assert orders(path) == []


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_nor_one_after_the_block_has_ended_its_transaction_itself(capture: Capture, path: Path, ending: str) -> None:
    def block(tx: CaptureBlock) -> None:
        tx.execute("insert into orders values (1)")
        tx._session.execute(ending)
        tx.execute("insert into orders values (2)")

    fails_in_doubt(capture, block)

    assert orders(path) == ([1] if ending == "commit" else [])


def test_a_failure_that_the_block_swallowed_takes_back_nothing_that_it_committed_before(
    capture: Capture, path: Path
) -> None:
    def block(tx: CaptureBlock) -> None:
        tx.execute("insert into orders values (1)")
        tx._session.execute("commit")
        tx._session.execute("begin")
        with suppress(sqlite3.Error):
            tx.execute("insert into orders values (1)")

    fails_in_doubt(capture, block)

    assert orders(path) == [1]


def test_a_block_that_went_on_in_a_fork_leaves_the_parents_transaction_alone(
    capture: Capture, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
        with monkeypatch.context() as in_the_fork:
            in_the_fork.setattr(os, "getpid", lambda: -1)
            for use in (lambda: tx.execute("insert into orders values (2)"), lambda: tx.publish("orders", 1)):
                with pytest.raises(CaptureError, match="in each process, after the fork"):
                    use()
            with pytest.raises(CaptureError, match="in each process, after the fork"):
                tx.__exit__(None, None, None)
            assert tx.__exit__(ValueError, ValueError(), None) is None
        tx.execute("insert into orders values (3)")

    assert orders(path) == [1, 3]


def test_a_savepoint_that_went_on_in_a_fork_leaves_the_parents_alone(
    capture: Capture, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture.transaction() as tx:
        savepoint = tx.savepoint()
        savepoint.__enter__()
        tx.execute("insert into orders values (1)")
        with monkeypatch.context() as in_the_fork:
            in_the_fork.setattr(os, "getpid", lambda: -1)
            assert not savepoint.__exit__(ValueError, ValueError("of the child's"), None)
        tx.execute("insert into orders values (2)")

    assert orders(path) == [1, 2]


def test_an_interrupt_while_a_block_is_entered_leaves_no_transaction_open(
    capture: Capture, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(clock, "wall_iso", interrupt)
        with pytest.raises(KeyboardInterrupt):
            capture.transaction().__enter__()

    with capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
    assert orders(path) == [1]


def test_an_error_for_an_answer_is_held_against_the_row(
    capture: Capture, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
        session = tx._session
        decide = session.decide

        def committed_and_refused(*given: bytes) -> None:
            decide(*given)
            session.close()
            raise CommitRefused("cancelled, when the commit was on the disk already")

        monkeypatch.setattr(session, "decide", committed_and_refused)
    assert orders(path) == [1]


def test_a_block_interrupted_while_its_lost_answer_is_looked_for_stays_in_doubt(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubted: list[bytes] = []

    def lost(*_: object) -> None:
        raise AnswerLost("the answer to COMMIT was lost")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def run() -> None:
        with capture.transaction() as tx:
            monkeypatch.setattr(tx._session, "decide", lost)

    monkeypatch.setattr(capture._publisher, "find_out", interrupted)
    monkeypatch.setattr(capture._publisher, "doubt", lambda capture_id, *_: doubted.append(capture_id))
    with pytest.raises(KeyboardInterrupt):
        run()

    assert len(doubted) == 1

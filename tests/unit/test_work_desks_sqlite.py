"""A handler's connection to an SQLite file: one writer at a time, and nothing behind the end of its transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.work.desk import DatabaseAway, EffectsInDoubt, TransactionTaken
from relay.work.desk_sqlite import SqliteDesk
from relay.work.desks import Database, Desks
from relay.world import schedule


class Spoilt(sqlite3.Connection):
    """Fails to commit or to roll back: before it has, or afterwards."""

    fails = ""
    after = False

    def execute(self, query: str, *parameters: Any) -> sqlite3.Cursor:
        if query == self.fails and not self.after:
            raise sqlite3.OperationalError("disk I/O error")
        done = super().execute(query, *parameters)
        if query == self.fails:
            raise sqlite3.OperationalError("disk I/O error")
        return done


class File:
    """A handler's database in a file, and a desk at it."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, factory=Spoilt, timeout=0.0)
        self.gate = schedule.lock()
        self.desk = SqliteDesk("shop", self.connection, lambda _: {}, self.gate)

    @property
    def is_free(self) -> bool:
        """May another thread write now?"""
        if not self.gate.acquire(blocking=False):
            return False
        self.gate.release()
        return True


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "shop.db")


def test_a_file_that_another_process_writes_to_holds_up_no_other_thread_here(file: File, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    other.execute("begin immediate")

    with pytest.raises(DatabaseAway, match="held by another writer"):
        file.desk.begin()
    assert (file.is_free, file.desk.usable) == (True, True)

    other.execute("rollback")
    file.desk.begin()
    assert (file.is_free, file.desk.usable) == (False, False)
    file.desk.commit()
    assert (file.is_free, file.desk.usable) == (True, True)


def test_a_file_that_nobody_writes_to_and_that_cannot_be_used_is_not_said_to_have_a_writer(file: File, tmp_path: Path) -> None:
    (tmp_path / "shop.db").write_bytes(b"no database" * 100)

    with pytest.raises(DatabaseAway, match=r"cannot be used \(SQLITE_NOTADB\)"):
        file.desk.begin()
    assert (file.is_free, file.desk.usable) == (True, True)


@pytest.mark.parametrize("words", ["commit", "rollback"])
def test_a_transaction_that_the_handler_has_ended_is_none_to_commit(file: File, words: str) -> None:
    file.desk.begin()
    file.desk.execute(words)

    for asked in (file.desk.check, file.desk.commit):
        with pytest.raises(TransactionTaken):
            asked()
    file.desk.rollback()
    assert (file.is_free, file.desk.usable) == (True, True)


@pytest.mark.parametrize("end", [lambda desk, _: desk.execute("commit"), lambda desk, _: desk.execute("rollback"), lambda _, cursor: cursor.connection.commit()])
@pytest.mark.parametrize("goes_on", ["begin immediate", "insert into effect values (2)", "savepoint a"])
def test_nothing_is_written_behind_the_end_of_the_transaction(file: File, end: Callable[[SqliteDesk, Any], object], goes_on: str) -> None:
    """It would take effect by itself, or, in a transaction of the handler's own, as if none had ended."""
    file.connection.execute("create table effect (number integer)")
    file.desk.begin()
    cursor = file.desk.execute("insert into effect values (1)")
    end(file.desk, cursor)

    for asked in (lambda: file.desk.execute(goes_on), lambda: file.desk.executemany("insert into effect values (?)", [(3,)])):
        with pytest.raises(TransactionTaken, match="ended the transaction itself"):
            asked()
    with pytest.raises(TransactionTaken):
        file.desk.commit()
    file.desk.rollback()

    assert not file.connection.execute("select * from effect where number > 1").fetchall()
    assert (file.is_free, file.desk.usable) == (True, True)


def test_a_handler_that_closes_the_connection_fails_its_message_and_holds_up_no_other(tmp_path: Path) -> None:
    """What raised here, outside of all that is a message's, ended the worker, and the next one, which got the message then."""
    desks = Desks(lambda: File(tmp_path / "shop.db").desk, 1)
    database = Database(desks)
    kept = database.execute("create table effect (number integer)")
    kept.connection.close()

    with pytest.raises(TransactionTaken, match="closed the connection"):
        database.execute("insert into effect values (1)")
    database.end()
    with pytest.raises(TransactionTaken, match="closed the connection"):
        database.finish()

    another = Database(desks)
    assert another.execute("select * from sqlite_master").fetchall() == []
    another.end()
    another.finish()


@pytest.mark.parametrize(("after", "raised"), [(False, DatabaseAway), (True, EffectsInDoubt)])
def test_a_commit_that_fails_did_not_happen_only_while_the_transaction_is_open(
    file: File, after: bool, raised: type[Exception]
) -> None:
    file.desk.begin()
    file.desk.execute("create table effect (number integer)")
    file.connection.fails, file.connection.after = "commit", after

    with pytest.raises(raised) as found:
        file.desk.commit()
    assert found.type is raised
    file.desk.rollback()

    assert file.is_free
    assert len(file.connection.execute("select * from sqlite_master").fetchall()) == after


def test_a_rollback_that_fails_closes_the_connection_which_rolls_back_too(file: File) -> None:
    file.desk.begin()
    file.connection.fails = "rollback"

    file.desk.rollback()

    assert (file.is_free, file.desk.usable) == (True, False), "the next message would be put off"
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        file.connection.execute("select 1")

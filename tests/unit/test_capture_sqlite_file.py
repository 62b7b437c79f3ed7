"""Capture on an SQLite file that is replaced, attached to, busy or left in the middle of a block by an interrupt."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from relay.capture import block as block_module
from relay.capture.capture import Capture
from relay.message.errors import CaptureError, Unreachable
from relay.message.identity import capture_id
from relay.resources import open_resource, sqlite_writers
from relay.resources.port import RowLocked
from relay.resources.sqlite import SqliteResource, SqliteSession
from relay.resources.sqlite_writers import GAP_EVERY_S, GAP_S, LOOK_S, Writers
from relay.resources.turns import Turn
from relay.world import schedule

NONCE = b"n" * 16
LOCK_TIMEOUT_S = 0.2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def resource(path: Path) -> SqliteResource:
    opened = open_resource("shop", f"sqlite:///{path}", LOCK_TIMEOUT_S)
    assert isinstance(opened, SqliteResource)
    opened.create_tables()
    with sqlite3.connect(path) as connection:
        connection.execute("create table orders (id integer primary key)")
        connection.execute("create table scans (id integer primary key, page blob)")
    return opened


@pytest.fixture
def capture(resource: SqliteResource) -> Iterator[Capture]:
    with Capture(kafka={"bootstrap.servers": "127.0.0.1:1"}, resource=resource, source="/s") as made:
        yield made


def orders(path: Path) -> list[int]:
    with sqlite3.connect(path) as connection:
        return [row[0] for row in connection.execute("select id from orders order by id")]


def replace(path: Path) -> None:
    """As an operator compacts a file: the copy has the same identity."""
    connection = sqlite3.connect(path)
    connection.execute("pragma wal_checkpoint(truncate)")  # or the old file's log would be taken for the new one's
    connection.execute(f"vacuum into '{path}.new'")
    connection.close()
    Path(f"{path}.new").replace(path)


def test_no_decision_is_written_into_a_file_that_was_replaced(resource: SqliteResource, path: Path) -> None:
    decisions, session = resource.decisions(), resource.session()
    replace(path)

    for ask in (
        decisions.uuid,
        lambda: decisions.abort_if_undecided(capture_id(NONCE)),
        lambda: decisions.read([capture_id(NONCE)]),
        session.begin,
    ):
        with pytest.raises(Unreachable, match="replaced"):
            ask()
    session.close()
    again = resource.session()
    again.begin()
    again.rollback()


def test_a_block_after_the_file_was_replaced_is_in_the_one_that_is_there(
    capture: Capture, resource: SqliteResource, path: Path
) -> None:
    with capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
    replace(path)
    with capture.transaction() as tx:
        tx.execute("insert into orders values (2)")

    assert orders(path) == [1, 2]


def test_a_second_file_cannot_be_part_of_a_block(capture: Capture, path: Path) -> None:
    with capture.transaction() as tx:
        tx.execute("select 1")
        with pytest.raises(sqlite3.OperationalError, match="attached"):
            tx._session.execute(f"attach '{path}.other' as other")  # beside the block, which an error would end


def test_noting_waits_in_the_queue_of_this_processs_captures(resource: SqliteResource) -> None:
    decisions, session = resource.decisions(), resource.session()
    begun, _ = session.begin()
    with pytest.raises(RowLocked, match="of this process"):
        decisions.mark([begun])
    session.decide(begun, b"[]")

    decisions.mark([begun])

    assert decisions.unmarked(0.0, 10) == []
    session.close()


RESOLVES: Final = """
import sys
from relay.capture.resolver import Resolver, State
from relay.resources import open_resource
shop = open_resource("shop", "sqlite:///" + sys.argv[1], 1.0)
resolver, identity = Resolver({"shop": shop}), shop.identity()
waited = 0
for number in range(6):
    capture = b"%016d" % number
    while resolver.resolve([(capture, identity)])[capture].state is State.UNDECIDED:
        waited += 1
print(waited)
"""


def test_a_file_that_captures_hand_to_each_other_is_had_by_resolvers_of_other_processes(
    resource: SqliteResource, path: Path
) -> None:
    is_over = schedule.event()

    def publish() -> None:
        session = resource.session()
        while not is_over.is_set():
            begun, _ = session.begin()
            is_over.wait(0.1)
            session.decide(begun, b"[]")
        session.close()

    threads = [schedule.start_thread("publisher", publish) for _ in range(4)]
    try:
        words = [sys.executable, "-c", RESOLVES, str(path)]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=40, check=True)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()

    assert int(ended.stdout) <= 3, "seconds waited in vain, for six captures"


def test_who_waits_for_a_file_looks_twice_in_the_gap_that_its_writers_leave(
    resource: SqliteResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, gaps = [1000.0], []

    def sleep(seconds: float) -> None:
        gaps.append(now[0])
        now[0] += seconds

    monkeypatch.setattr(sqlite_writers, "clock", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    writers = Writers()
    for _ in range(100):
        holder: list[Turn] = []
        writers.take(holder, 1.0)
        now[0] += 0.02
        writers.give(holder)
        now[0] += 0.0001

    (looks_s,) = resource.decisions()._connection.execute("pragma busy_timeout").fetchone()
    assert (looks_s / 1000, GAP_S) == (LOOK_S, 0.01)
    assert LOOK_S < GAP_S
    between = [later - earlier for earlier, later in pairwise(gaps)]
    assert len(between) > 2
    assert max(between) < GAP_EVERY_S + 0.05


def test_the_writer_is_found_through_a_link_to_the_file(resource: SqliteResource, path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    linked = open_resource("shop", f"sqlite:///{link}", LOCK_TIMEOUT_S)
    session = resource.session()
    session.begin()

    assert linked.frozen_writer() == os.getpid()
    session.close()


def test_what_a_failed_block_has_not_read_to_its_end_does_not_fail_the_next_one(capture: Capture, path: Path) -> None:
    kept = []
    with suppress(ValueError), capture.transaction() as tx:
        kept.append(tx.execute("insert into orders select value from json_each('[1,2,3]') returning id"))
        raise ValueError("the application's own")

    with capture.transaction() as tx:
        tx.execute("insert into orders values (4)")
    assert orders(path) == [4]


@pytest.mark.parametrize("fails", [True, False])
def test_a_value_that_a_block_left_open_to_be_written_is_closed_at_its_end(capture: Capture, path: Path, *, fails: bool) -> None:
    kept = []
    with suppress(ValueError), capture.transaction() as tx:
        connection = tx.execute("insert into scans values (1, zeroblob(3))").connection
        kept.append(connection.blobopen("scans", "page", 1))
        kept[0].write(b"abc")
        if fails:
            raise ValueError("the application's own")

    with capture.transaction() as tx:
        tx.execute("insert into orders values (4)")
    with pytest.raises(sqlite3.ProgrammingError):
        kept[0].write(b"abc")
    with sqlite3.connect(path) as outside:
        assert outside.execute("select page from scans").fetchall() == ([] if fails else [(b"abc",)])
    assert orders(path) == [4]


def test_no_value_is_opened_behind_a_block(capture: Capture) -> None:
    with capture.transaction() as tx:
        connection = tx.execute("insert into scans values (1, zeroblob(3))").connection

    with pytest.raises(CaptureError, match="the block of this cursor is over"):
        connection.blobopen("scans", "page", 1)


def test_an_interrupt_at_the_beginning_of_a_block_gives_the_file_back(
    capture: Capture, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as interrupted:
        interrupted.setattr(block_module, "crash_point", interrupt)
        with pytest.raises(KeyboardInterrupt), capture.transaction():
            pass

    with capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
    assert orders(path) == [1]


def test_an_interrupt_while_a_savepoint_is_undone_ends_the_block(
    capture: Capture, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteSession, "rollback_to", interrupt)

    def go_on_after_an_interrupt() -> None:
        with capture.transaction() as tx:
            with suppress(KeyboardInterrupt), tx.savepoint():
                tx.execute("insert into orders values (1)")
                raise ValueError("undo this")
            tx.execute("insert into orders values (2)")

    with pytest.raises(Exception, match="the block is failed"):
        go_on_after_an_interrupt()
    assert orders(path) == [], "what was to be undone would be committed, its messages dropped"


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt

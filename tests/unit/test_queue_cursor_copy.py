"""What a moved queue's routes remember goes along into a database that has inbox rows of others, under numbers of its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from relay.config.loading import load
from relay.control import queue_cursor_copy
from relay.control.queue_cursor_copy import copy_cursors
from relay.message.errors import Unreachable
from relay.setup.queue_tables import create_tables
from tests.unit.test_queue_move_command import Desk

_PUT = (
    "insert into relay_inbox (relay, route, digest, content, topic_id, partition, log_offset, outcome, applied)"
    " values ('shop', ?, ?, ?, ?, 0, ?, 0, ?)"
)


def put(file: sqlite3.Connection, route: str, offset: int, applied: int) -> None:
    file.execute(_PUT, (route, bytes([offset]) * 16, bytes(8), bytes(16), offset, applied))


def test_a_file_in_which_other_routes_have_rows_takes_them_in_their_order(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    create_tables(desk.config, desk.queue, desk.at("new.db"))
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as old:
        for offset, applied in ((21, 3), (20, 2), (22, 5)):
            put(old, "main", offset, applied)
    with closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as new:
        for offset, applied in ((1, 1), (2, 2), (3, 9)):
            put(new, "another", offset, applied)

    for _ in range(2):
        assert copy_cursors(desk.config, "credit", desk.at("new.db")) == 1 + 3

    with closing(sqlite3.connect(tmp_path / "new.db")) as new:
        rows = new.execute("select route, log_offset, applied from relay_inbox order by applied").fetchall()
        (last,) = new.execute("select seq from sqlite_sequence where name = 'relay_inbox'").fetchone()
    assert rows[:3] == [("another", 1, 1), ("another", 2, 2), ("another", 3, 9)]
    assert [row[:2] for row in rows[3:]] == [("main", 20), ("main", 21), ("main", 22)]
    assert last == rows[-1][2], "numbers given later are above"


def test_a_route_into_another_queue_keeps_what_it_has_in_the_new_store(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    create_tables(desk.config, desk.queue, desk.at("new.db"))
    path = tmp_path / "relay.toml"
    path.write_text(
        path.read_text() + '[queues.debit]\nstore = "sqlite:///new.db"\nsubscribers = { clerk = {} }\n'
        '[routes.another]\nfrom = ["bills"]\nto = { queue = "debit" }\n'
    )
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as old:
        put(old, "another", 1, 1)
    with closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as new:
        put(new, "another", 7, 1)

        assert copy_cursors(load(path), "credit", desk.at("new.db")) == 1, "main's position"

        assert new.execute("select route, log_offset from relay_inbox").fetchall() == [("another", 7)]
        assert new.execute("select route, position from relay_position").fetchall() == [("main", 17)]


@pytest.mark.slow
def test_a_database_that_is_busy_or_away_between_the_steps_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_cursor_copy, "_LOCK_TIMEOUT_S", 0.1)
    desk = Desk(tmp_path)
    create_tables(desk.config, desk.queue, desk.at("new.db"))

    with closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(Unreachable, match=r"queue 'credit': .*run the command again"):
            copy_cursors(desk.config, "credit", desk.at("new.db"))

    path = tmp_path / "relay.toml"
    path.write_text(path.read_text() + '[resources.shop]\nurl = "postgresql://u:hunter2@127.0.0.1:1/shop"\n')
    with pytest.raises(Unreachable, match=r"queue 'credit': .*run the command again") as away:
        copy_cursors(load(path), "credit", "shop")
    assert "hunter2" not in str(away.value)

"""What looks at queues for days looks where they lie now, also after `relay queue migrate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.control import queue_desk
from relay.control.queue_desk import QueueDesk
from relay.queue import moving
from relay.queue.desired import Desired, Move, Step, encode_uuid
from relay.queue.message import NewMessage
from relay.run.queues import open_at
from relay.setup.queue_tables import create_tables
from tests.unit.configurations import BASE, good

QUEUE = """
[queues.credit]
store = "sqlite:///old.db"
subscribers = { approval = {} }
"""
NOW = 1_000


class Follower:
    """The control topic, as somebody has read it."""

    def __init__(self) -> None:
        self.desired = Desired()

    def now(self) -> Desired:
        return self.desired

    def close(self) -> None:
        pass


def test_a_queue_that_has_moved_is_counted_where_it_lies_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = good(BASE + QUEUE, tmp_path)
    follower, old = Follower(), config.queues["credit"].store
    new = old.replace("old.db", "new.db")
    monkeypatch.setattr(queue_desk, "require_topics", lambda *_: None)
    monkeypatch.setattr(queue_desk, "follow", lambda _: follower)
    create_tables(config, config.queues["credit"], old)
    create_tables(config, config.queues["credit"], new)
    source, target = (open_at(config, config.queues["credit"], place) for place in (old, new))
    source.put([message("1")], NOW)
    follower.desired.add(*encode_uuid("credit", source.uuid))

    with QueueDesk(config, "relay serve") as desk:
        before = desk.row("credit")
        moving.cut_over(source, target, lambda _: None, lambda: None)
        target.put([message("2"), message("3")], NOW)
        follower.desired.add(*Move("credit", source.uuid, old, new, Step.MOVED, "eve", NOW).encode())
        after = desk.row("credit")
        again = desk.row("credit")
    source.close()
    target.close()

    assert [(row["store"], row["waiting"]) for row in (before, after, again)] == [(old, 1), (new, 3), (new, 3)]


def message(id_: str) -> NewMessage:
    return NewMessage("/till", id_, b"v")

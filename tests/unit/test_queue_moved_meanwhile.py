"""A queue moves away from a handler's database while its worker runs: a connection made after that is no failure of a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.config.loading import load
from relay.queue.desired import Move, Step, encode_uuid
from relay.queue.message import NewMessage
from relay.queue.port import Retired
from relay.resources import open_resource
from relay.run import following
from relay.run.following import DesiredFollower
from relay.run.queues import open_at, queue_of
from relay.setup.queue_tables import create_tables
from relay.work.assembly import Assembled, Job
from relay.work.message import Message
from relay.work.subscriber import subscriber
from relay.work.worker import Limits

CONFIG = """
[relay]
name = "shop"
instance = "one"
state = "./state"

[kafka]
"bootstrap.servers" = "127.0.0.1:9"

[resources.shop]
url = "sqlite:///{folder}/shop.db"

[resources.elsewhere]
url = "postgresql://u@127.0.0.1:9/d"

[queues.orders]
store = "shop"
subscribers = {{ ledger = {{}} }}

[queues.credit]
store = "shop"
subscribers = {{ approval = {{}} }}
"""


class Said:
    """A control topic, in memory, of which nobody was told what is in ``new``."""

    def __init__(self, new: list[tuple[bytes, bytes | None]]) -> None:
        self.new = new

    def records(self) -> list[tuple[bytes, bytes | None]]:
        found, self.new = self.new, []
        return found

    to_end = records

    def close(self) -> None:
        pass


@subscriber("orders", resource="shop")
def handled(message: Message, db: Any) -> None:
    """Is never called."""


def test_a_connection_made_after_the_move_says_that_the_queue_goes_on_elsewhere_once_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was bound as if it were one to the new store's kind of database: each message that needed it used up a try."""
    monkeypatch.setattr(following, "PERIOD_S", 0.0)
    (tmp_path / "relay.toml").write_text(CONFIG.format(folder=tmp_path))
    config = load(tmp_path / "relay.toml")
    open_resource("shop", config.resources["shop"].url.get_secret_value()).create_tables()
    said = Said([])
    for name in ("orders", "credit"):
        create_tables(config, queue_of(config, name), "shop")
        store = open_at(config, queue_of(config, name), "shop")
        said.new.append(encode_uuid(name, store.uuid))
        if name == "credit":
            moved = Move("credit", store.uuid, "shop", "elsewhere", Step.MOVED, "ann", 1)
        store.close()
    assembled = Assembled(config, Job(handled, "orders", "ledger"), Limits(), DesiredFollower(said))
    old = open_at(config, queue_of(config, "credit"), "shop")
    old.retire()
    old.close()
    said.new.append(moved.encode())
    assert not assembled._held_back(), "its own queue is where it was"
    assert assembled._desks is not None

    desk = assembled._desks.borrow()

    with pytest.raises(Retired):
        desk.stores["credit"].put([NewMessage("p", "1", b"v")], 1)
    desk.rollback()
    assembled._desks.give_back(desk)
    assembled.close()

"""A route to which nothing comes reveals what it has put of a publisher before it heard that this one goes on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from relay.config.loading import load
from relay.delivery.queue_effects import HeldPublishers
from relay.message.record import LogPartition
from relay.queue.message import NewMessage
from relay.queue.states import PublisherState
from relay.resources import open_resource
from relay.run.following import DesiredFollower
from relay.run.queue_cursor import queue_cursor
from relay.run.queues import open_at, queue_of
from relay.setup.queue_tables import create_tables
from tests.recorded_queue import RecordedQueue

PLACE = LogPartition("orders", 0)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_was_kept_is_revealed_with_the_next_position(kind: str, tmp_path: Path, postgres: str) -> None:
    url = postgres if kind == "postgresql" else f"sqlite:///{tmp_path}/shop.db"
    path = tmp_path / "relay.toml"
    path.write_text(
        '[relay]\nname = "shop"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
        f'[resources.shop]\nurl = "{url}"\n[queues.credit]\nstore = "shop"\nsubscribers = {{ clerk = {{}} }}\n'
        '[routes.main]\nfrom = ["orders"]\nto = { queue = "credit" }\n'
    )
    config = load(path)
    open_resource("shop", url).create_tables()
    create_tables(config, queue_of(config, "credit"), "shop")
    with closing(open_at(config, queue_of(config, "credit"), "shop")) as store:
        store.put([NewMessage("/till", "kept", b"v")], 1, reveal=False)
        follower = DesiredFollower(RecordedQueue("credit", store.uuid))
        publishers = HeldPublishers()
        with closing(queue_cursor(config, config.routes["main"], follower, publishers, lambda: {"orders": bytes(16)})) as cursor:
            cursor.claim({PLACE: bytes(16)})
            publishers.now(frozenset(), frozenset({"/till"}))

            assert cursor.deliver({PLACE: 1}, cursor.prepare([])) == []

        assert [view.state for view in store.views([1])] == [PublisherState.REVEALED]

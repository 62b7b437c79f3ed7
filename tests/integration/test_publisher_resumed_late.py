"""A route to which nothing comes reveals what it has put of a publisher before it heard that this one goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.delivery.queue.effects import HeldPublishers
from relay.message.record import LogPartition
from relay.queue.message import NewMessage
from relay.queue.states import PublisherState
from tests.recorded_queue import cursor_into_queue

PLACE = LogPartition("orders", 0)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_was_kept_is_revealed_with_the_next_position(kind: str, tmp_path: Path, postgres: str) -> None:
    url = postgres if kind == "postgresql" else f"sqlite:///{tmp_path}/shop.db"
    publishers = HeldPublishers()
    with cursor_into_queue(tmp_path, url, publishers) as (cursor, store):
        store.put([NewMessage("/till", "kept", b"v")], 1, reveal=False)
        cursor.claim({PLACE: bytes(16)})
        publishers.now(frozenset(), frozenset({"/till"}))

        assert cursor.deliver({PLACE: 1}, cursor.prepare([])) == []
        assert [view.state for view in store.views([1])] == [PublisherState.REVEALED]

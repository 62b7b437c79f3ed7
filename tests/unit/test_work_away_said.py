"""A worker that waits for its queue says what a person may have to act on, and not at every try."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from relay.message.errors import Retriable
from relay.queue.port import Holder, StoreAway, StoreFull, ValuesAway
from relay.work.backoff import Backoff
from relay.work.upkeep import HolderForgotten, Upkeep
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import put, settings, take

SAID = [
    ValuesAway("the log with the queue's values does not answer: orders[1] ends at offset 7 as its leader says"),
    StoreAway('the queue\'s database does not answer (connection failed: password authentication failed for user "clerk")'),
    StoreFull("the queue's database cannot grow: make room on its disk"),
]


@pytest.mark.parametrize("error", SAID, ids=lambda error: type(error).__name__)
def test_why_the_store_does_not_take_anything_is_said_once_a_minute(error: Retriable, tmp_path: Path) -> None:
    """It is tried twice a second, and may be refused for days."""
    own = Holder(b"a worker--------", "ann", 0, None)
    upkeep = Upkeep("q", {"q": QueueBook(settings("ann"))}, lambda _: {}, own, tmp_path, 60.0, Backoff())
    with capture_logs() as lines:
        for _ in range(3):
            upkeep.away(error)

    assert [(line["kind"], line.get("reason")) for line in lines] == [(type(error).__name__, str(error))]


def test_what_waits_for_a_database_that_is_away_is_said_once_a_minute_not_at_every_look(tmp_path: Path) -> None:
    """A night without it would be a hundred thousand lines of each worker for each one that died."""
    store = QueueBook(settings("ann"))
    dead = Holder(b"a dead worker---", "ann", 0, "resource:shop")
    store.enter(dead)
    put(store, "a", "b")
    take(store, "ann", holder=dead.id)
    own = Holder(b"a worker--------", "ann", 0, None)
    store.enter(own)
    upkeep = Upkeep("q", {"q": store}, lambda _: {}, own, tmp_path, 60.0, Backoff())
    with capture_logs() as lines:
        for second in range(1, 200):
            upkeep.once(float(second))

    assert [line["event"] for line in lines] == ["stuck"]
    assert "which is not configured here" in lines[0]["reason"]


def test_a_worker_that_others_took_for_dead_says_so_and_ends_also_if_it_takes_nothing_now(tmp_path: Path) -> None:
    own = Holder(b"a worker--------", "ann", 0, None)
    upkeep = Upkeep("q", {"q": QueueBook(settings("ann"))}, lambda _: {}, own, tmp_path, 60.0, Backoff())

    with pytest.raises(HolderForgotten):
        upkeep.once(1.0)

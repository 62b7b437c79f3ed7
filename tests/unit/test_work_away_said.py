"""A worker that waits for its queue says what a person may have to act on, and repeats no words of a database's driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from relay.queue.port import Holder, StoreAway, ValuesAway
from relay.work.backoff import Backoff
from relay.work.upkeep import HolderForgotten, Upkeep
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import put, settings, take

SENTENCE = "the log with the queue's values does not answer: orders[1] ends at offset 7 as its leader says"


@pytest.mark.parametrize(("error", "said"), [(ValuesAway(SENTENCE), SENTENCE), (StoreAway("host=10.0.0.7 is away"), None)])
def test_where_the_log_ends_is_said_and_a_databases_words_are_not(
    error: StoreAway, said: str | None, tmp_path: Path
) -> None:
    own = Holder(b"a worker--------", "ann", 0, None)
    upkeep = Upkeep("q", {"q": QueueBook(settings("ann"))}, lambda _: {}, own, tmp_path, 60.0, Backoff())
    with capture_logs() as lines:
        upkeep.away(error)

    ((line,),) = [lines]
    assert (line["kind"], line.get("reason")) == (type(error).__name__, said)


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

"""What a publisher that is held has delayed stays unrevealed, and comes behind what waits for a word when it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.queue.message import NewMessage
from relay.run import clock
from relay.work.backoff import Backoff
from relay.work.upkeep import LOOK_S, Upkeep
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import settings
from tests.unit.test_upkeep_duties import NOW, OWN


def test_what_a_held_publisher_delayed_waits_for_it_and_comes_in_its_lanes_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = QueueBook(settings("ann"))
    store.enter(OWN)
    held = frozenset({"/held"})
    upkeep = Upkeep("q", {"q": store}, lambda _: {}, OWN, tmp_path, 60.0, Backoff(), held=lambda: held)
    monkeypatch.setattr(clock, "wall_ms", lambda: NOW + 100)
    store.put([NewMessage("/other", "c", b"v", lane=b"m", delay_ms=50)], NOW)
    kept = [NewMessage("/held", "a", b"v", lane=b"l"), NewMessage("/held", "b", b"v", lane=b"l", delay_ms=50)]
    store.put(kept, NOW, reveal=False)

    upkeep.once(0.0)
    assert [one.id for one in store.take("ann", OWN.id, 9, NOW + 100)] == ["c"]

    held = frozenset()
    upkeep.once(2 * LOOK_S)
    assert [one.id for one in store.take("ann", OWN.id, 9, NOW + 100)] == ["a", "b"]

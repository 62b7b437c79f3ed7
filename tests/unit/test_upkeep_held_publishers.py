"""What a publisher that is held has delayed stays unrevealed, and comes behind what waits for a word when it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.queue.desired import Desired, Kind, Subject, Wanted, Wish
from relay.queue.message import NewMessage
from relay.work.backoff import Backoff
from relay.work.upkeep import LOOK_S, Upkeep
from relay.world import clock
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import settings
from tests.unit.test_upkeep_duties import NOW, OWN

HELD, GOES_ON = (Wish(Subject(Kind.PUBLISHER, "q", "/held"), wanted, "eve", "", at) for at, wanted in enumerate((Wanted.PAUSE, Wanted.RUN)))
KEPT = [NewMessage("/held", "a", b"v", lane=b"l"), NewMessage("/held", "b", b"v", lane=b"l", delay_ms=50)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> QueueBook:
    made = QueueBook(settings("ann"))
    made.enter(OWN)
    monkeypatch.setattr(clock, "wall_ms", lambda: NOW + 100)
    return made


def upkeep(store: QueueBook, marks: Path, desired: Desired) -> Upkeep:
    return Upkeep("q", {"q": store}, lambda _: {}, OWN, marks, 60.0, Backoff(), desired=lambda: desired)


def taken(store: QueueBook) -> list[str]:
    return [one.id for one in store.take("ann", OWN.id, 9, NOW + 100)]


def test_what_a_held_publisher_delayed_waits_for_it_and_comes_in_its_lanes_order(store: QueueBook, tmp_path: Path) -> None:
    desired = Desired()
    desired.add(*HELD.encode())
    one = upkeep(store, tmp_path, desired)
    store.put([NewMessage("/other", "c", b"v", lane=b"m", delay_ms=50)], NOW)
    store.put(KEPT, NOW, reveal=False)

    one.once(0.0)
    assert taken(store) == ["c"]

    desired.add(*GOES_ON.encode())
    one.once(2 * LOOK_S)
    assert taken(store) == ["a", "b"]


def test_a_worker_that_starts_once_it_goes_on_shows_what_was_kept_first(store: QueueBook, tmp_path: Path) -> None:
    """The route may not have heard of it yet, and the command waits for a second."""
    desired = Desired()
    desired.add(*GOES_ON.encode())
    store.put(KEPT, NOW, reveal=False)

    upkeep(store, tmp_path, desired).once(0.0)

    assert taken(store) == ["a", "b"]


def test_so_does_one_that_did_not_look_while_it_was_held(store: QueueBook, tmp_path: Path) -> None:
    desired = Desired()
    desired.add(*GOES_ON.encode())
    one = upkeep(store, tmp_path, desired)
    one.once(0.0)
    store.put(KEPT, NOW, reveal=False)
    desired.add(*HELD.encode())
    desired.add(*GOES_ON._replace(at=2).encode())

    one.once(2 * LOOK_S)

    assert taken(store) == ["a", "b"]

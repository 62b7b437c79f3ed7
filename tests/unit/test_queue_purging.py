"""A purge takes all that waits from everybody and nothing else, in small steps, and counts what it has taken."""

from __future__ import annotations

import pytest

from relay.control import queue_purging
from relay.control.queue_purging import purge
from relay.queue.message import NewMessage
from relay.queue.port import Filter, Holder
from relay.queue.states import PublisherState
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import settings

NOW = 1_700_000_000_000
P = PublisherState


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> QueueBook:
    """The first message is done, four wait, three are not shown yet."""
    monkeypatch.setattr(queue_purging, "AT_ONCE", 2)
    store = QueueBook(settings("ann"))
    store.enter(Holder(b"h", "ann", 0, None))
    store.put([NewMessage("/till/a", "0", b"v")], NOW)
    store.finish("ann", [one.ticket for one in store.take("ann", b"h", 9, NOW)], NOW)
    store.put([NewMessage(f"/till/{'ab'[n % 2]}", f"shown-{n}", b"v") for n in range(4)], NOW)
    store.put([NewMessage("/till/a", f"late-{n}", b"v", delay_ms=1000) for n in range(3)], NOW)
    return store


def states(store: QueueBook) -> dict[PublisherState, int]:
    return {state: count for state, count in store.counts()[0].items() if count}


def test_all_that_waits_is_taken_from_everybody_in_small_steps_and_counted_once(store: QueueBook) -> None:
    assert list(purge(store, Filter(), NOW, dry_run=False)) == [2, 1, 2, 2]
    assert states(store) == {P.JOURNALLED: 1, P.UNAVAILABLE: 7}
    assert store.take("ann", b"h", 9, NOW + 2000) == []


def test_a_dry_run_counts_the_same_and_takes_nothing(store: QueueBook) -> None:
    before = states(store)

    assert sum(purge(store, Filter(), NOW, dry_run=True)) == 7
    assert states(store) == before


def test_only_what_is_chosen_is_taken(store: QueueBook) -> None:
    assert sum(purge(store, Filter(publisher="/till/b"), NOW, dry_run=False)) == 2
    assert states(store) == {P.JOURNALLED: 1, P.PUT: 3, P.REVEALED: 2, P.UNAVAILABLE: 2}


def test_what_is_shown_meanwhile_is_not_left_behind_and_what_is_withdrawn_meanwhile_not_counted(store: QueueBook) -> None:
    counted = []
    for some in purge(store, Filter(), NOW, dry_run=False):
        counted.append(some)
        store.reveal_due(NOW + 1000, 9)
        if sum(counted) == 5:
            store.withdraw([one.handle for one in store.find(Filter(state=P.REVEALED))][:1], NOW)

    assert states(store) == {P.JOURNALLED: 1, P.UNAVAILABLE: 7}
    assert sum(counted) == 6

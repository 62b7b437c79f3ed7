"""A route's cursor puts on a thread of its own, and what a person says of publishers comes in between at any step of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relay.delivery.queue.effects import HeldPublishers, QueueEffect
from relay.delivery.queue.mapping import Putting
from relay.queue.message import MessageView, NewMessage
from relay.queue.modes import Balance
from relay.queue.port import Filter
from relay.queue.states import PublisherState
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import NOW, settings


class Publisher(str):
    """A name with which something happens when it is looked for the n-th time."""

    __slots__ = ("_left", "_then")

    def on(self, nth: int, then: Callable[[], None]) -> Publisher:
        self._left, self._then = nth, then
        return self

    def __hash__(self) -> int:
        self._left -= 1
        if self._left == 0:
            self._then()
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)


class Store(QueueBook):
    """Tells when it is asked for what a publisher has kept."""

    then: Callable[[], None]

    def find(self, chosen: Filter, *, after: int = 0, limit: int = 100) -> list[MessageView]:
        self.then()
        return super().find(chosen, after=after, limit=limit)


def effect(store: QueueBook, publishers: HeldPublishers) -> QueueEffect:
    return QueueEffect(None, lambda _: store, store.settings, Balance(None), publishers)


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize(("before", "after"), [({"/other"}, {"/other", "/till"}), ({"/other", "/till"}, {"/other"})])
def test_a_message_is_put_once_whenever_its_publisher_is_paused_or_resumed(nth: int, before: set[str], after: set[str]) -> None:
    store, publishers = QueueBook(settings()), HeldPublishers()
    publishers.now(frozenset(before), frozenset())
    put: list[str] = []
    store_put = store.put
    store.put = lambda new, now, **how: (put.extend(one.id for one in new), store_put(new, now, **how))[1]  # type: ignore[method-assign]
    name = Publisher("/till").on(nth, lambda: publishers.now(frozenset(after), frozenset(before - after)))

    effect(store, publishers).apply(None, [Putting(NewMessage(name, "a", b"v"), None)])

    assert put == ["a"]


def test_nothing_new_is_shown_before_what_was_kept_of_a_publisher_that_is_resumed_meanwhile() -> None:
    store, publishers = Store(settings()), HeldPublishers()
    store.put([NewMessage("/till", "kept", b"v")], NOW, reveal=False)
    publishers.now(frozenset({"/till"}), frozenset({"/other"}))
    store.then = lambda: publishers.now(frozenset(), frozenset({"/other", "/till"}))

    effect(store, publishers).apply(None, [Putting(NewMessage("/till", "new", b"v"), None)])

    assert [view.state for view in store.views([1, 2])] == [PublisherState.PUT] * 2
    effect(store, publishers).apply(None, [])
    assert [view.state for view in store.views([1, 2])] == [PublisherState.REVEALED] * 2


def test_what_is_kept_of_a_publisher_that_is_paused_again_is_not_shown_by_the_batch_behind_it() -> None:
    """Of two batches under way the second is put before the first is heard to have revealed what was kept."""
    store, publishers = QueueBook(settings()), HeldPublishers()
    publishers.now(frozenset(), frozenset({"/till"}))
    publishers.now(frozenset({"/till"}), frozenset())

    for name in ("a", "b"):
        effect(store, publishers).apply(None, [Putting(NewMessage("/till", name, b"v"), None)])

    assert [view.state for view in store.views([1, 2])] == [PublisherState.PUT] * 2

"""A subscriber that is configured no more: what waits for it can be ended for it alone, and lets its pool's lanes go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from relay.queue.port import Filter, QueueStore, Refused
from relay.queue.redriving import redrive
from relay.queue.states import PublisherState as P
from tests.contracts.queue_media import LATER, NOW, Medium, ids, opened, put, state, subscribers, take


def without(store: QueueStore, medium: Medium, *names: Any) -> QueueStore:
    """Open the queue again with these subscribers only."""
    settings = replace(store.settings, audience=subscribers(*names))
    if medium.name == "book":
        store.settings = settings
        return store
    store.close()
    return medium.open(settings)


def test_what_waits_for_it_expires_for_it_alone(medium: Medium) -> None:
    store = opened(medium, "ann", "bob")
    first, second = put(store, "a", "b")
    store = without(store, medium, "ann")

    assert store.expire_now([first, second], LATER, "bob") == [True, True]
    assert store.expire_now([first], LATER, "bob") == [False]
    assert ids(take(store, "ann")) == ["a", "b"]
    assert [one.subscriber for one in store.counts()[1]] == ["ann"]


def test_its_pools_lane_goes_on(medium: Medium) -> None:
    store = opened(medium, ("ann", "bob"))
    (first, _) = put(store, "a", "b", lane=b"l")
    store.refuse("ann", [(take(store, "ann", limit=1)[0].ticket, "no")], NOW)
    store = without(store, medium, ("ann", "cid"))
    assert take(store, "ann") == []

    assert store.expire_now([first], LATER, "bob") == [True]
    assert state(store, first) is P.JOURNALLED
    assert ids(take(store, "ann")) == ["b"]


def test_one_of_whom_none_of_them_knows_is_refused(medium: Medium) -> None:
    store = opened(medium, "ann", "bob")
    (for_both,) = put(store, "a")
    store = without(store, medium, "ann")
    (for_ann,) = put(store, "b")

    for handles, name in (([for_ann], "bob"), ([], "bob"), ([for_both + 99], "bob"), ([for_both, for_ann], "nobody")):
        with pytest.raises(Refused, match=name):
            store.expire_now(handles, LATER, name)
    assert store.expire_now([for_ann, for_both], LATER, "bob") == [False, True]


def test_nothing_is_given_to_it_again(medium: Medium) -> None:
    """Nobody would take it, and its message stay REVEALED."""
    store = opened(medium, "ann", ("bob", "cid"))
    (handle,) = put(store, "a")
    for name in ("ann", "bob", "cid"):
        store.refuse(name, [(take(store, name)[0].ticket, "no")], NOW)
    assert state(store, handle) is P.JOURNALLED
    store = without(store, medium, "ann", ("cid",))

    assert [view.handle for view in store.find(Filter(unusable=True))] == [handle]
    found = list(redrive(store, iter(store.views([handle])), None, dry_run=True, pace=bool, now=lambda: LATER))
    assert [one.subscriber for one in found] == ["ann", "cid"]
    assert not store.republish(handle, "bob", LATER)
    assert not store.republish(handle, "bob", LATER, even_done=True)
    assert state(store, handle) is P.JOURNALLED
    assert store.republish(handle, "cid", LATER)
    assert ids(take(store, "cid")) == ["a"]

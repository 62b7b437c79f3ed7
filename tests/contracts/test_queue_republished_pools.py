"""A message that one member of a pool found UNUSABLE is given again to that member only while no other is done with it."""

from __future__ import annotations

import pytest

from tests.contracts.queue_media import LATER, NOW, Medium, cycle, full_view, ids, opened, put, take


@pytest.mark.parametrize("other", [(), ("dan",)])
def test_what_a_pool_is_done_with_is_republished_to_none_of_its_members(medium: Medium, other: tuple[str, ...]) -> None:
    store = opened(medium, ("ann", "bob"), *other)
    (handle,) = put(store, "a")
    store.refuse("ann", [(take(store, "ann")[0].ticket, "no")], NOW)
    assert cycle(store, "bob") == ["a"]
    before = full_view(store)

    assert [store.republish(handle, name, LATER) for name in ("ann", "bob")] == [False, False]
    assert full_view(store) == before
    assert take(store, "ann") == []


def test_what_only_another_pool_is_done_with_is_republished(medium: Medium) -> None:
    store = opened(medium, ("ann", "bob"), "cid")
    (handle,) = put(store, "a")
    for name in ("ann", "bob"):
        store.refuse(name, [(take(store, name)[0].ticket, "no")], NOW)
    assert cycle(store, "cid") == ["a"]

    assert store.republish(handle, "ann", LATER) is True
    assert ids(take(store, "ann")) == ["a"]

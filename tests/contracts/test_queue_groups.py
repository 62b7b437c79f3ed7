"""Who has a message between them: told with each take, as it is kept, since what is done elsewhere is named by it."""

from __future__ import annotations

from relay.work.message import Message
from tests.contracts.queue_media import NOW, Medium, enter, opened, put, subscribers, take


def test_a_take_tells_the_group_that_the_message_was_put_for(medium: Medium) -> None:
    store = opened(medium, ("ann", "bob"), "cid")
    put(store, "all")
    put(store, "own", audience=subscribers("ann", "bob"))

    for name in ("bob", "cid"):
        for one in take(store, name):
            view = store.view(one.ticket.handle)
            assert view is not None
            assert [one.group] == [row.group for row in view.subscribers if row.subscriber == name]


def test_a_group_that_another_process_has_brought_is_told(medium: Medium) -> None:
    store = opened(medium, "ann", "bob")
    if not store.shared:
        return
    other = medium.open(store.settings)
    put(other, "a", audience=subscribers(("ann", "bob")))
    other.close()

    (one,) = take(store, "bob")

    view = store.view(one.ticket.handle)
    assert view is not None
    assert {one.group} == {row.group for row in view.subscribers}


def test_members_of_a_pool_have_one_idempotency_key_in_every_try_and_subscribers_their_own(medium: Medium) -> None:
    store = opened(medium, ("ann", "bob"), "cid")
    put(store, "a")
    (first,) = take(store, "ann")
    store.free("ann", [first.ticket], NOW, failed=True)
    (second,) = take(store, "bob")
    (other,) = take(store, "cid")
    store.refuse("bob", [(second.ticket, "no")], NOW)
    assert store.republish(second.ticket.handle, "bob", NOW)
    (third,) = take(store, "bob")

    keys = [Message(one, "q").idempotency_key for one in (first, second, third, other)]

    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_a_message_that_was_done_keeps_its_key_when_it_is_given_again(medium: Medium) -> None:
    store = opened(medium, "ann")
    enter(store)
    (handle,) = put(store, "a")
    (first,) = take(store, "ann")
    store.finish("ann", [first.ticket], NOW)
    assert store.republish(handle, "ann", NOW, even_done=True)
    (second,) = take(store, "ann")

    assert Message(first, "q").idempotency_key == Message(second, "q").idempotency_key

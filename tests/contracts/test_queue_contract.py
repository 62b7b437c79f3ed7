"""What every store of a queue promises publishers, whatever the medium: put, reveal, end, edit, give again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relay.queue.message import Audience, Group, Parent
from relay.queue.port import Filter, Refused, StoreFull
from relay.queue.receipt import EDITED
from relay.queue.states import PublisherState as P
from relay.queue.states import SubscriberState as S
from relay.queue.values import digest_of
from tests.contracts.queue_media import (
    LATER,
    NOW,
    Medium,
    cycle,
    ids,
    message,
    opened,
    put,
    state,
    states,
    subscribers,
    take,
    tickets,
)


class TestPut:
    def test_handles_grow_and_what_was_put_can_be_seen_whole(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        parent = Parent("inbound", 7, "clerk")
        one = message(
            "a",
            key=b"k",
            headers=(("h", b"1"), ("h", None)),
            subject="s",
            lane=b"l",
            priority=3,
            ttl_ms=50,
            parents=(parent,),
        )

        first, second = (answer.handle for answer in store.put([one, message("b", value=None)], NOW))

        view = store.view(first)
        assert first < second
        assert view is not None
        assert (view.publisher, view.id, view.key, view.value) == ("shop", "a", b"k", b"a")
        assert (view.headers, view.subject, view.lane) == ((("h", b"1"), ("h", None)), "s", b"l")
        assert (view.priority, view.parents, view.put_at, view.expires_at) == (3, (parent,), NOW, NOW + 50)
        assert (view.state, view.revealed_at, view.reveal_at, view.attempt) == (P.REVEALED, NOW, None, None)
        assert [(row.subscriber, row.group, row.state, row.revealed) for row in view.subscribers] == [
            ("ann", "ann", S.AVAILABLE, True)
        ]
        without_value = store.view(first, value=False)
        empty = store.view(second)
        assert without_value is not None
        assert without_value.value is None
        assert empty is not None
        assert empty.value is None
        assert store.view(second + 1) is None

    def test_a_repeat_is_told_until_the_message_is_journalled(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        first = store.put([message("a"), message("b"), message("a")], NOW)

        assert [answer.repeat for answer in first] == [False, False, True]
        assert first[2].handle == first[0].handle
        assert store.put([message("a", value=b"other")], NOW) == [(first[0].handle, True)]
        assert store.put([message("a", publisher="other")], NOW)[0].repeat is False
        assert cycle(store) == ["a", "b", "a"]
        again = store.put([message("a")], NOW)[0]
        assert again.repeat is False
        assert again.handle > first[1].handle + 1

    def test_handles_are_not_used_again_after_a_trim_and_a_reopening(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        (handle,) = put(store, "a")
        cycle(store)
        assert store.trim([handle]) == 1
        if medium.name != "book":
            store.close()
            store = medium.open(store.settings)

        assert put(store, "b")[0] > handle

    @pytest.mark.parametrize(
        "bad",
        [
            {"value": b"x" * 101},
            {"key": b"k" * 60, "headers": (("name", b"v" * 60),)},
            {"publisher": "stranger"},
            {"priority": 10},
            {"priority": 1.5},
            {"priority": -1},
            {"audience": subscribers("nobody")},
            {"audience": Audience(())},
            {"audience": Audience((Group("g", ()),))},
            {"audience": subscribers("ann", ("ann", "bob"))},
            {"audience": Audience((Group("g", ("ann",)), Group("g", ("bob",))))},
            {"attempt": "t"},
        ],
        ids=[
            *("value", "whole", "publisher", "high", "between", "low", "subscriber"),
            *("empty", "empty group", "twice", "group twice", "child of nobody"),
        ],
    )
    def test_what_is_not_acceptable_is_refused_by_name_with_its_whole_batch(
        self, medium: Medium, bad: dict[str, Any]
    ) -> None:
        store = opened(medium, "ann", "bob", message_bytes=100, publishers=frozenset({"shop"}))

        with pytest.raises(Refused, match="'bad'"):
            store.put([message("good"), message("bad", **bad)], NOW)

        assert store.find(Filter()) == []
        assert store.waiting() == 0
        assert put(store, "good") != []

    def test_no_message_says_by_itself_that_its_value_is_elsewhere(self, medium: Medium) -> None:
        """A queue with one that did could be moved to a database, and no message be taken from there."""
        store = opened(medium, "ann")
        place = ("relay_place", b'["orders","id",0,0,"",1000000000000]')
        (handle,) = put(store, "a", headers=(("name", b"v"), place))
        store.put([message("none", value=None, headers=(place,))], NOW)

        view = store.view(handle)
        assert view is not None
        assert view.headers == (("name", b"v"),)
        assert [(one.value, one.headers) for one in take(store)] == [(b"a", (("name", b"v"),)), (None, ())]

    def test_a_full_queue_refuses_the_batch_and_takes_it_once_there_is_room(self, medium: Medium) -> None:
        store = opened(medium, "ann", waiting_max=3)
        put(store, "a", "b")

        with pytest.raises(StoreFull):
            store.put([message("c"), message("d")], NOW)
        assert store.waiting() == 2
        assert store.put([message("a"), message("c")], NOW)[0].repeat is True
        with pytest.raises(StoreFull):
            put(store, "d")
        assert store.put([message("b")], NOW)[0].repeat is True
        cycle(store)
        assert len(put(store, "d", "e", "f")) == 3

    def test_many_large_messages_pass_in_one_batch(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        put(store, *[f"m{n}" for n in range(50)], key=b"\x00" * 200_000)

        taken = take(store)
        assert ids(taken) == [f"m{n}" for n in range(50)]
        assert {one.key for one in taken} == {b"\x00" * 200_000}


class TestReveal:
    def test_what_is_put_hidden_shows_once_it_is_revealed(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        (handle,) = [answer.handle for answer in store.put([message("a")], NOW, reveal=False)]

        assert state(store, handle) is P.PUT
        assert take(store) == []
        assert store.reveal_due(LATER, 10) == 0
        assert store.reveal([handle, handle + 1], LATER) == [True, False]
        assert store.reveal([handle], LATER + 1) == [False]
        view = store.view(handle)
        assert view is not None
        assert view.revealed_at == LATER
        assert ids(take(store)) == ["a"]

    def test_a_delay_ends_when_it_is_due(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        handles = put(store, "a", "b", delay_ms=100)
        put(store, "c")

        assert store.reveal_due(NOW + 99, 10) == 0
        assert ids(take(store, now=NOW + 99)) == ["c"]
        assert store.reveal_due(NOW + 100, 1) == 1
        assert store.reveal_due(NOW + 100, 10) == 1
        view = store.view(handles[0])
        assert view is not None
        assert (view.reveal_at, view.revealed_at, view.put_at) == (NOW + 100, NOW + 100, NOW)
        assert ids(take(store, now=NOW + 100)) == ["a", "b"]

    def test_a_delayed_message_does_not_hold_its_lane_and_the_publishers_word_goes_before_its_delay(
        self, medium: Medium
    ) -> None:
        store = opened(medium, "ann")
        (handle,) = put(store, "a", lane=b"l", delay_ms=100)
        put(store, "b", lane=b"l")

        assert cycle(store) == ["b"]
        assert store.reveal([handle], NOW + 1) == [True]
        assert cycle(store) == ["a"]

    def test_reveal_to_chosen_subscribers_shows_it_to_the_others_later(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob", "cid")
        (handle,) = [answer.handle for answer in store.put([message("a")], NOW, reveal=False)]

        assert store.reveal([handle], NOW, to=["bob"]) == [True]
        assert take(store, "ann") == []
        assert ids(take(store, "bob")) == ["a"]
        assert store.reveal([handle], NOW, to=["bob"]) == [False]
        assert store.reveal([handle], NOW, to={"ann"}) == [True]
        assert store.reveal([handle], NOW) == [True]
        assert store.reveal([handle], NOW) == [False]
        assert [ids(take(store, name)) for name in ("ann", "bob", "cid")] == [["a"], [], ["a"]]
        with pytest.raises(Refused, match="nobody"):
            store.reveal([handle], NOW, to=["nobody"])

    def test_reveal_to_somebody_the_message_is_not_for_changes_nothing(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob")
        (handle,) = [
            answer.handle
            for answer in store.put([message("a", audience=subscribers("ann"))], NOW, reveal=False)
        ]

        assert store.reveal([handle], NOW, to=["bob"]) == [False]
        assert state(store, handle) is P.PUT

    def test_in_order_each_group_sees_it_after_the_groups_before_have_journalled_it(
        self, medium: Medium
    ) -> None:
        store = opened(medium, "ann", ("bob", "cid"), "dan", in_order=True)
        (handle,) = put(store, "a")

        assert [ids(take(store, name)) for name in ("bob", "cid", "dan")] == [[], [], []]
        assert cycle(store, "ann") == ["a"]
        taken = take(store, "cid")
        assert ids(taken) == ["a"]
        assert take(store, "dan") == []
        assert store.refuse("cid", [(taken[0].ticket, "no")], NOW) == [True]
        assert take(store, "dan") == []
        assert cycle(store, "bob") == ["a"]
        assert state(store, handle) is P.REVEALED
        assert cycle(store, "dan") == ["a"]
        assert state(store, handle) is P.JOURNALLED

    def test_in_order_a_group_that_expired_on_the_way_is_passed_over(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob", "cid", in_order=True)
        (handle,) = put(store, "a")

        assert store.expire_now([handle], NOW, "bob") == [True]
        assert take(store, "cid") == []
        assert cycle(store, "ann") == ["a"]
        assert cycle(store, "cid") == ["a"]
        assert state(store, handle) is P.JOURNALLED

    def test_in_order_an_expired_first_group_lets_the_next_one_see_it(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob", in_order=True)
        handles = put(store, "a", "b")

        assert store.expire_now(handles, NOW, "ann") == [True, True]
        assert cycle(store, "bob") == ["a", "b"]

    def test_a_message_may_have_an_audience_of_its_own(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob", "cid")
        (pool,) = put(store, "pool", audience=subscribers(("ann", "bob"), "cid"))
        (one,) = put(store, "one", audience=subscribers("bob"))
        put(store, "all")

        assert states(store, pool) == {"ann": S.AVAILABLE, "bob": S.AVAILABLE, "cid": S.AVAILABLE}
        assert states(store, one) == {"bob": S.AVAILABLE}
        assert ids(take(store, "ann")) == ["pool", "all"]
        assert ids(take(store, "bob")) == ["one", "all"]
        assert ids(take(store, "cid")) == ["pool", "all"]

    def test_a_priority_raises_the_lane_of_its_own_audience_only(self, medium: Medium) -> None:
        store = opened(medium, ("ann", "bob"))
        put(store, "high", lane=b"l", priority=5)
        put(store, "own", lane=b"l", audience=subscribers("ann"))
        put(store, "middle", lane=b"m", priority=3)

        assert ids(take(store)) == ["high", "middle", "own"]

    def test_a_priority_of_what_only_a_mate_may_take_raises_no_lane(self, medium: Medium) -> None:
        store = opened(medium, ("ann", "bob"))
        put(store, "a", lane=b"l")
        put(store, "high", lane=b"l", priority=9)
        put(store, "x", lane=b"m", priority=3)
        taken = {one.id: one.ticket for one in take(store)}
        store.refuse("ann", [(taken["high"], "no")], NOW)
        store.free("ann", [taken["a"], taken["x"]], NOW)

        assert ids(take(store)) == ["x", "a"]


class TestExpiry:
    def test_a_message_past_its_time_is_not_given_and_does_not_hold_its_lane(self, medium: Medium) -> None:
        store = opened(medium, "ann", ttl_ms=1_000)
        put(store, "a", lane=b"l", ttl_ms=50)
        put(store, "b", lane=b"l")

        assert ids(take(store, now=NOW + 50)) == ["b"]

    def test_expire_ends_what_nobody_has_taken(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob", ttl_ms=50)
        first, second = put(store, "a", "b")
        put(store, "late", now=NOW + 1)
        (ticket,) = tickets(take(store, "ann", limit=1))

        assert store.expire(NOW + 49, 10) == 0
        assert store.expire(NOW + 50, 2) == 2
        assert store.expire(NOW + 50, 10) == 1
        assert state(store, second) is P.JOURNALLED
        assert states(store, first) == {"ann": S.FETCHED, "bob": S.JOURNALLED}
        assert store.finish("ann", [ticket], NOW + 60) == [True]
        view = store.view(first)
        assert view is not None
        assert view.state is P.JOURNALLED
        assert [row.times.expired for row in view.subscribers] == [None, NOW + 50]
        assert store.waiting() == 1

    @pytest.mark.parametrize("over", [{"delay_ms": 100}, {"attempt": "a/1", "parents": (Parent("in", 1, "x"),)}], ids=["delayed", "child"])
    def test_what_is_not_revealed_ends_only_when_it_is(self, medium: Medium, over: dict[str, Any]) -> None:
        store = opened(medium, "ann")
        (handle,) = put(store, "a", ttl_ms=50, **over)

        assert store.expire(NOW + 60, 10) == 0
        assert (state(store, handle), states(store, handle)) == (P.PUT, {"ann": S.AVAILABLE})
        store.accept([handle], NOW + 100)
        store.reveal_due(NOW + 100, 10)
        assert store.expire(NOW + 100, 10) == 1
        assert state(store, handle) is P.JOURNALLED

    def test_what_is_freed_past_its_time_is_not_given_again(self, medium: Medium) -> None:
        store = opened(medium, "ann", ttl_ms=50)
        put(store, "a")
        (ticket,) = tickets(take(store))
        store.free("ann", [ticket], NOW + 60)

        assert take(store, now=NOW + 60) == []
        assert store.expire(NOW + 60, 10) == 1

    def test_a_clock_that_goes_back_changes_no_order(self, medium: Medium) -> None:
        store = opened(medium, "ann", ttl_ms=10_000)
        put(store, "a", "b", lane=b"l", now=LATER)
        put(store, "c", lane=b"l", now=NOW)

        assert ids(take(store, now=NOW)) == ["a", "b", "c"]

    def test_what_expired_before_1970_is_given_to_nobody(self, medium: Medium) -> None:
        store = opened(medium)
        put(store, "zero", ttl_ms=-62_135_596_800_000 - NOW)

        assert take(store) == []
        assert store.expire(NOW, 10) == 1

    def test_expire_now_is_for_one_subscriber_or_all(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob")
        first, second = put(store, "a", "b")

        assert store.expire_now([first], NOW, "ann") == [True]
        assert store.expire_now([first], NOW, "ann") == [False]
        assert states(store, first) == {"ann": S.JOURNALLED, "bob": S.AVAILABLE}
        assert store.expire_now([second, first], LATER) == [True, True]
        assert [state(store, handle) for handle in (first, second)] == [P.JOURNALLED, P.JOURNALLED]
        with pytest.raises(Refused, match="nobody"):
            store.expire_now([first], NOW, "nobody")

    def test_what_is_withdrawn_ends_for_all_but_who_has_it(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob", "cid")
        first, second = put(store, "a", "b")
        ann = take(store, "ann", limit=1)[0].ticket
        bob = take(store, "bob", limit=1)[0].ticket

        assert store.withdraw([first, second], LATER) == [True, True]
        assert take(store, "cid") == []
        view = store.view(first)
        assert view is not None
        assert (view.state, view.unavailable_at) == (P.UNAVAILABLE, LATER)
        assert states(store, first) == {"ann": S.FETCHED, "bob": S.FETCHED, "cid": S.JOURNALLED}
        assert store.trim([first]) == 0
        assert store.finish("ann", [ann], LATER) == [True]
        assert store.free("bob", [bob], LATER) == [True]
        assert states(store, first) == {"ann": S.JOURNALLED, "bob": S.JOURNALLED, "cid": S.JOURNALLED}
        assert take(store, "bob") == []
        assert state(store, first) is P.UNAVAILABLE
        assert store.trim([first, second]) == 2


class TestRepublish:
    def test_unusable_is_told_with_its_cause_and_given_again_to_that_subscriber_only(
        self, medium: Medium
    ) -> None:
        store = opened(medium, "ann", "bob")
        (handle,) = put(store, "a")
        (one,) = take(store, "ann")
        store.free("ann", [one.ticket], NOW, failed=True)
        (one,) = take(store, "ann")
        assert store.refuse("ann", [(one.ticket, "cannot be read")], NOW) == [True]
        assert cycle(store, "bob") == ["a"]
        assert state(store, handle) is P.JOURNALLED
        assert [view.handle for view in store.find(Filter(unusable=True, publisher="shop"))] == [handle]
        # Files have no count of it: they would have to be read.
        assert store.unusable() == (None if medium.name == "files" else {"ann": 1})

        assert store.republish(handle, "ann", LATER) is True
        assert not store.unusable()
        view = store.view(handle)
        assert view is not None
        assert (view.state, view.journalled_at) == (P.REVEALED, None)
        row = view.subscribers[0]
        assert (row.state, row.failures, row.cause, row.attempt) == (S.AVAILABLE, 0, None, 2)
        assert set(row.times) == {None}
        assert store.find(Filter(unusable=True)) == []
        assert store.waiting() == 1
        assert take(store, "bob") == []
        assert [one.ticket.attempt for one in take(store, "ann")] == [3]

    def test_what_was_done_is_given_again_only_at_an_operators_word(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        (handle,) = put(store, "a")
        cycle(store)

        assert store.republish(handle, "ann", NOW) is False
        assert store.republish(handle, "ann", NOW, even_done=True) is True
        assert store.republish(handle, "ann", NOW, even_done=True) is False
        assert cycle(store) == ["a"]

    def test_it_is_refused_where_there_is_nothing_to_give(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob")
        (handle,) = put(store, "a", audience=subscribers("ann"))

        assert store.republish(handle, "ann", NOW, even_done=True) is False
        assert store.republish(handle, "bob", NOW, even_done=True) is False
        assert store.republish(handle + 1, "ann", NOW, even_done=True) is False
        store.withdraw([handle], NOW)
        assert store.republish(handle, "ann", NOW, even_done=True) is False

    def test_two_messages_of_one_id_never_wait_together(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        (old,) = put(store, "a")
        store.expire_now([old], NOW)
        (new,) = put(store, "a")

        assert store.republish(old, "ann", NOW) is False
        store.expire_now([new], NOW)
        assert store.republish(old, "ann", NOW) is True
        assert store.put([message("a")], NOW) == [(old, True)]

    def test_in_order_a_republished_message_does_not_hide_it_from_the_others(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob", in_order=True)
        (handle,) = put(store, "a")
        store.refuse("ann", [(take(store, "ann")[0].ticket, "no")], NOW)

        assert store.republish(handle, "ann", NOW) is True
        assert ids(take(store, "bob")) == ["a"]
        assert cycle(store, "ann") == ["a"]


class TestEdit:
    def test_an_edit_replaces_the_value_and_leaves_its_trace(self, medium: Medium) -> None:
        store = opened(medium, "ann", message_bytes=300)
        (handle,) = put(store, "a", headers=(("h", b"1"),))

        assert store.edit(handle, b"mended", "ops", "typing error", LATER) is True
        with pytest.raises(Refused):
            store.edit(handle, b"x" * 300, "ops", "too large", LATER)
        (one,) = take(store)
        assert one.value == b"mended"
        assert one.headers[0] == ("h", b"1")
        name, entry = one.headers[1]
        assert name == EDITED
        assert entry is not None
        assert json.loads(entry) == {
            "at": LATER,
            "who": "ops",
            "reason": "typing error",
            "before": digest_of(b"a"),
        }
        assert len(one.headers) == 2

    def test_what_somebody_has_had_is_not_edited(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob")
        (handle,) = put(store, "a")
        store.free("ann", tickets(take(store, "ann")), NOW)

        assert store.edit(handle, b"new", "ops", "why", NOW) is False
        assert store.edit(handle + 1, b"new", "ops", "why", NOW) is False
        assert take(store, "bob")[0].value == b"a"

"""What every store of a queue promises subscribers: order, lanes, tickets, pools, and no step that the table does not have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relay.queue.message import Audience, Group, NewMessage, Ticket
from relay.queue.port import QueueStore, Refused
from relay.queue.states import PublisherState as P
from relay.queue.states import SubscriberState as S
from relay.queue.stores import sql_taking
from tests.contracts.queue_media import (
    HOLDER,
    LATER,
    NOW,
    OTHER,
    Medium,
    child,
    cycle,
    enter,
    full_view,
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


class TestTake:
    def test_all_states_get_their_time(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        (handle,) = put(store, "a")
        (one,) = take(store, now=NOW + 1)

        assert (one.ticket, one.publisher, one.id, one.value, one.failures) == (
            Ticket(handle, 1),
            "shop",
            "a",
            b"a",
            0,
        )
        assert states(store, handle) == {"ann": S.FETCHED}
        assert store.start("ann", [one.ticket], NOW + 2) == [True]
        assert states(store, handle) == {"ann": S.IN_PROCESS}
        assert store.finish("ann", [one.ticket], NOW + 3) == [True]
        view = store.view(handle)
        assert view is not None
        (row,) = view.subscribers
        assert tuple(row.times) == (NOW + 1, NOW + 1, NOW + 2, NOW + 3, None, None, NOW + 3)
        assert (row.state, row.holder, row.attempt) == (S.JOURNALLED, None, 1)
        assert (view.state, view.journalled_at, view.revealed_at) == (P.JOURNALLED, NOW + 3, NOW)

    def test_nothing_is_given_twice_and_the_limit_holds(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        put(store, "a", "b", "c")

        assert ids(take(store, limit=2)) == ["a", "b"]
        assert ids(take(store, holder=HOLDER)) == ["c"]
        assert take(store) == []

    def test_each_subscriber_gets_each_message_from_one_stored_instance(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob")
        (handle,) = put(store, "a")

        assert cycle(store, "ann") == ["a"]
        assert state(store, handle) is P.REVEALED
        assert cycle(store, "bob") == ["a"]
        assert state(store, handle) is P.JOURNALLED
        assert store.waiting() == 0

    def test_a_lane_goes_in_order_with_one_holder_at_a_time(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        put(store, "a", "b", "c", lane=b"l")
        put(store, "x", lane=b"m")

        first = take(store, holder=HOLDER, limit=1)
        assert ids(first) == ["a"]
        assert ids(take(store)) == ["x"]
        assert ids(take(store, holder=HOLDER, limit=1)) == ["b"]
        store.finish("ann", tickets(first), NOW)
        assert take(store) == []

    def test_a_lane_that_waits_for_a_retry_gives_nothing_and_others_go_on(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        put(store, "a", "b", lane=b"l")
        put(store, "x", lane=b"m")
        taken = take(store)
        assert store.free("ann", tickets(taken[1:]), NOW) == [True, True]
        assert store.free("ann", tickets(taken[:1]), NOW, again_at=NOW + 50, failed=True) == [True]

        assert ids(take(store, now=NOW + 49)) == ["x"]
        again = take(store, now=NOW + 50)
        assert ids(again) == ["a", "b"]
        assert [one.failures for one in again] == [1, 0]
        assert [one.ticket.attempt for one in again] == [2, 2]

    @pytest.mark.parametrize("priority", [0, 5])
    def test_a_retry_hours_ahead_was_set_by_a_wrong_clock_and_holds_its_lane_no_longer(
        self, medium: Medium, priority: int
    ) -> None:
        store = opened(medium, "ann", pause_max_ms=1_000)
        put(store, "a", "b", lane=b"l")
        a, b = tickets(take(store))
        store.free("ann", [b], NOW)
        store.free("ann", [a], NOW, again_at=NOW + store.settings.wait_max_ms)
        put(store, "x", priority=priority)

        assert ids(take(store)) == ["x"]
        put(store, "y", priority=priority)
        assert ids(take(store, now=NOW - 1)) == (["y", "a", "b"] if priority else ["a", "b", "y"])

    def test_what_waits_behind_the_first_ends_what_the_lane_gives(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        put(store, "a", "b", "c", lane=b"l")
        a, b, c = tickets(take(store))
        store.free("ann", [b], NOW, again_at=NOW + 50)
        store.free("ann", [a, c], NOW)

        assert ids(take(store)) == ["a"]

    @pytest.mark.parametrize("back", [0, 1])
    def test_nothing_is_given_ahead_of_what_the_holder_has(self, medium: Medium, back: int) -> None:
        store = opened(medium, "ann")
        put(store, "a", "b", "c", "d", lane=b"l")
        taken = take(store, limit=3)
        store.free("ann", tickets([taken.pop(back)]), NOW)

        assert take(store) == []
        store.free("ann", tickets(taken), NOW)
        assert ids(take(store)) == ["a", "b", "c", "d"]

    def test_a_lane_left_out_gives_nothing_and_the_others_do(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        put(store, "a", "b", lane=b"l")
        put(store, "x", lane=b"m")
        put(store, "free")

        assert ids(store.take("ann", HOLDER, 10, NOW, without=[b"l"])) == ["x", "free"]
        assert ids(store.take("ann", HOLDER, 10, NOW, without=frozenset())) == ["a", "b"]

    @pytest.mark.parametrize("ends", ["accepted", "discarded", "withdrawn"])
    def test_an_undecided_child_holds_its_place_in_the_lane(self, medium: Medium, ends: str) -> None:
        store = opened(medium, "ann", ("bob", "eve"))
        first = store.put([child("first", lane=b"x")], NOW)[0].handle
        put(store, "second", lane=b"x")
        put(store, "aside", lane=b"y")

        assert ids(take(store)) == ["aside"]
        assert ids(take(store, "eve")) == ["aside"]
        end = {"accepted": store.accept, "discarded": store.discard, "withdrawn": store.withdraw}[ends]
        assert end([first], NOW) == [True]

        assert ids(take(store)) == (["first", "second"] if ends == "accepted" else ["second"])

    def test_an_accepted_child_that_is_delayed_or_expired_holds_nobody(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        late = store.put([child("late", lane=b"x", delay_ms=100)], NOW)[0].handle
        store.put([child("old", lane=b"x", ttl_ms=10)], NOW)
        put(store, "behind", lane=b"x")
        store.accept([late], NOW)

        assert take(store) == []
        assert ids(take(store, now=NOW + 10)) == ["behind"]

    def test_without_a_lane_a_retry_holds_nobody(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        put(store, "a", "b")
        taken = take(store, limit=1)
        store.free("ann", tickets(taken), NOW, again_at=NOW + 50)

        assert ids(take(store, holder=HOLDER)) == ["b"]

    def test_priority_orders_lanes_and_never_messages_inside_one(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        put(store, "a1", lane=b"a")
        put(store, "b1", lane=b"b", priority=3)
        put(store, "none")
        put(store, "c1", lane=b"c")
        put(store, "a2", lane=b"a", priority=9)
        put(store, "high", priority=3)

        assert ids(take(store)) == ["a1", "a2", "b1", "high", "none", "c1"]

    @pytest.mark.parametrize("high", [child("undecided"), message("expired", ttl_ms=10)], ids=lambda one: one.id)
    def test_what_only_keeps_its_place_or_has_expired_raises_no_lane(self, medium: Medium, high: NewMessage) -> None:
        store = opened(medium, "ann")
        put(store, "a", lane=b"l")
        store.put([high._replace(lane=b"l", priority=9)], NOW)
        put(store, "x", lane=b"m", priority=3)

        assert ids(take(store, now=NOW + 10)) == ["x", "a"]

    def test_what_waits_for_its_retry_raises_its_lane(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        put(store, "x", lane=b"m")
        put(store, "a", lane=b"l")
        put(store, "b", lane=b"l", priority=5)
        a, b, x = tickets(take(store))
        store.free("ann", [b], NOW, again_at=NOW + 50)
        store.free("ann", [a, x], NOW)

        assert ids(take(store)) == ["a", "x"]

    def test_messages_of_lanes_of_one_priority_come_by_age(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        for name, lane in (("a1", b"a"), ("b1", b"b"), ("a2", b"a"), ("x", None), ("b2", b"b")):
            put(store, name, lane=lane)

        assert ids(take(store, limit=2)) == ["a1", "b1"]
        assert ids(take(store)) == ["a2", "x", "b2"]

    @pytest.mark.parametrize("shut", ["held", "undecided", "left out"])
    @pytest.mark.parametrize("groups", [1, 2])
    def test_a_long_lane_that_is_shut_keeps_no_other_lane_from_being_given(
        self, medium: Medium, monkeypatch: pytest.MonkeyPatch, shut: str, groups: int
    ) -> None:
        monkeypatch.setattr(sql_taking, "LEVEL_MAX", 3)
        store = opened(medium, "ann")
        if groups > 1:  # a message with an audience of its own makes a group of another name
            put(store, "alone", audience=Audience((Group("other", ("ann",)),)))
            assert cycle(store) == ["alone"]
        if shut == "undecided":
            store.put([child("c", lane=b"long")], NOW)
        put(store, *[f"l{number}" for number in range(9)], lane=b"long")
        enter(store, holder=OTHER)
        if shut == "held":
            assert ids(take(store, holder=OTHER, limit=1)) == ["l0"]
        put(store, "high", lane=b"long", priority=7)
        put(store, "s", lane=b"short")
        put(store, "t")

        taken = store.take("ann", HOLDER, 10, NOW, without=[b"long"] if shut == "left out" else [])

        assert ids(taken) == ["s", "t"]

    def test_priority_can_be_set_while_it_waits(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        handles = put(store, "a", "b", "c")
        cycled = put(store, "done", priority=9)
        assert ids(take(store, limit=1)) == ["done"]
        store.finish("ann", [Ticket(cycled[0], 1)], NOW)

        assert store.prioritise([handles[2], cycled[0], 10**9], 5) == [True, False, False]
        with pytest.raises(Refused, match="10"):
            store.prioritise(handles, 10)
        taken = take(store)
        assert ids(taken) == ["c", "a", "b"]
        assert taken[0].priority == 5

    def test_an_unknown_subscriber_and_a_holder_that_was_not_entered_are_refused(
        self, medium: Medium
    ) -> None:
        store = opened(medium, "ann")
        put(store, "a")

        with pytest.raises(Refused, match="nobody"):
            store.take("nobody", HOLDER, 1, NOW)
        with pytest.raises(Refused):
            store.take("ann", b"never entered", 1, NOW)
        assert store.leave(HOLDER) is True
        with pytest.raises(Refused):
            store.take("ann", HOLDER, 1, NOW)
        assert ids(take(store)) == ["a"]

    def test_a_stale_ticket_changes_nothing(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        (handle,) = put(store, "a")
        (old,) = tickets(take(store))
        store.free("ann", [old], NOW)
        (new,) = tickets(take(store))
        assert new == Ticket(handle, old.attempt + 1)
        before = full_view(store)

        assert store.start("ann", [old], NOW) == [False]
        assert store.finish("ann", [old], NOW) == [False]
        assert store.refuse("ann", [(old, "no")], NOW) == [False]
        assert store.free("ann", [old], NOW) == [False]
        assert full_view(store) == before
        assert store.finish("ann", [new], NOW) == [True]

    def test_answers_have_the_order_of_what_was_asked(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        put(store, "a", "b", "c")
        a, b, c = tickets(take(store))
        wrong = Ticket(b.handle, b.attempt + 1)

        assert store.start("ann", [c, wrong, a], NOW) == [True, False, True]
        assert store.finish("ann", [c, wrong, b, a], NOW) == [True, False, True, True]
        assert store.finish("ann", [c, b, a], NOW) == [False, False, False]
        assert store.finish("ann", [], NOW) == []

    def test_each_subscribers_ticket_is_its_own(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob")
        put(store, "a")
        (ticket,) = tickets(take(store, "ann"))

        assert store.finish("bob", [ticket], NOW) == [False]
        assert store.finish("ann", [ticket], NOW) == [True]


ASK: dict[str, Callable[[QueueStore, int, Ticket], list[bool]]] = {
    "reveal": lambda store, handle, ticket: store.reveal([handle], LATER),
    "accept": lambda store, handle, ticket: store.accept([handle], LATER),
    "withdraw": lambda store, handle, ticket: store.withdraw([handle], LATER),
    "discard": lambda store, handle, ticket: store.discard([handle], LATER),
    "prioritise": lambda store, handle, ticket: store.prioritise([handle], 9),
    "edit": lambda store, handle, ticket: [store.edit(handle, b"new", "ann", "why", LATER)],
    "republish": lambda store, handle, ticket: [store.republish(handle, "ann", LATER)],
    "start": lambda store, handle, ticket: store.start("ann", [ticket], LATER),
    "finish": lambda store, handle, ticket: store.finish("ann", [ticket], LATER),
    "refuse": lambda store, handle, ticket: store.refuse("ann", [(ticket, "no")], LATER),
    "free": lambda store, handle, ticket: store.free("ann", [ticket], LATER, failed=True),
    "expire_now": lambda store, handle, ticket: store.expire_now([handle], LATER),
    "expire": lambda store, handle, ticket: [bool(store.expire(LATER, 10))],
    "reveal_due": lambda store, handle, ticket: [bool(store.reveal_due(LATER, 10))],
    "trim": lambda store, handle, ticket: [bool(store.trim([handle]))],
}
"""Every command that changes a state, put as one question about one message."""
LEGAL = {
    "put": {"reveal", "withdraw", "prioritise", "edit"},
    "child": {"accept", "withdraw", "discard", "prioritise", "edit"},
    "revealed": {"withdraw", "prioritise", "edit", "expire_now"},
    "fetched": {"withdraw", "prioritise", "start", "finish", "refuse", "free"},
    "in process": {"withdraw", "prioritise", "finish", "refuse", "free"},
    "done": {"trim"},
    "unusable": {"republish", "trim"},
    "expired": {"republish", "trim"},
    "withdrawn": {"trim"},
    "deleted": {"trim"},
}
"""What may happen in each situation; everything else must change nothing."""


class TestIllegalTransitions:
    @staticmethod
    def bring(store: QueueStore, situation: str) -> tuple[int, Ticket]:
        new = child("a") if situation in ("child", "deleted") else message("a")
        handle = store.put([new], NOW, reveal=situation != "put")[0].handle
        ticket = Ticket(handle, 1)
        if situation in ("fetched", "in process", "done", "unusable"):
            assert tickets(take(store)) == [ticket]
        steps = {
            "in process": lambda: store.start("ann", [ticket], NOW),
            "done": lambda: store.finish("ann", [ticket], NOW),
            "unusable": lambda: store.refuse("ann", [(ticket, "no")], NOW),
            "expired": lambda: store.expire_now([handle], NOW),
            "withdrawn": lambda: store.withdraw([handle], NOW),
            "deleted": lambda: store.discard([handle], NOW),
        }
        if situation in steps:
            assert steps[situation]() == [True]
        return handle, ticket

    @pytest.mark.parametrize("situation", LEGAL)
    def test_what_may_not_happen_is_answered_no_and_changes_nothing(
        self, medium: Medium, situation: str
    ) -> None:
        store = opened(medium, "ann")
        handle, ticket = self.bring(store, situation)
        before = full_view(store)

        for name, ask in ASK.items():
            if name not in LEGAL[situation]:
                assert (name, ask(store, handle, ticket)) == (name, [False])
                assert (name, full_view(store)) == (name, before)

    @pytest.mark.parametrize(
        ("situation", "command"), [(s, c) for s, allowed in LEGAL.items() for c in sorted(allowed)]
    )
    def test_what_may_happen_is_answered_yes(self, medium: Medium, situation: str, command: str) -> None:
        store = opened(medium, "ann")
        handle, ticket = self.bring(store, situation)

        assert ASK[command](store, handle, ticket) == [True]


class TestPools:
    def test_the_first_taker_blocks_the_others_and_its_end_expires_them(self, medium: Medium) -> None:
        store = opened(medium, ("ann", "bob", "cid"))
        (handle,) = put(store, "a")
        (ticket,) = tickets(take(store, "bob"))

        assert take(store, "ann") == []
        view = store.view(handle)
        assert view is not None
        assert [(row.state, row.blocked) for row in view.subscribers] == [
            (S.AVAILABLE, True),
            (S.FETCHED, False),
            (S.AVAILABLE, True),
        ]
        assert store.finish("bob", [ticket], LATER) == [True]
        view = store.view(handle)
        assert view is not None
        assert view.state is P.JOURNALLED
        assert [
            (row.times.expired, row.times.done, row.times.journalled, row.blocked) for row in view.subscribers
        ] == [
            (LATER, None, LATER, False),
            (None, LATER, LATER, False),
            (LATER, None, LATER, False),
        ]

    def test_what_is_freed_may_be_taken_by_another_member(self, medium: Medium) -> None:
        store = opened(medium, ("ann", "bob"))
        put(store, "a")
        (ticket,) = tickets(take(store, "ann"))
        assert store.free("ann", [ticket], NOW) == [True]

        assert cycle(store, "bob") == ["a"]

    def test_a_member_that_refused_gets_it_no_more_and_all_refusing_end_it(self, medium: Medium) -> None:
        store = opened(medium, ("ann", "bob"))
        (handle,) = put(store, "a")
        (first,) = take(store, "ann")
        assert first.in_pool
        assert store.refuse("ann", [(first.ticket, "torn")], NOW) == [True]

        assert take(store, "ann") == []
        assert state(store, handle) is P.REVEALED
        (ticket,) = tickets(take(store, "bob"))
        assert store.refuse("bob", [(ticket, "torn too")], LATER) == [True]
        view = store.view(handle)
        assert view is not None
        assert view.state is P.JOURNALLED
        assert [(row.cause, row.times.unusable) for row in view.subscribers] == [
            ("torn", NOW),
            ("torn too", LATER),
        ]

    def test_a_lane_is_the_pools_not_the_members(self, medium: Medium) -> None:
        store = opened(medium, ("ann", "bob"))
        put(store, "a", "b", lane=b"l")
        (first,) = tickets(take(store, "ann", limit=1))

        assert take(store, "bob") == []
        store.refuse("ann", [(first, "no")], NOW)
        assert take(store, "ann") == []
        assert ids(take(store, "bob")) == ["a", "b"]

    def test_a_lane_that_another_group_has_a_message_of_gives_what_is_for_this_one(self, medium: Medium) -> None:
        store = opened(medium, ("ann", "bob"))
        put(store, "for the pool", lane=b"l")
        put(store, "for ann", lane=b"l", audience=subscribers("ann"))

        assert ids(take(store, "bob")) == ["for the pool"]
        assert ids(take(store, "ann")) == ["for ann"]

    def test_two_groups_of_one_message_go_their_own_ways(self, medium: Medium) -> None:
        store = opened(medium, ("ann", "bob"), "cid", "dan")
        (handle,) = put(store, "a", lane=b"l")

        assert [ids(take(store, name)) for name in ("bob", "ann", "dan", "cid")] == [["a"], [], ["a"], ["a"]]
        for name in ("bob", "cid"):
            assert store.finish(name, [Ticket(handle, 1)], NOW) == [True]
        assert state(store, handle) is P.REVEALED
        assert store.refuse("dan", [(Ticket(handle, 1), "no")], NOW) == [True]
        assert state(store, handle) is P.JOURNALLED

    def test_two_pools_that_claim_one_message_get_it_once_each(self, medium: Medium) -> None:
        store = opened(medium, ("ann", "bob"), ("cid", "dan"))
        put(store, "a")

        assert [ids(take(store, name)) for name in ("ann", "cid", "bob", "dan")] == [["a"], ["a"], [], []]

    def test_a_message_republished_to_a_member_is_available_to_it_alone(self, medium: Medium) -> None:
        store = opened(medium, ("ann", "bob", "cid"))
        (handle,) = put(store, "a")
        (ticket,) = tickets(take(store, "ann"))
        store.refuse("ann", [(ticket, "no")], NOW)
        assert cycle(store, "bob") == ["a"]

        assert store.republish(handle, "ann", LATER, even_done=True) is True
        assert states(store, handle) == {"ann": S.AVAILABLE, "bob": S.JOURNALLED, "cid": S.JOURNALLED}
        assert take(store, "cid") == []
        assert cycle(store, "ann") == ["a"]
        assert state(store, handle) is P.JOURNALLED

    def test_a_member_it_is_republished_to_waits_while_another_has_it(self, medium: Medium) -> None:
        store = opened(medium, ("ann", "bob"))
        (handle,) = put(store, "a")
        store.refuse("ann", [(take(store, "ann")[0].ticket, "no")], NOW)
        (ticket,) = tickets(take(store, "bob"))

        assert store.republish(handle, "ann", NOW) is True
        assert take(store, "ann") == []
        assert store.free("bob", [ticket], NOW) == [True]
        assert ids(take(store, "ann")) == ["a"]

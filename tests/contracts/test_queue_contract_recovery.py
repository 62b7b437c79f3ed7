"""What every store of a queue promises whoever looks on or comes after: holders, outcomes, views, journal, units of writing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.queue import moving
from relay.queue.message import Ticket
from relay.queue.port import Filter, Holder, Refused, Retired
from relay.queue.settings import QueueSettings, Retention
from relay.queue.states import PublisherState as P
from relay.queue.states import SubscriberState as S
from tests.contracts.queue_media import (
    HOLDER,
    LATER,
    MEDIA,
    NOW,
    OTHER,
    Medium,
    child,
    cycle,
    enter,
    full_view,
    ids,
    medium_of,
    message,
    opened,
    put,
    settings,
    state,
    states,
    subscribers,
    take,
    tickets,
)


class TestHolders:
    def test_a_worker_is_known_until_it_leaves_and_leaves_with_empty_hands(self, medium: Medium) -> None:
        store = medium.open(settings("ann"))
        store.enter(Holder(HOLDER, "ann", 0, "resource:shop"))
        put(store, "a", "b")
        taken = take(store, holder=HOLDER)

        assert store.holders() == [Holder(HOLDER, "ann", 0, "resource:shop")]
        assert store.beat(HOLDER) is True
        assert store.beat(OTHER) is False
        assert store.holders()[0].beats == 1
        assert store.held(HOLDER) == tickets(taken)
        assert store.held(OTHER) == []
        assert store.leave(HOLDER) is False
        store.start("ann", tickets(taken[:1]), NOW)
        assert store.held(HOLDER) == tickets(taken)
        store.finish("ann", tickets(taken[:1]), NOW)
        store.free("ann", tickets(taken[1:]), NOW)
        assert store.held(HOLDER) == []
        assert store.leave(HOLDER) is True
        assert store.leave(HOLDER) is True
        assert store.holders() == []
        assert store.beat(HOLDER) is False

    def test_a_ticket_tells_what_its_attempt_led_to(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        put(store, "done", "unusable", "freed", "fetched", "started", "expired")
        done, unusable, freed, _, started, expired = asked = tickets(take(store))
        store.start("ann", [started], NOW)
        store.finish("ann", [done], NOW)
        store.refuse("ann", [(unusable, "no")], NOW)
        store.free("ann", [freed, expired], NOW)
        store.expire_now([expired.handle], NOW)

        assert store.holds("ann", asked) == [S.DONE, S.UNUSABLE, None, S.FETCHED, S.IN_PROCESS, None]
        (again,) = tickets(take(store))
        assert store.holds("ann", [freed, again, Ticket(10**9, 1)]) == [None, S.FETCHED, None]

    def test_the_first_outcome_of_an_attempt_stands(self, medium: Medium) -> None:
        store = opened(medium, "ann")

        assert store.outcome("t1") is None
        assert store.settle("t1", committed=False, now=NOW) is False
        assert store.settle("t1", committed=True, now=NOW) is False
        assert store.settle("t2", committed=True, now=NOW) is True
        assert store.settle("t2", committed=False, now=NOW) is True
        assert (store.outcome("t1"), store.outcome("t2")) == (False, True)

    def test_children_wait_for_their_attempt(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        put_now = [child(name) for name in "abcd"]
        first, second, third, fourth = (answer.handle for answer in store.put(put_now, NOW))
        later = store.put([child("later", delay_ms=100)], NOW)[0].handle
        put(store, "x")

        assert ids(take(store)) == ["x"]
        assert store.children(2) == [(first, "t"), (second, "t")]
        assert store.children(1, after=second) == [(third, "t")]
        assert store.reveal_due(NOW + 100, 10) == 0
        assert store.accept([first, later], NOW + 1) == [True, True]
        assert store.discard([second, first], NOW + 1) == [True, False]
        assert store.children(10) == [(third, "t"), (fourth, "t")]
        assert ids(take(store)) == ["a"]
        assert (state(store, later), state(store, second)) == (P.PUT, P.DELETED)
        assert store.reveal_due(NOW + 100, 10) == 1
        assert store.accept([fourth], NOW + 100) == [True]
        view = store.view(fourth)
        assert view is not None
        assert (view.attempt, view.state, view.revealed_at) == (None, P.REVEALED, NOW + 100)

    @pytest.mark.parametrize("to", [None, ["ann"]])
    def test_nobodys_word_goes_before_the_outcome_of_an_attempt(self, medium: Medium, to: list[str] | None) -> None:
        store = opened(medium, "ann", "bob")
        delays = 0, 100
        handles = [store.put([child("a", delay_ms=delay)], NOW)[0].handle for delay in delays]

        assert store.reveal(handles, NOW + 1, to) == [False, False]
        assert [child.handle for child in store.children(10)] == handles
        assert [state(store, handle) for handle in handles] == [P.PUT, P.PUT]
        assert take(store) == []
        assert store.discard(handles[:1], NOW + 2) == [True]
        assert store.accept(handles[1:], NOW + 2) == [True]
        assert store.reveal(handles, NOW + 3, to) == [False, True]
        assert [one.ticket.handle for one in take(store)] == handles[1:]

    def test_a_child_is_never_a_repeat_and_makes_none(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        answers = store.put([message("a"), child("a"), child("a", attempt="t2")], NOW)
        first, second, third = (answer.handle for answer in answers)

        assert [answer.repeat for answer in answers] == [False, False, False]
        assert store.put([message("a")], NOW) == [(first, True)]
        assert store.accept([second], NOW) == [True]
        assert store.discard([third], NOW) == [True]
        assert cycle(store) == ["a", "a"]
        assert store.put([message("a")], NOW)[0].repeat is False
        assert [answer.repeat for answer in store.put([message("a"), child("a", attempt="t3")], NOW)] == [True, False]
        assert store.republish(second, "ann", NOW, even_done=True) is True

    def test_only_a_child_is_discarded(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        handle = store.put([message("a")], NOW, reveal=False)[0].handle

        assert store.discard([handle], NOW) == [False]
        assert state(store, handle) is P.PUT


class TestSeen:
    def test_messages_are_found_by_what_they_are(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob")
        a, b = put(store, "a", "b")
        (c,) = put(store, "c", now=NOW + 10, publisher="other", audience=subscribers("bob"))
        cycle(store, "ann")

        def found(**chosen: Any) -> list[int]:
            views = store.find(Filter(**chosen))
            assert all(view.value is None for view in views)
            return [view.handle for view in views]

        assert found() == [a, b, c]
        assert found(state=P.JOURNALLED) == []
        assert found(subscriber="ann") == [a, b]
        assert found(subscriber="ann", subscriber_state=S.JOURNALLED) == [a, b]
        assert found(subscriber="bob", subscriber_state=S.JOURNALLED) == []
        assert found(subscriber_state=S.JOURNALLED) == [a, b]
        assert found(publisher="other") == [c]
        assert found(since=NOW + 10) == [c]
        assert found(until=NOW + 10) == [a, b]
        assert [view.handle for view in store.find(Filter(), after=a, limit=1)] == [b]

    def test_looking_alters_nothing(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        (handle,) = put(store, "a")
        before = store.view(handle)
        store.find(Filter(subscriber="ann"))
        store.counts()
        store.held(HOLDER)
        store.journalled(NOW, 10)

        assert store.view(handle) == before
        assert ids(take(store)) == ["a"]

    @pytest.mark.parametrize("value", [True, False])
    def test_many_are_looked_at_as_each_alone_is(self, medium: Medium, value: bool) -> None:
        store = opened(medium, "ann", "bob")
        handles = [*put(store, "a", "b", "c"), store.put([child("d")], NOW)[0].handle]
        cycle(store, "ann")
        cycle(store, "bob")
        assert store.trim(handles[1:2]) == 1
        put(store, "e")

        seen = store.views([*reversed(handles), handles[0], 10**9], value=value)

        assert seen == [store.view(handle, value=value) for handle in handles if handle != handles[1]]
        assert store.views([]) == []

    def test_counts_are_told_for_the_publisher_and_for_each_subscriber(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob")
        put(store, "a", "b", "c")
        put(store, "later", delay_ms=10)
        taken = take(store, limit=2)
        store.start("ann", tickets(taken[:1]), NOW)

        publisher, waiting = store.counts()
        assert publisher.get(P.PUT, 0) == 1
        assert publisher.get(P.REVEALED, 0) == 3
        by_name = {one.subscriber: {s: n for s, n in one.counts.items() if n} for one in waiting}
        assert by_name == {
            "ann": {S.AVAILABLE: 2, S.FETCHED: 1, S.IN_PROCESS: 1},
            "bob": {S.AVAILABLE: 4},
        }
        assert store.waiting() == 4


class TestJournal:
    def test_journalled_messages_stay_readable_until_they_are_trimmed(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        done, taken, waiting = put(store, "done", "taken", "waiting")
        store.finish("ann", tickets(take(store, limit=1)), NOW)
        take(store, limit=1)

        view = store.view(done)
        assert view is not None
        assert view.value == b"done"
        assert store.trim([waiting, done, taken, done + 100]) == 1
        assert store.view(done) is None
        assert store.trim([done]) == 0
        assert [view.handle for view in store.find(Filter())] == [taken, waiting]

    def test_without_a_bound_nothing_passes_the_retention(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        put(store, "a")
        cycle(store)

        assert store.journalled(NOW + 10**12, 10) == []

    def test_the_age_counts_from_the_last_state(self, medium: Medium) -> None:
        store = opened(medium, "ann", retain=Retention(age_ms=100))
        put(store, "a", "b", "c")
        given_up = store.put([child("child")], NOW)[0].handle
        store.finish("ann", tickets(take(store, limit=1)), NOW)
        store.finish("ann", tickets(take(store, limit=1)), NOW + 1)
        store.discard([given_up], NOW)

        assert store.journalled(NOW + 99, 10) == []
        assert sorted(view.id for view in store.journalled(NOW + 100, 10)) == ["a", "child"]
        past = store.journalled(NOW + 101, 10)
        assert {view.value for view in past} == {b"a", b"b", b"child"}
        assert len(store.journalled(NOW + 101, 2)) == 2

    def test_the_last_subscriber_says_when_it_was_journalled_also_by_a_clock_that_went_back(self, medium: Medium) -> None:
        store = opened(medium, "ann", "bob")
        (handle,) = put(store, "a")
        cycle(store, "ann", now=LATER)
        cycle(store, "bob", now=NOW)

        view = store.view(handle)
        assert view is not None
        assert view.journalled_at == NOW

    @pytest.mark.parametrize("retain", [Retention(count=2), Retention(bytes=25)], ids=["count", "bytes"])
    def test_what_is_past_the_count_or_the_bytes_is_told_oldest_first(
        self, medium: Medium, retain: Retention
    ) -> None:
        store = opened(medium, "ann", retain=retain)
        put(store, "a", "b", "c", "d", value=b"1234567890")
        for at in range(4):
            store.finish("ann", tickets(take(store, limit=1)), NOW + at)

        past = store.journalled(NOW + 10, 10)
        assert [view.id for view in past] == ["a", "b"]
        assert store.trim([view.handle for view in past]) == 2
        assert store.journalled(NOW + 10, 10) == []

    def test_what_a_worker_has_is_neither_told_nor_trimmed(self, medium: Medium) -> None:
        store = opened(medium, "ann", retain=Retention(age_ms=0))
        (handle,) = put(store, "a")
        (ticket,) = tickets(take(store))
        store.withdraw([handle], NOW)

        assert store.journalled(LATER, 10) == []
        assert store.trim([handle]) == 0
        assert store.finish("ann", [ticket], NOW) == [True]
        assert [view.handle for view in store.journalled(LATER, 10)] == [handle]


class Undo(Exception):
    """Thrown by a test inside a transaction."""


class TestTransactions:
    def test_an_exception_takes_everything_back(self, medium: Medium) -> None:
        store = opened(medium, "ann", ("bob", "cid"))
        _, b = put(store, "a", "b")
        (ticket,) = tickets(take(store, limit=1))
        before = full_view(store), store.waiting(), store.counts()

        with pytest.raises(Undo), store.transaction():  # noqa: PT012 - the whole block is taken back
            put(store, "c", "d")
            store.finish("ann", [ticket], NOW)
            take(store, "bob")
            store.withdraw([b], NOW)
            store.settle("t", committed=True, now=NOW)
            store.enter(Holder(b"new", "ann", 0, None))
            raise Undo

        assert (full_view(store), store.waiting(), store.counts()) == before
        assert store.outcome("t") is None
        assert store.finish("ann", [ticket], NOW) == [True]
        assert ids(take(store, "bob")) == ["a", "b"]
        assert store.put([message("c")], NOW)[0].repeat is False

    def test_what_a_transaction_holds_is_seen_inside_and_stays(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        with store.transaction():
            (handle,) = put(store, "a")
            (one,) = take(store)
            assert store.start("ann", [one.ticket], NOW) == [True]
            assert store.holds("ann", [one.ticket]) == [S.IN_PROCESS]
            assert store.settle("t", committed=True, now=NOW) is True

        assert states(store, handle) == {"ann": S.IN_PROCESS}
        assert store.outcome("t") is True

    def test_a_refused_put_inside_leaves_what_was_before_it(self, medium: Medium) -> None:
        store = opened(medium, "ann", message_bytes=10)
        with store.transaction():
            put(store, "a")
            with pytest.raises(Refused):
                put(store, "b", value=b"x" * 11)

        assert ids(take(store)) == ["a"]


def test_queues_of_one_place_do_not_see_each_other(medium: Medium) -> None:
    one, other = opened(medium, "ann"), opened(medium, "ann")
    put(one, "a")

    assert take(other) == []
    assert other.waiting() == 0
    assert one.uuid != other.uuid
    assert cycle(one) == ["a"]


@pytest.mark.parametrize("name", [name for name in MEDIA if name != "book"])
def test_opened_again_everything_is_as_it_was(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    medium = medium_of(name, tmp_path, request)
    store = opened(medium, "ann", ("bob", "cid"), in_order=True, retain=Retention(count=0))
    put(store, "a", "b", "c", "d", lane=b"l", key=b"k", headers=(("h", b"v"),))
    store.put([child("child")], NOW)
    first, second, third = tickets(take(store, limit=3))
    store.finish("ann", [first], NOW)
    store.refuse("ann", [(second, "no")], NOW)
    store.start("ann", [third], NOW)
    take(store, "cid")
    store.settle("t", committed=True, now=NOW)
    asked = (
        full_view(store),
        store.waiting(),
        store.counts(),
        store.held(b"ann"),
        store.children(10),
        store.uuid,
    )
    store.close()

    again = medium.open(store.settings)
    assert (
        full_view(again),
        again.waiting(),
        again.counts(),
        again.held(b"ann"),
        again.children(10),
        again.uuid,
    ) == asked
    assert again.outcome("t") is True
    assert again.finish("ann", [third], NOW) == [True]
    assert store.settings == again.settings
    assert isinstance(again.settings, QueueSettings)
    medium.close()


class TestMoving:
    def test_a_retired_queue_refuses_every_write_and_can_be_read(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        (handle,) = put(store, "a")
        (ticket,) = tickets(take(store))
        store.settle("t1", committed=True, now=NOW)
        store.settle("t2", committed=False, now=NOW)
        before = full_view(store)
        store.retire()
        store.retire()

        for write in (
            lambda: put(store, "b"),
            lambda: take(store),
            lambda: store.finish("ann", [ticket], NOW),
            lambda: store.free("ann", [ticket], NOW),
            lambda: store.withdraw([handle], NOW),
            lambda: store.settle("t3", committed=True, now=NOW),
            lambda: store.beat(HOLDER),
            lambda: enter(store),
            lambda: store.trim([handle]),
            lambda: store.prioritise([handle], 1),
        ):
            with pytest.raises(Retired):
                write()
        assert full_view(store) == before
        assert store.outcomes() == [("t1", True), ("t2", False)]
        assert store.outcomes(after="t1") == [("t2", False)]
        assert store.outcomes(limit=1) == [("t1", True)]

    def test_what_is_adopted_is_as_it_was_and_goes_on(self, medium: Medium) -> None:
        old = opened(Medium("book", "", Path()), "ann", ("bob", "cid"), in_order=True)
        put(
            old,
            "done",
            "refused",
            "freed",
            "taken",
            "waits",
            lane=b"l",
            key=b"k",
            headers=(("h", None),),
            ttl_ms=10_000,
        )
        put(old, "withdrawn", delay_ms=100, priority=4, subject="s")
        old.put([child("child")], NOW)
        taken = tickets(take(old, limit=4))
        old.finish("ann", taken[:1], NOW)
        old.refuse("ann", [(taken[1], "no")], NOW)
        old.free("ann", taken[2:3], NOW, again_at=LATER, failed=True)
        old.withdraw([6], NOW)
        cycle(old, "bob")
        old.settle("t", committed=True, now=NOW)
        views = [view for handle in range(1, 8) if (view := old.view(handle)) is not None]
        old.retire()

        new = opened(medium, "ann", ("bob", "cid"), in_order=True)
        new.adopt(views[:4], uuid=old.uuid, outcomes=old.outcomes())
        new.adopt(views[2:], uuid=old.uuid)

        assert [new.view(view.handle) for view in views] == views
        assert (new.uuid, new.outcome("t")) == (old.uuid, True)
        assert new.held(b"ann") == old.held(b"ann")
        assert new.children(10) == old.children(10)
        assert (new.waiting(), new.counts()) == (old.waiting(), old.counts())
        assert new.finish("ann", [taken[3]], LATER) == [True]
        repeat, later, own = new.put([message("waits"), message("done"), message("child")], NOW)
        assert (repeat, own.repeat) == ((5, True), False)
        assert later.handle > 7
        assert ids(take(new, now=LATER)) == ["freed", "waits", "done", "child"]

    def test_a_moved_message_goes_to_one_member_of_its_pool(self, medium: Medium) -> None:
        old, new = opened(Medium("book", "", Path()), ("ann", "bob")), opened(medium, ("ann", "bob"))
        put(old, "a")
        new.adopt(old.views([1]), uuid=old.uuid)

        assert (ids(take(new, "ann")), ids(take(new, "bob"))) == (["a"], [])

    def test_a_queue_comes_back_to_the_store_that_it_left(self, medium: Medium) -> None:
        first, beside = opened(medium, "ann"), opened(Medium("book", "", Path()), "ann")
        handles = put(first, "ended", "again", "trimmed", "held", "waits")
        moving.cut_over(first, beside, lambda _: None)
        enter(beside, holder=b"new")
        taken = tickets(take(beside, holder=b"new", limit=4))
        assert all(beside.finish("ann", taken[:3], NOW))
        assert beside.trim(handles[2:3]) == 1
        put(beside, "trimmed", "new")

        moving.copy_ended(beside, first, lambda _: None)
        done = moving.cut_over(beside, first, lambda _: None)

        assert done.removed == 1
        assert list(moving.differences(beside, first)) == []
        assert [first.view(view.handle) for view in beside.find(Filter())] == [beside.view(view.handle) for view in beside.find(Filter())]
        assert first.finish("ann", taken[3:], NOW) == [True]
        put(first, "later")
        assert ids(take(first)) == ["waits", "trimmed", "new", "later"]
        with pytest.raises(Retired):
            put(beside, "late")

    def test_whom_the_queue_knows_no_more_keeps_its_messages(self, medium: Medium) -> None:
        old = opened(Medium("book", "", Path()), "ann", "bob")
        put(old, "ended", "waits")
        assert old.finish("ann", tickets(take(old, limit=1)), NOW) == [True]
        views = [view for handle in (1, 2) if (view := old.view(handle)) is not None]

        new = opened(medium, "ann")
        new.adopt(views, uuid=old.uuid)

        assert [new.view(view.handle) for view in views] == views
        assert ids(take(new)) == ["waits"]
        if medium.name != "book":
            new.close()
            new = medium.open(new.settings)
        assert [(one.subscriber, one.counts[S.AVAILABLE]) for one in new.counts()[1]] == [("ann", 0), ("bob", 2)]
        assert new.uuid == old.uuid

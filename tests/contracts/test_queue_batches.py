"""Batches large enough for a store to write them as one: each ticket is still answered, and guarded, for itself."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from relay.queue.message import Ticket
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores import open_store
from relay.queue.stores.sql_subscribing import COUNTED_MIN
from relay.queue.stores.sqlite import bind_sqlite
from tests.contracts.queue_media import (
    HOLDER,
    LATER,
    MEDIA,
    NOW,
    Medium,
    cycle,
    enter,
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

NAMES = [f"m{number:02}" for number in range(3 * COUNTED_MIN)]
SEVERAL_QUEUES = [name for name in MEDIA if name not in ("book", "files")]
DONE, PROCESSED = SubscriberState.JOURNALLED, SubscriberState.IN_PROCESS


def test_what_is_started_as_it_is_taken_has_the_time_of_all_three_states(medium: Medium) -> None:
    store = opened(medium, "ann")
    (handle,) = put(store, "a")
    (first,) = store.take("ann", b"ann", 1, NOW + 1, start=True)

    assert states(store, handle) == {"ann": PROCESSED}
    assert store.start("ann", [first.ticket], NOW + 2) == [False], "it is already"
    assert store.free("ann", [first.ticket], NOW + 3) == [True]
    (one,) = store.take("ann", b"ann", 1, NOW + 4, start=True)
    assert store.finish("ann", [one.ticket], NOW + 5) == [True]
    view = store.view(handle)
    assert view is not None
    assert one.ticket == Ticket(handle, 2)
    assert tuple(view.subscribers[0].times) == (NOW + 4, NOW + 4, NOW + 4, NOW + 5, None, None, NOW + 5)


def test_one_ticket_that_does_not_fit_takes_nothing_from_the_others(medium: Medium) -> None:
    store = opened(medium, "ann")
    put(store, *NAMES)
    held = tickets(take(store))
    strange = [*held[:5], Ticket(held[5].handle, held[5].attempt + 1), *held[6:]]
    expected = [True] * 5 + [False] + [True] * (len(held) - 6)

    assert store.start("ann", strange, NOW) == expected
    assert store.start("ann", strange, NOW) == [False] * len(held)
    assert store.holds("ann", held) == [PROCESSED] * 5 + [SubscriberState.FETCHED] + [PROCESSED] * (
        len(held) - 6
    )
    assert store.finish("ann", strange, LATER) == expected
    assert store.finish("ann", strange, LATER) == [False] * len(held)
    assert store.waiting() == 1
    assert store.finish("ann", held, LATER) == [not fits for fits in expected]
    assert store.waiting() == 0
    assert {state(store, handle) for handle, _ in held} == {PublisherState.JOURNALLED}


def test_a_ticket_twice_in_a_batch_counts_once(medium: Medium) -> None:
    store = opened(medium, "ann")
    put(store, *NAMES)
    held = tickets(take(store))

    assert store.finish("ann", [*held, held[0]], NOW) == [*[True] * len(held), False]
    assert store.waiting() == 0


def test_a_batch_with_gaps_leaves_what_lies_in_them(medium: Medium) -> None:
    store = opened(medium, "ann")
    handles = put(store, *NAMES)
    held = tickets(take(store))
    even, odd = held[::2], held[1::2]

    assert store.finish("ann", even, NOW) == [True] * len(even)
    assert [states(store, handle)["ann"] for handle in handles] == [DONE, SubscriberState.FETCHED] * len(odd)
    assert store.free("ann", odd, NOW) == [True] * len(odd)
    assert cycle(store) == NAMES[1::2]


def test_a_batch_in_one_queue_does_nothing_to_another_that_counts_alike(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for name in SEVERAL_QUEUES:
        medium = medium_of(name, tmp_path / name, request)
        one, other = opened(medium, "ann"), opened(medium, "ann")
        put(one, *NAMES)
        put(other, *NAMES, lane=b"lane")
        held = take(one)

        assert one.start("ann", tickets(held), NOW) == [True] * len(held)
        assert cycle(other) == NAMES
        assert one.holds("ann", tickets(held)) == [PROCESSED] * len(held)
        assert one.finish("ann", tickets(held), NOW) == [True] * len(held)
        assert [one.waiting(), other.waiting()] == [0, 0]
        medium.close()


def test_messages_of_a_wider_audience_wait_for_the_others_after_the_queue_has_become_narrower(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for name in SEVERAL_QUEUES:
        medium = medium_of(name, tmp_path / name, request)
        wide = opened(medium, "ann", "bob")
        for_both = put(wide, *NAMES[:2])
        narrow = medium.open(replace(wide.settings, audience=subscribers("ann")))
        alone = put(narrow, *NAMES[2:])

        assert cycle(narrow) == NAMES
        assert {state(narrow, handle) for handle in for_both} == {PublisherState.REVEALED}
        assert {state(narrow, handle) for handle in alone} == {PublisherState.JOURNALLED}
        assert cycle(wide, "bob") == NAMES[:2]
        assert wide.waiting() == 0
        medium.close()


def test_what_a_batch_brings_is_for_each_what_it_would_be_alone(medium: Medium) -> None:
    store = opened(medium, "ann", "bob", "eve", in_order=True)
    only_bob = subscribers("bob")
    new = [
        message("plain"),
        message("urgent", priority=9, lane=b"a"),
        message("late", delay_ms=1_000),
        message("for bob", audience=only_bob, ttl_ms=10),
        message("for bob too", audience=only_bob, lane=b"a"),
        message("plain again", subject="s", headers=(("h", b"\x00"),)),
    ]
    store.put(new, NOW)

    assert sorted(ids(take(store))) == ["plain", "plain again", "urgent"]
    assert sorted(ids(take(store, "bob"))) == ["for bob", "for bob too"]
    assert take(store, "eve") == []
    assert store.reveal_due(LATER, 10) == 1
    assert ids(take(store, now=LATER)) == ["late"]


def test_a_lane_is_one_for_whoever_puts_into_it(tmp_path: Path) -> None:
    """A caller's connection numbers lanes as a store's own does, also while a cursor of its own is open."""
    asked = settings("ann")
    store = open_store(asked, "sqlite:///q.db", state=tmp_path)
    connection = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
    reading = connection.execute(
        "with recursive n (i) as (select 1 union all select i + 1 from n) select i from n"
    )
    next(reading)
    for name in ("first", "second"):
        bind_sqlite(asked, connection).put([message(name, lane=b"lane")], NOW)
    reading.close()
    store.put([message("third", lane=b"lane")], NOW)
    enter(store)
    enter(store, holder=b"other")

    first = take(store, holder=HOLDER, limit=1)
    assert ids(first) == ["first"]
    assert take(store, holder=b"other") == []
    assert store.finish("ann", tickets(first), NOW) == [True]
    assert ids(take(store, holder=b"other")) == ["second", "third"]
    connection.close()
    store.close()

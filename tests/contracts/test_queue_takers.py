"""Several takers at once, each with a store object of its own: nothing twice, nothing lost, order kept."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relay.message.errors import Retriable
from relay.queue.port import QueueStore
from relay.queue.settings import QueueSettings
from relay.queue.stores import postgresql
from relay.queue.stores.lanes import Candidate
from relay.queue.stores.sql_taking import Choice
from tests.contracts.queue_media import (
    HOLDER,
    MEDIA,
    NOW,
    OTHER,
    Medium,
    enter,
    medium_of,
    message,
    put,
    settings,
)

SHARED = [name for name in MEDIA if name not in ("book", "files")]
"""Stores that several processes may open; files refuse the second (`test_queue_files`)."""
LANES = 7


@pytest.fixture(params=SHARED)
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Medium]:
    medium = medium_of(request.param, tmp_path, request)
    yield medium
    medium.close()


def again(ask: Callable[[], Any]) -> Any:
    """Ask until the store answers: writers that meet may be told to come again."""
    while True:
        try:
            return ask()
        except Retriable:
            continue


def work(store: QueueStore, subscriber: str, holder: bytes, total: int, done: list[tuple[str, int]]) -> None:
    """Take and finish until everything is done, and note each message while it is held."""
    while len(done) < total:
        taken = again(partial(store.take, subscriber, holder, 5, NOW))
        done += [((one.lane or b"").decode(), int(one.id)) for one in taken]
        again(partial(store.finish, subscriber, [one.ticket for one in taken], NOW))


@pytest.mark.parametrize("pool", [True, False], ids=["members of a pool", "workers of one subscriber"])
def test_takers_at_once_share_the_messages_and_keep_each_lane_in_order(medium: Medium, pool: bool) -> None:
    names = ("ann", "bob", "cid")
    queue: QueueSettings = settings(names) if pool else settings("ann")
    first = medium.open(queue)
    first.put([message(str(n), lane=b"%d" % (n % LANES)) for n in range(100)], NOW)
    takers = [(name if pool else "ann", name.encode()) for name in names]
    stores = [medium.open(queue) for _ in takers]
    done: list[tuple[str, int]] = []
    failures: list[BaseException] = []

    def run(store: QueueStore, subscriber: str, holder: bytes) -> None:
        try:
            enter(store, subscriber, holder)
            work(store, subscriber, holder, 100, done)
        except BaseException as failure:  # noqa: BLE001 - the test's own thread raises it
            failures.append(failure)
            done.extend([("failed", -1)] * 100)

    threads = [
        threading.Thread(target=run, args=(store, *taker))
        for store, taker in zip(stores, takers, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)

    assert failures == []
    assert sorted(number for _, number in done) == list(range(100))
    by_lane = defaultdict(list)
    for lane, number in done:
        by_lane[lane].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_lane.values())
    assert first.waiting() == 0


def test_what_a_worker_takes_while_it_is_taken_for_dead_stays_with_one_that_is_known(medium: Medium) -> None:
    queue = settings("ann")
    store, other = medium.open(queue), medium.open(queue)
    put(store, "a")
    enter(store)
    left: list[bool] = []
    recovers = threading.Thread(target=lambda: left.append(again(partial(other.leave, HOLDER))))

    with store.transaction():
        store.take("ann", HOLDER, 1, NOW)
        recovers.start()
        recovers.join(timeout=1.0)  # as long as the worker stands still
    recovers.join(timeout=30)

    assert left == [False]
    assert (len(store.held(HOLDER)), [holder.id for holder in store.holders()]) == (1, [HOLDER])


@pytest.mark.parametrize("medium", ["postgresql"], indirect=True)
def test_what_ends_between_the_look_and_the_take_is_not_given(
    medium: Medium, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = settings("ann")
    store, other = medium.open(queue), medium.open(queue)
    withdrawn, _ = put(store, "a", "b")
    enter(store)
    look = Choice.candidates

    def look_and_stand_still(choice: Choice) -> list[Candidate]:
        found = look(choice)
        assert other.withdraw([withdrawn], NOW) == [True]
        return found

    monkeypatch.setattr(Choice, "candidates", look_and_stand_still)

    assert [one.id for one in store.take("ann", HOLDER, 10, NOW)] == ["b"]


@pytest.mark.parametrize("medium", ["postgresql"], indirect=True)
def test_what_a_person_shows_to_some_while_it_comes_due_is_shown_to_no_others(
    medium: Medium, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = settings("ann", "bob")
    store, other = medium.open(queue), medium.open(queue)
    (handle,) = put(store, "a", delay_ms=10)
    enter(store, "bob")
    lock = store._lock_open  # type: ignore[attr-defined]

    def shown_meanwhile(handles: list[int]) -> Any:
        assert other.reveal([handle], NOW, ["ann"]) == [True]
        return lock(handles)

    monkeypatch.setattr(store, "_lock_open", shown_meanwhile)

    assert store.reveal_due(NOW + 10, 10) == 0
    assert store.take("bob", HOLDER, 10, NOW + 10) == []


@pytest.mark.parametrize("medium", ["postgresql"], indirect=True)
def test_a_worker_that_stands_still_inside_a_unit_does_not_hold_up_the_others(
    medium: Medium, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "IDLE_LIMIT_S", 1)
    queue = settings("ann")
    frozen, other = medium.open(queue), medium.open(queue)
    put(frozen, "a")
    enter(frozen)
    enter(other, holder=OTHER)
    given: list[str] = []
    takes = threading.Thread(target=lambda: given.extend(one.id for one in other.take("ann", OTHER, 1, NOW)))

    def take_and_stand_still() -> None:
        with frozen.transaction():
            frozen.take("ann", HOLDER, 1, NOW)
            takes.start()
            takes.join(timeout=20)
            assert given == ["a"]

    with pytest.raises(Retriable):
        take_and_stand_still()
    assert frozen.take("ann", HOLDER, 1, NOW) == [], "it goes on with a connection of its own"

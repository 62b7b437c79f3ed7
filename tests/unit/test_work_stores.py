"""The queues of one worker: each is opened once, and one that does not answer holds up nobody who needs another."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any, cast
from unittest.mock import Mock

import pytest

from relay.message.errors import Unreachable
from relay.queue.attempts import Outcomes
from relay.queue.port import QueueStore, StoreAway
from relay.work import stores as stores_module
from relay.work.locked import locked
from relay.work.stores import Deciding, Stores
from relay.world import schedule

WAIT_S = 60.0


def test_a_queue_that_is_being_opened_holds_up_no_other() -> None:
    begun, answers = threading.Event(), threading.Event()
    orders = Mock()

    def open_queue(name: str) -> QueueStore:
        if name == "away":
            begun.set()
            answers.wait(WAIT_S)
        return cast("QueueStore", orders)

    stores = Stores({"orders": schedule.lock(), "away": schedule.lock()}, open_queue)
    assert stores["orders"] is orders
    got: list[Any] = []
    opening = schedule.start_thread("opening", lambda: got.append(stores["away"]))
    assert begun.wait(WAIT_S)

    asking = schedule.start_thread("asking", lambda: got.append(stores["orders"]))
    asking.join(WAIT_S / 2)

    assert got == [orders]
    answers.set()
    opening.join(WAIT_S)


def test_two_threads_that_want_each_others_queue_both_get_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker holds its queue and asks another one; a handler holds that one's file and wants to write its end."""
    monkeypatch.setattr(stores_module, "BESIDE_S", 0.2)
    own, other = schedule.lock(), schedule.lock()
    stores = Stores({"orders": own, "near": other}, lambda _: cast("QueueStore", Mock()))
    near = stores.beside("orders")["near"]
    has_file, has_queue, written = threading.Event(), threading.Event(), threading.Event()

    def handle() -> None:
        with other:
            has_file.set()
            has_queue.wait(WAIT_S)
            if own.acquire(timeout=WAIT_S):
                own.release()
                written.set()

    def recover() -> None:
        with own:
            has_queue.set()
            with pytest.raises(StoreAway, match="ask again later"):
                near.holds("s", [])

    handling = schedule.start_thread("handling", handle)
    assert has_file.wait(WAIT_S)
    recovering = schedule.start_thread("recovering", recover)
    for thread in (recovering, handling):
        thread.join(WAIT_S / 2)

    assert written.is_set()
    assert near.holds("s", []) is not None, "asked again it answers"


def test_a_queue_that_two_threads_need_at_once_is_opened_once() -> None:
    begun, answers = threading.Event(), threading.Event()
    opened: list[str] = []

    def open_queue(name: str) -> QueueStore:
        opened.append(name)
        begun.set()
        answers.wait(WAIT_S)
        return cast("QueueStore", Mock())

    stores = Stores({"orders": schedule.lock()}, open_queue)
    got: list[QueueStore] = []
    threads = [schedule.start_thread("needing", lambda: got.append(stores["orders"])) for _ in range(2)]
    assert begun.wait(WAIT_S)
    for thread in threads:
        thread.join(0.1)
    answers.set()
    for thread in threads:
        thread.join(WAIT_S)

    assert opened == ["orders"]
    assert got[0] is got[1] is stores["orders"]


def test_a_queue_in_the_same_file_is_reached_under_the_lock_that_is_held_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores_module, "BESIDE_S", 0.2)
    file = schedule.lock()
    stores = Stores({"orders": file, "mail": file}, lambda _: cast("QueueStore", Mock()))
    beside = stores.beside("orders")

    with file:
        for name in ("orders", "mail"):
            assert beside[name].holds("s", []) is not None


def test_a_queue_that_is_not_configured_is_none_and_looking_for_one_opens_nothing() -> None:
    stores = Stores({"orders": schedule.lock()}, lambda name: pytest.fail(f"{name} was opened"))

    assert "orders" in stores
    assert "mail" not in stores
    assert stores.get("mail") is None
    assert stores.beside("orders").get("mail") is None
    assert list(stores.beside("orders")) == ["orders"]


def test_what_a_thread_still_uses_is_left_open_and_what_was_never_used_is_not_opened() -> None:
    opened: dict[str, Mock] = {}

    def open_queue(name: str) -> QueueStore:
        return cast("QueueStore", opened.setdefault(name, Mock()))

    stores = Stores({name: schedule.lock() for name in ("orders", "mail", "never")}, open_queue)
    assert stores["orders"] is not stores["mail"]

    stores.close(in_use=["orders"])

    assert {name: store.close.call_count for name, store in opened.items()} == {"orders": 0, "mail": 1}


def test_what_decides_is_opened_once_and_what_is_away_is_waited_for_once_however_many_attempts_it_decides() -> None:
    asked: list[str] = []
    shop, orders = Mock(), Mock()

    def open_shop(_: ExitStack) -> Outcomes:
        asked.append("shop")
        return cast("Outcomes", shop)

    def open_bank(_: ExitStack) -> Outcomes:
        asked.append("bank")
        raise Unreachable("resources.bank: the database does not answer")

    deciding = Deciding({"orders": orders}, {"shop": open_shop, "bank": open_bank}, ExitStack())
    for _ in range(3):
        assert deciding["resource:shop"] is shop
        with pytest.raises(Unreachable, match="bank"):
            deciding["resource:bank"]

    assert asked == ["shop", "bank"]
    assert deciding["queue:orders"] is orders
    for name in ("queue:shop", "resource:orders", "else:shop", "shop"):
        assert deciding.get(name) is None
    assert list(deciding) == ["queue:orders", "resource:shop", "resource:bank"]


def test_a_shared_store_is_locked_in_each_call_and_free_behind_it_also_behind_one_that_fails() -> None:
    lock = schedule.lock()
    under: list[bool] = []

    class Book:
        shared = False

        def holds(self, subscriber: str) -> str:
            under.append(lock.locked())
            if subscriber == "fails":
                raise StoreAway("the store is away")
            return subscriber

    store = cast("Any", locked(cast("QueueStore", Book()), lock))

    assert (store.shared, store.holds("s")) == (False, "s")
    assert not lock.locked()
    with pytest.raises(StoreAway, match="the store is away"):
        store.holds("fails")
    assert not lock.locked()
    assert under == [True, True]


def test_whoever_holds_no_other_lock_waits_for_a_shared_store_for_as_long_as_it_takes() -> None:
    lock = Mock()
    waits = locked(cast("QueueStore", Mock()), lock)

    assert waits.holds("s", []) is not None
    lock.acquire.assert_called_once_with(timeout=-1)

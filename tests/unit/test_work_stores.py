"""The queues of one worker: each is opened once, and one that does not answer holds up nobody who needs another."""

from __future__ import annotations

import threading
from typing import Any, cast
from unittest.mock import Mock

import pytest

from relay.queue.port import QueueStore, StoreAway
from relay.run import schedule
from relay.work import stores as stores_module
from relay.work.stores import Stores

WAIT_S = 5.0


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
    asking.join(WAIT_S / 5)

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

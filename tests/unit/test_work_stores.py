"""The queues of one worker: each is opened once, and one that does not answer holds up nobody who needs another."""

from __future__ import annotations

import threading
from typing import Any, cast
from unittest.mock import Mock

from relay.queue.port import QueueStore
from relay.run import schedule
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

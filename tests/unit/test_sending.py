"""Trims share the cursor's thread with batches: neither a long series of them nor a silent one holds batches up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from relay.message.errors import Retriable
from relay.message.record import LogPartition
from relay.transfer import sending as sending_module
from relay.transfer.cursor import Verdict
from relay.transfer.sending import TRIM_ANSWER_S, Sending
from relay.transfer.timers import ResendTimers

PLACE = LogPartition("orders", 0)


class Cursor:
    """Delivers at once. Its trims never come to an end, or the connection is ``silent`` in one of them."""

    def __init__(self, *, silent: bool) -> None:
        self.progressed: Callable[[], object] = bool
        self.trims = 0
        self._silent = silent
        self._broken = threading.Event()

    def deliver(self, positions: Mapping[LogPartition, int], prepared: Any) -> list[Verdict]:
        return [Verdict(0, 1)]

    def trim(self, partition: LogPartition, below: int) -> bool:
        self.trims += 1
        if self._broken.wait(30.0 if self._silent else 0.01):
            raise Retriable("the connection was lost before COMMIT; nothing was written")
        return True

    def abandon(self) -> None:
        self._broken.set()


def trimming(cursor: Cursor, clock: Callable[[], float] = lambda: 0.0) -> Sending:
    """Return a sending whose thread trims, with one batch answered before."""
    made = Sending(cursor, ResendTimers(5.0, 60.0, lambda: 0.0), clock)  # type: ignore[arg-type]
    made.trim(PLACE, 7)
    made.send({PLACE: 7}, None)
    limit = time.monotonic() + 10
    while not cursor.trims and time.monotonic() < limit:
        made.wait(0.01)
    assert made.answers() == [[Verdict(0, 1)]]
    return made


def test_a_batch_does_not_wait_for_a_trim_on_a_silent_connection() -> None:
    sending = trimming(Cursor(silent=True))
    sending.send({PLACE: 9}, None)

    sending.tend(1000.0)
    limit = time.monotonic() + 5
    while not (answered := sending.answers()) and time.monotonic() < limit:
        sending.wait(0.1)

    assert answered == [[Verdict(0, 1)]], "the timer has ended the trim"
    sending.close()


@pytest.mark.parametrize("silent", [False, True])
def test_letting_go_does_not_wait_for_all_that_is_to_be_trimmed(silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "LET_GO_S", 1.0)
    sending = trimming(Cursor(silent=silent))

    sending.abandon()  # InDoubt here ends the worker's process: its recovery lets go once more

    sending.close()


def test_a_trim_that_works_is_let_go_on_and_is_no_batch() -> None:
    cursor, now = Cursor(silent=True), [0.0]
    sending = trimming(cursor, lambda: now[0])
    for _ in range(20):
        now[0] += TRIM_ANSWER_S / 2
        cursor.progressed()
        sending.tend(now[0])

    assert not cursor._broken.is_set()
    assert sending._timers.next_due() is None
    cursor.abandon()
    sending.close()

"""What the cursor's thread does beside answering one batch: trims, letting go, and what lies behind a batch that failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from relay.delivery.table.route import TableDelivery
from relay.message.errors import InDoubt, Retriable, Stopped
from relay.message.record import LogPartition
from relay.transfer import sending as sending_module
from relay.transfer.cursor import Verdict
from relay.transfer.sending import TRIM_ANSWER_S, Sending
from relay.transfer.timers import ResendTimes

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


def wait_until(is_so: Callable[[], object]) -> None:
    limit = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < limit
        time.sleep(0.001)


def trimming(cursor: Cursor, clock: Callable[[], float] = lambda: 0.0) -> Sending:
    """Return a sending whose thread trims, with one batch answered before."""
    made = Sending(cursor, ResendTimes(5.0, 60.0, lambda: 0.0), clock)  # type: ignore[arg-type]
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


def test_a_batch_does_not_wait_for_all_that_is_to_be_trimmed() -> None:
    cursor = Cursor(silent=False)
    sending = trimming(cursor)

    sending.send({PLACE: 9}, None)
    wait_until(sending.is_idle)

    assert sending.answers() == [[Verdict(0, 1)]]
    cursor.abandon()
    sending.close()


@pytest.mark.parametrize("silent", [False, True])
def test_letting_go_does_not_wait_for_all_that_is_to_be_trimmed(silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "LET_GO_S", 20.0)
    sending = trimming(Cursor(silent=silent))

    sending.abandon()  # InDoubt here ends the worker's process: its recovery lets go once more

    sending.close()


def test_a_trim_that_works_is_let_go_on_and_is_no_batch() -> None:
    cursor, now = Cursor(silent=True), [0.0]
    sending = trimming(cursor, lambda: now[0])
    for _ in range(20):
        now[0] += TRIM_ANSWER_S / 2
        sending.tend(now[0])
        cursor.progressed()

    assert not cursor._broken.is_set()
    assert sending.is_idle()
    cursor.abandon()
    sending.close()


class UntilAbandoned(Cursor):
    """A cursor whose batch takes until its connection is closed."""

    def deliver(self, positions: Mapping[LogPartition, int], prepared: Any) -> list[Verdict]:
        assert self._broken.wait(10)
        return [Verdict(0, 1)]


def test_a_batch_that_gets_on_is_given_its_time_anew() -> None:
    """Rows at fault are found one by one: sent again, they would take as long again, for ever."""
    cursor, now = UntilAbandoned(silent=False), [0.0]
    sending = Sending(cursor, ResendTimes(5.0, 60.0, lambda: 0.0), lambda: now[0])  # type: ignore[arg-type]
    sending.send({PLACE: 7}, None)
    wait_until(lambda: sending._expires is not None)
    for at in (4.0, 8.0, 12.0):
        now[0] = at
        cursor.progressed()
        sending.tend(at + 4.5)
        assert not cursor._broken.is_set()

    sending.tend(17.0)
    assert cursor._broken.is_set(), "five seconds without a step"
    wait_until(sending.is_idle)
    assert sending.answers() == [[Verdict(0, 1)]]
    cursor.progressed()
    assert sending._expires is None, "what comes late starts no timer"
    sending.close()


def test_whoever_waits_is_woken_by_an_answer_that_is_there() -> None:
    sending = Sending(Cursor(silent=False), ResendTimes(5.0, 60.0, lambda: 0.0), lambda: 0.0)  # type: ignore[arg-type]
    there: list[bool] = []
    wake: Any = SimpleNamespace(set=lambda: there.append(sending.is_idle()))
    sending._wake = wake

    sending.send({PLACE: 7}, None)

    wait_until(lambda: bool(there))
    assert there == [True]
    sending.close()


class Unanswered(Cursor):
    """A cursor that answers each batch at the third try; it looks at when the timer would end each of them."""

    def __init__(self) -> None:
        super().__init__(silent=False)
        self.sending: Sending
        self.expiries: list[float | None] = []

    def deliver(self, positions: Mapping[LogPartition, int], prepared: Any) -> list[Verdict]:
        self.expiries.append(self.sending._expires)
        if len(self.expiries) % 3:
            raise InDoubt("no answer")
        return [Verdict(0, 1)]


def test_each_repeat_of_a_batch_is_waited_for_longer_and_the_next_batch_begins_anew() -> None:
    cursor = Unanswered()
    cursor.sending = sending = Sending(cursor, ResendTimes(0.01, 1.0, lambda: 0.0), lambda: 0.0)  # type: ignore[arg-type]
    for position in (7, 9):
        sending.send({PLACE: position}, None)
        limit = time.monotonic() + 10
        while not sending.is_idle() and time.monotonic() < limit:
            sending.wait(0.1)
        assert sending.answers() == [[Verdict(0, 1)]]

    assert cursor.expiries == [0.01, 0.02, 0.04] * 2
    assert sending.resent == 4
    assert sending._expires is None, "no timer runs once a batch is answered"
    sending.close()


class Failing:
    """A cursor whose first batch fails for good, once the second one waits behind it."""

    def __init__(self, failure: Exception) -> None:
        self.progressed: Callable[[], object] = bool
        self.second_waits = threading.Event()
        self.delivered: list[Any] = []
        self._failure = failure

    def deliver(self, positions: Mapping[LogPartition, int], prepared: Any) -> list[Verdict]:
        self.delivered.append(prepared)
        if len(self.delivered) == 1:
            assert self.second_waits.wait(10)
            raise self._failure
        return [Verdict(0, 1)]

    def abandon(self) -> None:
        pass


@pytest.mark.parametrize("failure", [Stopped("refused"), ZeroDivisionError("unforeseen")])
def test_what_lies_behind_a_batch_that_failed_does_not_move_the_position_past_it(failure: Exception) -> None:
    cursor = Failing(failure)
    sending = Sending(cursor, ResendTimes(5.0, 60.0, lambda: 0.0), lambda: 0.0)  # type: ignore[arg-type]
    sending.send({PLACE: 7}, "first")
    sending.send({PLACE: 9}, "second")
    cursor.second_waits.set()

    limit = time.monotonic() + 5
    while not sending.is_idle() and time.monotonic() < limit:
        sending.wait(0.1)
    assert sending.is_idle(), "both are answered"
    with pytest.raises(type(failure)):
        sending.answers()
    assert cursor.delivered == ["first"]

    sending.abandon()
    sending.send({PLACE: 9}, "again")
    while not (answered := sending.answers()) and time.monotonic() < limit:
        sending.wait(0.1)
    assert answered == [[Verdict(0, 1)]]
    sending.close()


class Connecting(Cursor):
    """A cursor that is making its connection, which cannot be closed before it is there."""

    def __init__(self) -> None:
        super().__init__(silent=False)
        self.made, self.abandoned = threading.Event(), 0

    def deliver(self, positions: Mapping[LogPartition, int], prepared: Any) -> list[Verdict]:
        self.made.wait(10)
        if not self._broken.wait(10):
            raise AssertionError("the connection that was made meanwhile is not closed")
        raise InDoubt("closed")

    def abandon(self) -> None:
        self.abandoned += 1
        if self.made.is_set():
            self._broken.set()
        self.made.set()


def test_a_connection_that_is_made_while_it_is_let_go_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "LET_GO_S", 30.0)
    monkeypatch.setattr(sending_module, "LET_GO_TRIES", 300)
    cursor = Connecting()
    sending = Sending(cursor, ResendTimes(5.0, 60.0, lambda: 0.0), lambda: 0.0)  # type: ignore[arg-type]
    sending.send({PLACE: 7}, None)
    while not sending._cursor_in_use.locked():
        time.sleep(0.01)

    sending.abandon()

    assert cursor.abandoned >= 2
    sending.close()


def test_a_connection_that_is_made_when_the_timer_ends_is_ended_by_the_next_one() -> None:
    cursor = Connecting()
    sending = Sending(cursor, ResendTimes(5.0, 60.0, lambda: 0.0), lambda: 0.0)  # type: ignore[arg-type]
    sending.send({PLACE: 7}, None)
    while sending._expires is None:
        time.sleep(0.01)

    sending.tend(1000.0)
    sending.tend(1000.1)
    assert cursor.abandoned == 1, "it is given time to be closed"
    sending.tend(1000.0 + sending_module.LET_GO_S)

    assert cursor.abandoned == 2
    sending.abandon()
    sending.close()


class Counting(Cursor):
    """A cursor whose first batch is answered once its time is over; it counts how often its connection is closed."""

    def __init__(self) -> None:
        super().__init__(silent=False)
        self.answers = threading.Event()
        self.abandoned = 0

    def deliver(self, positions: Mapping[LogPartition, int], prepared: Any) -> list[Verdict]:
        assert self.answers.wait(10)
        return [Verdict(0, 1)]

    def abandon(self) -> None:
        self.abandoned += 1


def test_a_batch_that_is_answered_as_its_time_ends_leaves_no_timer_behind() -> None:
    """It closed the connection of a route to which nothing came every ten seconds."""
    cursor = Counting()
    sending = Sending(cursor, ResendTimes(5.0, 60.0, lambda: 0.0), lambda: 0.0)  # type: ignore[arg-type]

    class Late(float):
        def __ge__(self, other: object) -> bool:
            cursor.answers.set()
            wait_until(lambda: sending._expires is None)
            return True

    sending.send({PLACE: 7}, None)
    wait_until(lambda: sending._expires is not None)
    sending.tend(Late(5.0))
    for number in range(1, 5):
        sending.tend(5.0 + number * sending_module.LET_GO_S)

    assert sending.answers() == [[Verdict(0, 1)]]
    assert cursor.abandoned == 1
    sending.close()


class Busy(Cursor):
    """A cursor that answers nothing until it is abandoned; not even then where it ``hangs``, until it is let off."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__(silent=True)
        self._hangs = hangs
        self.off = threading.Event()
        self.closed_in_use = False

    def deliver(self, positions: Mapping[LogPartition, int], prepared: Any) -> list[Verdict]:
        (self.off if self._hangs else self._broken).wait(30.0)
        raise Retriable("the connection was lost before COMMIT; nothing was written")

    def close(self) -> None:
        self.closed_in_use = not (self.off if self._hangs else self._broken).is_set()


@pytest.mark.parametrize("hangs", [False, True])
def test_a_connection_is_closed_once_nobody_uses_it_any_more(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite ends the process (SIGSEGV) when one thread closes a connection that another one is working on."""
    monkeypatch.setattr(sending_module, "CLOSE_S", 0.05)
    monkeypatch.setattr(sending_module, "LET_GO_S", 0.5)
    cursor = Busy(hangs=hangs)
    sending = Sending(cursor, ResendTimes(5.0, 60.0, lambda: 0.0), time.monotonic)  # type: ignore[arg-type]
    sending.send({PLACE: 7}, None)
    route: Any = SimpleNamespace(_entering=SimpleNamespace(flush=lambda: None), _sending=sending, _cursor=cursor)

    TableDelivery.close(route)

    assert not cursor.closed_in_use
    cursor.off.set()
    monkeypatch.setattr(sending_module, "CLOSE_S", 30.0)
    assert sending.close()

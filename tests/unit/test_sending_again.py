"""A batch that is sent again, and what was let go of: nothing of that is delivered, answered or trimmed any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from relay.message.errors import InDoubt, Retriable, Unreachable
from relay.message.record import LogPartition
from relay.transfer import sending as sending_module
from relay.transfer.cursor import Verdict
from relay.transfer.sending import Sending
from relay.transfer.timers import ResendTimes
from tests.unit.test_sending import PLACE, Cursor, wait_until


class Noting(Cursor):
    """A cursor that notes what it is asked for. The first batches fail as told; where ``held``, each waits to be let go on."""

    def __init__(self, *failures: Exception, held: bool = False) -> None:
        super().__init__(silent=False)
        self.delivered: list[tuple[Mapping[LogPartition, int], Any]] = []
        self.trimmed: list[tuple[LogPartition, int]] = []
        self.goes_on = threading.Event()
        self._failures = list(failures)
        if not held:
            self.goes_on.set()

    def deliver(self, positions: Mapping[LogPartition, int], prepared: Any) -> list[Verdict]:
        self.delivered.append((positions, prepared))
        assert self.goes_on.wait(10)
        if self._failures:
            raise self._failures.pop(0)
        return [Verdict(0, 1)]

    def trim(self, partition: LogPartition, below: int) -> bool:
        self.trimmed.append((partition, below))
        return False

    def abandon(self) -> None:
        self.goes_on.set()


def sending_to(cursor: Noting) -> Sending:
    return Sending(cursor, ResendTimes(0.016, 60.0, lambda: 0.0), lambda: 0.0)  # type: ignore[arg-type]


def test_what_never_sent_anything_is_ended_at_once() -> None:
    sending, began = sending_to(Noting()), time.monotonic()
    sending.wait(0.05)

    assert time.monotonic() - began >= 0.05, "it does not spin until there is an answer"
    assert sending.close()


def test_a_batch_without_an_answer_is_sent_again_as_it_was_until_there_is_one() -> None:
    cursor = Noting(InDoubt("lost"), Retriable("deadlock"), Unreachable("away"))
    sending = sending_to(cursor)

    sending.send({PLACE: 7}, "batch")
    wait_until(sending.is_idle)

    assert sending.answers() == [[Verdict(0, 1)]]
    assert cursor.delivered == [({PLACE: 7}, "batch")] * 4
    assert sending.resent == 3
    assert sending._expires is None
    sending.close()


def test_a_batch_that_fails_at_once_is_sent_again_after_a_pause_also_when_one_was_let_go_before() -> None:
    cursor = Noting()
    sending = Sending(cursor, ResendTimes(0.8, 60.0, lambda: 0.0), lambda: 0.0)  # type: ignore[arg-type]
    sending.abandon()
    cursor._failures = [Unreachable("refused")] * 2
    began = time.monotonic()

    sending.send({PLACE: 7}, None)
    wait_until(sending.is_idle)

    assert time.monotonic() - began >= 0.1 + 0.2
    sending.close()


def test_a_batch_that_is_let_go_in_its_pause_is_sent_no_more_and_the_pause_is_over() -> None:
    cursor = Noting(Unreachable("refused"))
    sending = Sending(cursor, ResendTimes(1000.0, 1000.0, lambda: 0.0), lambda: 0.0)  # type: ignore[arg-type]
    sending.send({PLACE: 7}, "waits")
    wait_until(lambda: sending.resent)

    sending.abandon()  # InDoubt, were the pause waited for
    sending.send({PLACE: 7}, "anew")
    wait_until(sending.answers)

    assert [prepared for _, prepared in cursor.delivered] == ["waits", "anew"]
    sending.close()


@pytest.mark.parametrize("failures", [[], [InDoubt("closed")]], ids=["answered late", "without an answer"])
def test_what_was_let_go_is_not_delivered_any_more_and_no_answer_of_it_is_taken(failures: list[Exception]) -> None:
    cursor = Noting(*failures, held=True)
    sending = sending_to(cursor)
    sending.send({PLACE: 7}, "under way")
    sending.send({PLACE: 9}, "waits")
    wait_until(lambda: cursor.delivered)

    sending.abandon()
    sending.send({PLACE: 7}, "anew")
    wait_until(lambda: len(cursor.delivered) > 1 and sending.is_idle())

    assert sending.answers() == [[Verdict(0, 1)]]
    assert [prepared for _, prepared in cursor.delivered] == ["under way", "anew"]
    sending.close()


def test_what_was_to_be_trimmed_and_is_not_any_more_is_kept() -> None:
    cursor = Noting(held=True)
    sending = sending_to(cursor)
    sending.send({PLACE: 7}, None)
    wait_until(lambda: cursor.delivered)

    sending.trim(PLACE, 7)
    sending.forget_trims()
    sending.trim(PLACE, 5)
    cursor.goes_on.set()
    wait_until(lambda: sending.is_idle() and sending._trims.empty() and not sending._cursor_in_use.locked())

    assert cursor.trimmed == [(PLACE, 5)]
    sending.close()


class Slow(Noting):
    """A cursor whose first trim goes on until its connection is closed, and ends well then."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = threading.Event()

    def trim(self, partition: LogPartition, below: int) -> bool:
        self.trimmed.append((partition, below))
        assert self.closed.wait(10)
        return False

    def abandon(self) -> None:
        self.closed.set()


def test_who_has_let_go_trims_nothing_more() -> None:
    cursor = Slow()
    sending = sending_to(cursor)
    sending.trim(PLACE, 5)
    sending.trim(PLACE, 6)
    sending.send({PLACE: 7}, None)
    wait_until(lambda: cursor.trimmed)

    sending.abandon()

    assert cursor.trimmed == [(PLACE, 5)]
    sending.close()


class Broken(Noting):
    """A cursor whose trims end in what nobody foresaw, and whose connection cannot be closed."""

    def trim(self, partition: LogPartition, below: int) -> bool:
        raise ZeroDivisionError

    def abandon(self) -> None:
        pass


def test_a_thread_that_ends_for_what_nobody_foresaw_says_so() -> None:
    sending = sending_to(Broken())
    sending.trim(PLACE, 7)
    sending.send({PLACE: 7}, None)
    wait_until(lambda: sending._answers.qsize() == 2)

    with pytest.raises(ZeroDivisionError):
        sending.answers()


def test_a_thread_that_cannot_be_made_to_let_go_leaves_its_batch_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "LET_GO_S", 0.01)
    cursor = Broken(held=True)
    sending = sending_to(cursor)
    sending.send({PLACE: 7}, None)
    wait_until(lambda: cursor.delivered)

    with pytest.raises(InDoubt, match="nothing is known of its batch"):
        sending.abandon()

    cursor.goes_on.set()
    sending.close()

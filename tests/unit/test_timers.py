"""Resend timers: when a batch is sent again, how waits grow, and that an ended batch is never sent."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from relay.transfer.timers import JITTER, Resend, ResendTimers


def timers(chance: float = 0.0) -> ResendTimers:
    return ResendTimers(5.0, 60.0, lambda: chance)


def test_nothing_is_sent_before_its_time_and_once_at_it() -> None:
    found = timers()
    assert found.sent("a", 100.0) == 105.0
    assert found.expired(104.999) == []
    assert found.expired(105.0) == [Resend("a", 1)]
    assert found.expired(1000.0) == [], "its timer stands still until it is sent"
    assert found.next_due() is None


def test_waits_double_up_to_the_longest() -> None:
    found = timers()
    waits, now = [], 0.0
    for _ in range(7):
        due = found.sent("a", now)
        waits.append(due - now)
        now = due
        assert len(found.expired(now)) == 1
    assert waits == [5, 10, 20, 40, 60, 60, 60]


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_jitter_only_lengthens(chance: float) -> None:
    assert timers(chance).sent("a", 0.0) == pytest.approx(5 * (1 + JITTER * chance))


def test_an_answer_ends_the_timer_and_a_late_one_is_told_apart() -> None:
    found = timers()
    found.sent("a", 0.0)
    assert found.acked("a") is True
    assert found.acked("a") is False
    assert found.expired(1e9) == []
    assert found.failed("a") is None


def test_an_answer_after_the_expiry_ends_it_too() -> None:
    found = timers()
    found.sent("a", 0.0)
    assert found.expired(5.0) == [Resend("a", 1)]
    assert found.acked("a") is True
    assert found.next_due() is None


def test_a_known_failure_is_sent_again_after_a_pause_that_grows() -> None:
    found = timers()
    found.sent("a", 0.0)
    assert found.failed("a") == Resend("a", 1)
    assert [found.pause_s(attempt) for attempt in (1, 2, 3, 50, 5000)] == [0.625, 1.25, 2.5, 60, 60]


def test_batches_do_not_wait_for_each_other() -> None:
    found = timers()
    found.sent("a", 0.0)
    found.sent("b", 2.0)
    assert found.next_due() == 5.0
    assert found.expired(5.0) == [Resend("a", 1)]
    assert found.next_due() == 7.0
    found.forget()
    assert found.next_due() is None


class Course(RuleBasedStateMachine):
    """Any course of sends, answers and time: sends(batch) <= 1 + what its waits allow, none after its end."""

    def __init__(self) -> None:
        super().__init__()
        chance = random.Random(7)
        self.timers = ResendTimers(1.0, 8.0, chance.random)
        self.now = 0.0
        self.sent_at: dict[int, list[float]] = {}
        self.ended: set[int] = set()
        self.next = 0

    @rule()
    def send(self) -> None:
        self.timers.sent(self.next, self.now)
        self.sent_at[self.next] = [self.now]
        self.next += 1

    @rule(seconds=st.floats(0, 20))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for command in self.timers.expired(self.now):
            assert command.batch not in self.ended
            assert isinstance(command.batch, int)
            self.timers.sent(command.batch, self.now)
            self.sent_at[command.batch].append(self.now)
            assert command.attempt == len(self.sent_at[command.batch]) - 1

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        if self.sent_at:
            batch = data.draw(st.sampled_from(sorted(self.sent_at)))
            assert self.timers.acked(batch) is (batch not in self.ended)
            self.ended.add(batch)

    @invariant()
    def waits_are_long_enough(self) -> None:
        for times in self.sent_at.values():
            for n, (before, after) in enumerate(itertools.pairwise(times)):
                assert after - before >= min(8.0, 2.0**n) - 1e-9

    @invariant()
    def every_open_batch_has_a_timer(self) -> None:
        assert (self.timers.next_due() is None) == (len(self.ended) == len(self.sent_at))


TestCourse = Course.TestCase

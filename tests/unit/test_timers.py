"""Resend times: how waits and pauses grow, and that jitter only lengthens them."""

from __future__ import annotations

import pytest

from relay.transfer.timers import JITTER, ResendTimes


def times(chance: float = 0.0) -> ResendTimes:
    return ResendTimes(5.0, 60.0, lambda: chance)


def test_waits_double_up_to_the_longest() -> None:
    assert [times().wait_s(attempt) for attempt in (0, 1, 2, 3, 4, 5, 5000)] == [5, 10, 20, 40, 60, 60, 60]


def test_pauses_double_from_a_fraction_of_the_wait_up_to_the_longest() -> None:
    assert [times().pause_s(attempt) for attempt in (1, 2, 3, 50, 5000)] == [0.625, 1.25, 2.5, 60, 60]


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_jitter_only_lengthens(chance: float) -> None:
    assert times(chance).wait_s(0) == pytest.approx(5 * (1 + JITTER * chance))
    assert times(chance).pause_s(5) == pytest.approx(10 * (1 + JITTER * chance))

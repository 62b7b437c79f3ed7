"""How many messages a worker holds: what it needs for its handlers, a quarter of a second's work, and never more than a bound."""

from __future__ import annotations

import pytest

from relay.work.window import HOLD_S, MOST_PER_HANDLER, Window


def following(window: Window, rate: float, elapsed_s: float = 0.1) -> int:
    """Return what it holds once it has seen this rate for long."""
    for _ in range(50):
        window.note(round(rate * elapsed_s), elapsed_s)
    return window.size


@pytest.mark.parametrize(("concurrency", "batch"), [(1, 1), (8, 1), (2, 100)])
def test_each_handler_has_its_next_call_at_hand_however_slow_it_is(concurrency: int, batch: int) -> None:
    window = Window(concurrency, batch)

    assert window.size == 2 * concurrency * batch
    assert following(window, 0.0) == 2 * concurrency * batch


@pytest.mark.parametrize("elapsed_s", [0.1, 2.0])
def test_it_holds_a_quarter_of_a_seconds_work_and_follows_when_that_grows_or_shrinks(elapsed_s: float) -> None:
    window = Window(8)

    for rate in (1000.0, 400.0, 1600.0):
        assert following(window, rate, elapsed_s) == pytest.approx(rate * HOLD_S, rel=0.01)


def test_however_fast_messages_end_what_it_holds_is_bounded() -> None:
    assert following(Window(2), 1e6) == 2 * MOST_PER_HANDLER


def test_a_time_that_stands_still_tells_nothing() -> None:
    window = Window(8)
    held = following(window, 1000.0)

    window.note(5, 0.0)

    assert window.size == held

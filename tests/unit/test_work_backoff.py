"""When a message that failed is tried again: each time later, never later than said, and not all of them at once."""

from __future__ import annotations

import pytest

from relay.work.backoff import JITTER, Backoff


def test_pauses_double_up_to_the_last_one() -> None:
    backoff = Backoff(0.5, 3.0)

    assert [backoff.pause_ms(failures, 0.0) for failures in range(1, 6)] == [500, 1000, 2000, 3000, 3000]


def test_what_has_not_failed_itself_waits_for_the_first_pause() -> None:
    assert Backoff(0.5, 3.0).pause_ms(0, 0.0) == 500


@pytest.mark.parametrize("failures", [31, 1025, 10**6])
def test_however_often_it_failed_the_pause_is_the_last_one(failures: int) -> None:
    assert Backoff(1.0, 300.0).pause_ms(failures, 0.0) == 300_000


def test_chance_makes_a_pause_longer_by_up_to_its_share_and_never_shorter() -> None:
    backoff = Backoff(8.0, 8.0)

    assert [backoff.pause_ms(1, chance) for chance in (0.0, 0.5, 1.0)] == [8000, 8000 + 4000 * JITTER, 8000 + 8000 * JITTER]


def test_a_pause_is_as_long_as_was_asked_for_within_the_bound_and_no_shorter_than_its_own() -> None:
    backoff = Backoff(1.0, 300.0)

    assert [backoff.pause_ms(failures, 0.0, after_s) for failures, after_s in ((1, 30.0), (7, 30.0), (1, 86_400.0))] == [
        30_000,
        64_000,
        300_000,
    ]

"""A lease ends by beats that stand still on the watcher's own clock, and by nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.queue.port import Holder
from relay.work.leases import Leases

OWN = b"own"


def holder(name: bytes, beats: int) -> Holder:
    return Holder(name, "approval", beats, None)


def looking(leases: Leases, beats: int, since: float, until: float) -> list[Holder]:
    """Look every second, as a worker does, at one that stands still; return whom any look took for dead."""
    found: list[Holder] = []
    now = since
    while now < until:
        found += leases.silent([holder(b"x", beats)], now)
        now += 1.0
    return found + leases.silent([holder(b"x", beats)], until)


def test_a_holder_is_silent_only_after_a_whole_lease_of_the_same_beats() -> None:
    leases = Leases(60.0, OWN)
    assert looking(leases, 7, 1000.0, 1059.9) == []
    assert leases.silent([holder(b"x", 7)], 1060.0) == [holder(b"x", 7)]


def test_one_beat_begins_the_lease_anew() -> None:
    leases = Leases(60.0, OWN)
    assert looking(leases, 7, 30.0, 59.0) == []
    assert looking(leases, 8, 60.0, 119.0) == []
    assert leases.silent([holder(b"x", 8)], 120.0) == [holder(b"x", 8)]


def test_who_could_not_look_for_long_does_not_take_the_others_for_dead() -> None:
    """A store that was away for a lease let nobody beat: the first to come back ended all other workers."""
    leases = Leases(60.0, OWN)
    leases.silent([holder(b"x", 7)], 0.0)
    assert looking(leases, 7, 400.0, 459.0) == []
    assert leases.silent([holder(b"x", 7)], 460.0) == [holder(b"x", 7)]


@pytest.mark.parametrize("away_s", [10.5, 50.5, 59.9])
def test_nor_does_who_could_not_look_for_less_than_a_lease(away_s: float) -> None:
    """A failover that took 51 to 60 seconds had the first to come back end all other workers, whose last beat was ten seconds older."""
    leases, beat_at = Leases(60.0, OWN), 100.0
    looking(leases, 7, beat_at, beat_at + 9.9)

    back_at = beat_at + 9.9 + away_s
    assert looking(leases, 7, back_at, back_at + 39.0) == [], "it has a beat's time for the time away, like everybody, and time to come back"
    assert leases.silent([holder(b"x", 8)], back_at + 39.5) == []


def test_a_worker_that_looks_seldom_finds_the_dead_all_the_same() -> None:
    """Each pause counts for a beat."""
    leases = Leases(60.0, OWN)
    assert [bool(leases.silent([holder(b"x", 7)], now)) for now in (0.0, 15.0, 30.0, 45.0, 60.0, 75.0, 90.0)] == [False] * 6 + [True]


def test_who_did_not_look_for_just_a_lease_has_seen_nothing_either() -> None:
    leases = Leases(60.0, OWN)
    leases.silent([holder(b"x", 7)], 0.0)
    assert leases.silent([holder(b"x", 7)], 60.0) == []


def test_nobody_gives_himself_up() -> None:
    leases = Leases(60.0, OWN)
    both = [holder(OWN, 1), holder(b"x", 1)]
    assert [leases.silent(both, now) for now in (*range(0, 60, 10), 59.0)] == [[]] * 7
    assert leases.silent(both, 60.0) == both[1:]


@given(st.lists(st.tuples(st.floats(0.01, 10.0), st.booleans()), max_size=80))
def test_whoever_beats_within_every_lease_is_never_silent(steps: list[tuple[float, bool]]) -> None:
    leases, now, beats, since = Leases(60.0, OWN), 0.0, 0, 0.0
    leases.silent([holder(b"x", beats)], now)
    for pause, beat in steps:
        now += pause
        if beat:
            beats += 1
            since = now
        assert bool(leases.silent([holder(b"x", beats)], now)) == (now - since >= 60.0)

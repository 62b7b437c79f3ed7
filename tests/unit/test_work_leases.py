"""A lease ends by beats that stand still on the watcher's own clock, and by nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay.queue.port import Holder
from relay.work.leases import Leases

OWN = b"own"


def holder(name: bytes, beats: int) -> Holder:
    return Holder(name, "approval", beats, None)


def test_a_holder_is_silent_only_after_a_whole_lease_of_the_same_beats() -> None:
    leases = Leases(60.0, OWN)
    assert leases.silent([holder(b"x", 7)], 1000.0) == []
    assert leases.silent([holder(b"x", 7)], 1030.0) == []
    assert leases.silent([holder(b"x", 7)], 1059.9) == []
    assert leases.silent([holder(b"x", 7)], 1060.0) == [holder(b"x", 7)]


def test_one_beat_begins_the_lease_anew() -> None:
    leases = Leases(60.0, OWN)
    leases.silent([holder(b"x", 7)], 30.0)
    assert leases.silent([holder(b"x", 8)], 60.0) == []
    assert leases.silent([holder(b"x", 8)], 90.0) == []
    assert leases.silent([holder(b"x", 8)], 119.0) == []
    assert leases.silent([holder(b"x", 8)], 120.0) == [holder(b"x", 8)]


def test_who_could_not_look_for_long_does_not_take_the_others_for_dead() -> None:
    """A store that was away for a lease let nobody beat: the first to come back ended all other workers."""
    leases = Leases(60.0, OWN)
    leases.silent([holder(b"x", 7)], 0.0)
    assert leases.silent([holder(b"x", 7)], 400.0) == []
    assert leases.silent([holder(b"x", 7)], 430.0) == []
    assert leases.silent([holder(b"x", 7)], 460.0) == [holder(b"x", 7)]


def test_who_did_not_look_for_just_a_lease_has_seen_nothing_either() -> None:
    leases = Leases(60.0, OWN)
    leases.silent([holder(b"x", 7)], 0.0)
    assert leases.silent([holder(b"x", 7)], 60.0) == []


def test_nobody_gives_himself_up() -> None:
    leases = Leases(60.0, OWN)
    both = [holder(OWN, 1), holder(b"x", 1)]
    assert [leases.silent(both, now) for now in (0.0, 30.0, 59.0)] == [[], [], []]
    assert leases.silent(both, 60.0) == both[1:]


@given(st.lists(st.tuples(st.floats(0.01, 30.0), st.booleans()), max_size=40))
def test_whoever_beats_within_every_lease_is_never_silent(steps: list[tuple[float, bool]]) -> None:
    leases, now, beats, since = Leases(60.0, OWN), 0.0, 0, 0.0
    leases.silent([holder(b"x", beats)], now)
    for pause, beat in steps:
        now += pause
        if beat:
            beats += 1
            since = now
        assert bool(leases.silent([holder(b"x", beats)], now)) == (now - since >= 60.0)

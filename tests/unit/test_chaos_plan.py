"""The plan of the accidents: the same for the same seed, fair to every kind, and never two absent brokers at once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from relay.chaos.nemesis import ALL, JUMP_S, NATURES, REST_S, SAFE, Kind, Struck, plan


def test_the_plan_is_a_function_of_its_seed() -> None:
    assert plan(7, 600) == plan(7, 600)
    assert plan(7, 600) != plan(8, 600)


@pytest.mark.parametrize("seed", range(20))
def test_in_ten_minutes_every_kind_happens_and_at_least_thirty_faults(seed: int) -> None:
    found = plan(seed, 600)

    assert {fault.kind for fault in found} == set(Kind)
    assert len(found) >= 60
    assert [fault.at_s for fault in found] == sorted(fault.at_s for fault in found)
    for fault in found:
        nature = NATURES[fault.kind]
        assert 0 < fault.at_s < 600
        assert nature.least_s <= fault.lasts_s <= nature.most_s
        assert 0 <= fault.pick < 1


@pytest.mark.parametrize("struck", list(REST_S))
def test_brokers_and_database_are_struck_one_after_the_other(struck: Struck) -> None:
    for seed in range(20):
        mine = [fault for fault in plan(seed, 600) if NATURES[fault.kind].struck is struck]
        for before, after in pairwise(mine):
            assert after.at_s >= before.at_s + before.lasts_s + REST_S[struck] - 0.02


def test_on_somebodys_system_only_workers_are_struck() -> None:
    assert {NATURES[kind].struck for kind in SAFE} == {Struck.WORKERS}
    assert {fault.kind for fault in plan(1, 120, SAFE)} == set(SAFE)


def test_a_freeze_lasts_longer_than_the_session_of_the_configuration() -> None:
    freezes = [fault for fault in plan(1, 600, SAFE, session_s=30.0) if fault.kind is Kind.WORKER_FREEZE]

    assert freezes
    assert all(31.0 <= fault.lasts_s <= 39.0 for fault in freezes)


def test_a_clock_jumps_ahead_and_behind_by_minutes_to_days_as_the_seed_says() -> None:
    jumps = [f.jumps_s() for seed in range(20) for f in plan(seed, 600) if f.kind is Kind.CLOCK_JUMP]

    assert jumps == [f.jumps_s() for seed in range(20) for f in plan(seed, 600) if f.kind is Kind.CLOCK_JUMP]
    for offsets in jumps:
        assert all(before * after < 0 for before, after in pairwise(offsets))
        assert all(JUMP_S[0] <= abs(offset) <= JUMP_S[1] for offset in offsets)
    sizes = [abs(offset) for offsets in jumps for offset in offsets]
    assert min(sizes) < 600
    assert max(sizes) > 86400


def test_no_disk_is_filled_and_no_clock_moved_on_somebodys_system() -> None:
    demonstration_only = {Kind.CLOCK_JUMP, Kind.WORKER_DISK_FULL, Kind.BROKER_DISK_FULL, Kind.DATABASE_DISK_FULL}

    assert demonstration_only <= set(ALL)
    assert not demonstration_only & set(SAFE)


def test_a_short_run_has_faults_too() -> None:
    assert plan(1, 10)
    assert set(ALL) == set(NATURES)

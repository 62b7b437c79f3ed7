"""A share of the search with every test run, the seeds that once failed, and what the search itself rests on."""

from __future__ import annotations

import pytest

from tests.mutations.proofs import Search
from tests.mutations.registry import GUARDS, Guard
from tests.simulation.kinds import KINDS, run
from tests.simulation.removals import without
from tests.simulation.seeds import CLEARED, LESSONS

CHUNK = 60
CHUNKS = 2
SHARE = [guard for guard in GUARDS if isinstance(guard.proof, Search) and len(guard.proof.seeds) <= 25]
"""Guards whose absence shows soon; `make mutations` removes every one."""


@pytest.mark.parametrize("first", range(0, CHUNK * CHUNKS, CHUNK))
def test_no_seed_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run(seed)
        assert not outcome.problems, f"python -m tests.simulation.run --seed {seed} --trace"


@pytest.mark.slow
def test_no_seed_breaks_a_promise_with_room_for_a_single_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.log.intake.RANGES_KEPT", 1)
    monkeypatch.setattr("relay.log.intake.RANGES_LEAST", 1)
    for seed in range(60):
        outcome = run(seed, "log")
        assert not outcome.problems, f"seed {seed}, bounds as here"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["route", "topic"])
def test_no_seed_breaks_a_promise_when_entries_are_carried_at_every_turn(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.delivery.topic.carrying.FIRST_LOOK_S", 0.0)
    monkeypatch.setattr("relay.delivery.topic.carrying.LOOKS_PER_HORIZON", 1e9)
    for seed in range(60):
        outcome = run(seed, kind)
        assert not outcome.problems, f"seed {seed}, looks as here"


@pytest.mark.parametrize(("seed", "removal", "taught"), LESSONS)
def test_what_the_search_once_found_is_found_again_and_mended(seed: int, removal: str, taught: str) -> None:
    assert not run(seed, "topic").problems, taught
    with without(removal):
        assert run(seed, "topic").problems, (
            "the seed means something else by now: find another one for this lesson"
        )


@pytest.mark.parametrize("seed", CLEARED)
def test_where_the_auditor_was_wrong_it_is_silent(seed: int) -> None:
    assert not run(seed).problems


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_replays_exactly(kind: str) -> None:
    once, again = run(7, kind, tracing=True), run(7, kind, tracing=True)
    assert once.lines
    assert once.digest == again.digest
    assert run(8, kind, tracing=True).digest != once.digest


@pytest.mark.parametrize("guard", SHARE, ids=lambda guard: guard.removal)
def test_the_search_finds_a_removed_guard(guard: Guard) -> None:
    assert guard.proof.shows(guard.removal), guard.wrong

"""A share of the search over routes into queues with every test run, and what its workload must be for the search to mean anything."""

from __future__ import annotations

import pytest

from relay.queue.desired import Wanted
from tests.simulation.database_queue import DELIVERIES, MESSAGES
from tests.simulation.putting_trial import PuttingTrial, run_putting


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_no_seed_of_routes_into_queues_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + 10):
        assert not run_putting(seed).problems, f"python -m tests.simulation.run --kind putting --seed {seed} --trace"


def test_publishers_are_paused_and_subscribers_get_messages() -> None:
    paused = done = 0
    for seed in range(6):
        trial = PuttingTrial(seed, tracing=True)
        lines = trial.run().lines
        paused += sum(line[1:3] == ("person", Wanted.PAUSE.value) for line in lines)
        done += sum(row["done_at"] is not None for row in trial._database.rows(DELIVERIES))

    assert paused > 10
    assert done > 100


def test_messages_are_delayed_and_expire_while_publishers_are_paused() -> None:
    shown = expired = 0
    for seed in (1, 6, 10):
        trial = PuttingTrial(seed)
        assert not trial.run().problems
        database = trial._database
        shown += sum(row["reveal_at"] is not None and row["revealed_at"] is not None for row in database.rows(MESSAGES))
        expired += sum(row["expired_at"] is not None and row["done_at"] is None for row in database.rows(DELIVERIES))

    assert shown > 10
    assert expired > 0


class SmallQueue(PuttingTrial):
    """Into a queue that takes less than a batch."""

    waiting_max = 3


def test_a_queue_that_takes_less_than_a_batch_is_filled_little_by_little() -> None:
    for seed in range(4):
        assert not SmallQueue(seed).run().problems, seed

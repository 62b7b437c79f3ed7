"""A refused record is found with few refusals, and repeats or lost partitions never keep batches small for ever."""

from __future__ import annotations

import pytest

from relay.delivery.topic.narrowing import Narrowing
from relay.message.record import LogMessage, LogPartition


def message(offset: int, partition: int = 0) -> LogMessage:
    digest = partition.to_bytes(8, "big") + offset.to_bytes(8, "big")
    return LogMessage("log", partition, offset, None, b"v", [], digest, b"", b"", None, 0)


def search(count: int, bad: int) -> int:
    """Deliver ``count`` messages of which one is refused; return how often it was."""
    narrowing, waiting, refusals = Narrowing(), [message(n) for n in range(count)], 0
    condemned = False
    while waiting:
        batch = waiting[: narrowing.limit or count]
        if any(one.offset == bad for one in batch) and not condemned:
            refusals += 1
            condemned = len(batch) == 1
            if not condemned:
                narrowing.refused(batch)
            continue
        narrowing.passed(batch)
        waiting = waiting[len(batch) :]
    assert narrowing.limit is None
    return refusals


@pytest.mark.parametrize("bad", [0, 1, 7_777, 19_999])
def test_one_among_twenty_thousand_costs_few_refusals(bad: int) -> None:
    assert search(20_000, bad) <= 6


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 300])
def test_small_batches_end_too(count: int) -> None:
    assert all(search(count, bad) <= 4 for bad in range(count))


def test_a_small_batch_that_passes_does_not_widen_the_next() -> None:
    narrowing = Narrowing()
    narrowing.refused([message(n) for n in range(320)])
    narrowing.passed([message(n) for n in range(5)])
    assert narrowing.limit == 20


def test_what_must_go_before_the_rest_is_a_batch_of_its_own() -> None:
    narrowing, messages = Narrowing(), [message(n) for n in range(9)]
    narrowing.first(messages[:3])
    assert narrowing.limit == 3

    narrowing.passed(messages[:2])
    assert narrowing.limit == 3
    narrowing.passed(messages[2:3])
    assert narrowing.limit is None


def test_what_had_its_effect_before_counts_as_passed() -> None:
    narrowing = Narrowing()
    narrowing.refused([message(0), message(1)])
    narrowing.passed([message(0), message(1), message(2)])
    assert narrowing.limit is None


def test_partitions_that_are_gone_do_not_keep_batches_small() -> None:
    narrowing = Narrowing()
    narrowing.refused([message(0, 1), message(0, 2)])
    narrowing.keep([LogPartition("log", 2)])
    assert narrowing.limit == 1
    narrowing.keep([])
    assert narrowing.limit is None


def over_a_slow_line(most: int, batches: int) -> tuple[int, int]:
    """Deliver whole batches, with a small one first after each recovery; return what went through, and the failures."""
    narrowing, through, failures = Narrowing(), 0, 0
    for _ in range(batches):
        batch = [message(0)] * (narrowing.limit or 20_000)
        if len(batch) <= most:
            narrowing.passed(batch)
            through += len(batch)
        else:
            failures += 1
            narrowing.failed(len(batch))
            small = batch[: min(500, most, narrowing.limit or 500)]
            narrowing.passed(small)
            through += len(small)
    return through, failures


@pytest.mark.parametrize("most", [1, 100, 3_000, 19_999])
def test_what_is_too_much_for_a_transaction_goes_in_smaller_ones(most: int) -> None:
    through, failures = over_a_slow_line(most, 300)

    assert through > 300 * most / 4
    assert failures < 300 / 8


def test_a_single_failure_makes_no_batch_smaller_and_a_slow_hour_is_over() -> None:
    narrowing = Narrowing()
    for _ in range(3):
        narrowing.failed(1_000)
        assert narrowing.limit is None
        narrowing.passed([message(0)] * 1_000)

    narrowing.failed(1_000)
    narrowing.failed(1_000)
    assert narrowing.limit == 1_000 // 16
    for _ in range(1_000):
        narrowing.passed([message(0)] * (narrowing.limit or 1))
    assert narrowing.limit is None


def test_small_batches_say_nothing_of_what_larger_ones_may_be() -> None:
    narrowing = Narrowing()
    narrowing.failed(1_600)
    narrowing.passed([message(0)] * 1_599)  # as the first one after a recovery
    narrowing.failed(1_600)
    assert narrowing.limit == 100

    narrowing.passed([message(0)] * 99)
    assert narrowing.limit == 100
    narrowing.passed([message(0)] * 100)
    assert narrowing.limit == 106


def test_an_empty_batch_that_fails_says_nothing_of_sizes() -> None:
    narrowing = Narrowing()
    for _ in range(5):
        narrowing.failed(0)
    assert narrowing.limit is None


@pytest.mark.parametrize(("failing", "refused", "limit"), [(160, 320, 10), (1_600, 32, 2)])
def test_of_two_reasons_for_small_batches_the_smaller_one_holds(failing: int, refused: int, limit: int) -> None:
    narrowing = Narrowing()
    narrowing.failed(failing)
    narrowing.failed(failing)
    narrowing.refused([message(n) for n in range(refused)])
    assert narrowing.limit == limit

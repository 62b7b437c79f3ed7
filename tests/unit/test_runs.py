"""Runs are a set of numbers, whatever is added in whatever order."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from relay.monitor.runs import Runs, collapsed, is_increasing

RUN = st.tuples(st.integers(1, 60), st.integers(0, 12))


def numbers(flat: list[int]) -> set[int]:
    return {n for first, last in zip(flat[::2], flat[1::2], strict=True) for n in range(first, last + 1)}


@given(st.lists(RUN, max_size=20))
def test_runs_hold_exactly_what_was_added_as_few_as_possible(added: list[tuple[int, int]]) -> None:
    runs, model = Runs(), set[int]()
    for first, more in added:
        runs.add(first, first + more)
        model |= set(range(first, first + more + 1))

    assert numbers(runs.flat) == model
    assert [n in runs for n in range(80)] == [n in model for n in range(80)]
    assert runs.highest == max(model, default=0)
    edges = runs.flat
    assert all(after > before + 1 for before, after in zip(edges[1:-1:2], edges[2::2], strict=True))


@given(st.lists(st.integers(1, 40), max_size=30))
def test_numbers_collapse_in_any_order(single: list[int]) -> None:
    assert numbers(collapsed(single)) == set(single)
    assert is_increasing(single) == all(b > a for a, b in pairwise(single))


def test_numbers_collapse_in_their_order_however_large_they_are() -> None:
    assert collapsed([2**40, 3, 2**33, 4]) == [3, 4, 2**33, 2**33, 2**40, 2**40]


def test_numbers_whose_ends_lie_as_far_apart_as_there_are_numbers_are_looked_at_all_the_same() -> None:
    assert collapsed([1, 7, 3]) == [1, 1, 3, 3, 7, 7]


@given(st.lists(RUN, max_size=20), st.integers(1, 5))
def test_shortening_forgets_and_never_adds(added: list[tuple[int, int]], most: int) -> None:
    runs = Runs()
    for first, more in added:
        runs.add(first, first + more)
    before, lowest = numbers(runs.flat), runs.lowest_run

    dropped = runs.shorten(most)

    assert len(runs) <= most
    assert runs.lowest_run == lowest
    assert numbers(runs.flat) <= before
    assert len(before) - len(numbers(runs.flat)) == dropped


@given(st.lists(RUN, max_size=20), st.integers(1, 5))
def test_the_shortest_are_forgotten_of_those_as_short_the_lowest(added: list[tuple[int, int]], most: int) -> None:
    runs = Runs()
    for first, more in added:
        runs.add(first, first + more)
    left = list(zip(runs.flat[::2], runs.flat[1::2], strict=True))
    while len(left) > most:
        left.remove(min(left[1:], key=lambda run: run[1] - run[0]))

    runs.shorten(most)

    assert list(zip(runs.flat[::2], runs.flat[1::2], strict=True)) == left


def test_a_strangers_numbers_are_shortened_in_time_that_grows_with_their_count() -> None:
    """A message may have any number: a batch of twenty thousand with gaps between all of them must not stop a worker."""
    runs = Runs()
    runs.add_numbers(range(1, 100_000, 2))
    began = time.process_time()

    runs.shorten(64)

    assert time.process_time() - began < 2
    assert len(runs) == 64


@given(st.lists(RUN, max_size=20), st.integers(1, 80))
def test_what_lies_below_can_be_taken_out(added: list[tuple[int, int]], limit: int) -> None:
    runs = Runs()
    for first, more in added:
        runs.add(first, first + more)
    before = numbers(runs.flat)

    taken = numbers(runs.take_below(limit))

    assert taken | numbers(runs.flat) == before
    assert all(n < limit for n in taken)

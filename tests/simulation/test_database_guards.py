"""With a guard of capture or of a table route removed, the search finds what it guards against."""

from __future__ import annotations

import pytest

from tests.simulation.database_removals import DATABASE_REMOVALS
from tests.simulation.kinds import run
from tests.simulation.removals import without

SEARCHED = {
    "no_epoch_guard": ("route", range(30, 60), "two writers"),
    "older_copy_trusted": ("route", range(255, 290), "lost write"),
    "index_trusted_above_position": ("route", range(250, 290), "lost write"),
    "no_sift_for_table": ("route", range(30, 90), "duplicate"),
    "inbox_not_entered": ("route", range(270, 330), "lost dead letter"),
    "dead_letters_not_repeated": ("route", range(100, 150), "lost dead letter"),
    "resolver_without_insert": ("capture", range(20), "failed write is there"),
    "lost_answer_is_aborted": ("capture", range(20), "failed write is there"),
    "reports_not_awaited": ("capture", range(80), "lost append"),
    "capture_headers_left": ("route", range(20), "capture header left"),
}
"""Of each removal: the kind of run, seeds of which one at least must fail, and the anomaly it leads to."""


def test_every_removal_is_searched_for() -> None:
    assert SEARCHED.keys() == DATABASE_REMOVALS.keys()


@pytest.mark.parametrize("guard", SEARCHED)
def test_the_search_finds_a_removed_guard_of_a_database(guard: str) -> None:
    kind, seeds, anomaly = SEARCHED[guard]
    with without(guard):
        assert any(problem.startswith(anomaly) for seed in seeds for problem in run(seed, kind).problems)

"""A worker of handlers killed at each named step, on SQLite and PostgreSQL: exactly what was not done comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.work_site import Site, lent_site

STEPS = {"work.taken": 0, "work.ran:5": 4, "work.deciding:5": 4, "work.decided:5": 5}
"""Where the process dies -> how many effects stand then."""
QUICK = [("sqlite", "work.taken"), ("sqlite", "work.decided:5"), ("postgresql", "work.deciding:5")]
LONG = [
    (medium, point) for medium in ("sqlite", "postgresql") for point in STEPS if (medium, point) not in QUICK
]


@pytest.fixture
def site(
    medium: str, request: pytest.FixtureRequest, tmp_path: Path, kafka: str, kafka_admin: AdminClient
) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path}/shop.db" if medium == "sqlite" else request.getfixturevalue("postgres")
    with lent_site(tmp_path, kafka, kafka_admin, url) as made:
        yield made


@pytest.mark.parametrize(
    ("medium", "point"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in LONG)]
)
def test_a_process_that_dies_at_any_step_returns_exactly_what_was_not_done(site: Site, point: str) -> None:
    site.put(range(20))
    app = site.app()

    assert site.finish(app, env={"RELAY_CRASH_AT": point}) == 137
    assert len(site.effects()) == STEPS[point]
    assert site.finish(app) == 0
    site.check(range(20))

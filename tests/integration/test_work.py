"""Handlers in real processes over SQLite and PostgreSQL: each message's effect once, whatever ends the process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.work_site import Site, lent_site, report

STORES = pytest.mark.parametrize("medium", ["sqlite", "postgresql"])


@pytest.fixture
def site(
    medium: str, request: pytest.FixtureRequest, tmp_path: Path, kafka: str, kafka_admin: AdminClient
) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path}/shop.db" if medium == "sqlite" else request.getfixturevalue("postgres")
    with lent_site(tmp_path, kafka, kafka_admin, url) as made:
        yield made


@STORES
def test_each_message_takes_effect_once_in_its_lanes_order_and_is_journalled(site: Site) -> None:
    site.put(range(60))

    found = report(site.supervised(site.app(), "--concurrency", "4", "--until-idle", "0.5"))

    site.check(range(60))
    assert (found["done"], found["failed"], found["overtaken"]) == (60, 0, 0)


@STORES
@pytest.mark.parametrize("point", ["work.taken", "work.ran:5", "work.deciding:5", "work.decided:5"])
def test_a_process_that_dies_at_any_step_returns_exactly_what_was_not_done(site: Site, point: str) -> None:
    site.put(range(20))
    app = site.app()

    assert site.finish(app, env={"RELAY_CRASH_AT": point}) == 137
    done = len(site.effects())
    assert done == {"work.taken": 0, "work.decided:5": 5}.get(point, 4)
    assert site.finish(app) == 0
    site.check(range(20))

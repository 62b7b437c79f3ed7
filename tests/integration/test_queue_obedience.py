"""Workers of handlers obey what persons want within a second, also those that start later; the times of the states prove it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relay.cli.main import app
from relay.queue.port import Filter
from relay.run.queue_upkeep import archive_folder
from relay.world import clock
from tests.archived_journal import archived
from tests.integration.work_site import Site
from tests.routes import wait_for

SLACK_MS = 4000
"""What a busy machine adds to the second."""


@pytest.fixture
def site(tmp_path: Path, kafka: str) -> Iterator[Site]:
    made = Site(tmp_path, kafka, f"sqlite:///{tmp_path}/shop.db")
    yield made
    made.close()


def say(site: Site, *words: str) -> int:
    """Run a command that records a wish and return when it was said, wall milliseconds."""
    found = CliRunner().invoke(app, [words[0], words[1], str(site.path), *words[2:], "--json"])
    assert found.exit_code == 0, found.output
    document = json.loads(found.output)
    at: int = document["at"] if "at" in document else document["wishes"][0]["at"]
    return at


def effects(site: Site) -> int:
    return int(site.run_sql("select count(*) from effect")[0][0])


@pytest.mark.slow
@pytest.mark.parametrize("noun", [("queue", "orders"), ("subscriber", "ledger")])
def test_a_paused_worker_takes_nothing_until_it_is_resumed_and_a_later_one_neither(site: Site, noun: tuple[str, str]) -> None:
    application = site.app()
    site.work(application)
    site.put(range(10))
    wait_for(lambda: effects(site) == 10, what="the first effects")

    paused = say(site, noun[0], "pause", noun[1])
    wait_for(lambda: clock.wall_ms() > paused + 1000 + SLACK_MS, what="the second within which it obeys")
    site.put(range(10, 20))
    site.work(application)
    resumed = say(site, noun[0], "resume", noun[1])
    wait_for(lambda: effects(site) == 20, what="the other effects")

    store = site.store()
    got = [view.subscribers[0].times.get or 0 for view in store.find(Filter(), after=10, limit=100)]
    store.close()
    assert len(got) == 10
    assert min(got) >= resumed
    assert min(got) <= resumed + 1000 + SLACK_MS


SLOW = """
import time
from relay import subscriber

@subscriber("orders", resource="shop")
def book(message, db):
    time.sleep(0.05)
    db.execute("insert into effect (lane, number, attempt) values ({p}, {p}, {p})",
               (message.lane.decode(), int(message.value), message.taken.ticket.attempt))
"""


@pytest.mark.slow
def test_a_queue_moves_under_running_handlers_and_each_effect_comes_once(tmp_path: Path, kafka: str) -> None:
    site = Site(tmp_path, kafka, f"sqlite:///{tmp_path}/shop.db", store="sqlite:///old.db")
    try:
        site.put(range(400))
        site.supervised(site.app(SLOW), "--concurrency", "4")
        wait_for(lambda: effects(site) > 40, what="the first effects")

        moved = CliRunner().invoke(app, ["queue", "migrate", str(site.path), "orders", "--to", "sqlite:///new.db", "--json"])
        assert moved.exit_code == 0, moved.output
        wait_for(lambda: effects(site) >= 400, 150.0, "the other effects")

        numbers = sorted(number for _, number in site.effects())
        assert numbers == list(range(400))
        listed = json.loads(CliRunner().invoke(app, ["queue", "list", str(site.path), "--json"]).output)
        (row,) = listed["queues"]
        assert row["store"].endswith("new.db")
    finally:
        site.close()


@pytest.mark.slow
def test_a_worker_keeps_its_queues_journal_within_its_retention(tmp_path: Path, kafka: str) -> None:
    site = Site(tmp_path, kafka, f"sqlite:///{tmp_path}/shop.db", extra='retain = { count = 5 }\narchive = "day"')
    try:
        site.put(range(30))
        site.work(site.app())
        folder = archive_folder(site.config)
        wait_for(lambda: effects(site) == 30, what="the effects")
        store = site.store()
        # One more than the retention says: the newest message stays, whenever it was journalled.
        wait_for(lambda: len(store.find(Filter(), limit=100)) <= 6, what="the trim")
        kept = [view.handle for view in store.find(Filter(), limit=100)]
        store.close()
        gone = [record["handle"] for record in archived(folder, "orders")]
        assert sorted([*gone, *kept]) == list(range(1, 31))
    finally:
        site.close()

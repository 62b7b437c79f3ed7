"""Killed at each step of an attempt over two queues and a further database, and of its recovery: each effect once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from relay.queue.message import NewMessage
from relay.queue.states import PublisherState, SubscriberState
from relay.world.crash import EXIT_STATUS, VARIABLE
from tests.integration.queue_site import NOW, open_queues

SALES = 4
ATTEMPT = ("attempt.child", "prepared.preparing", "prepared.prepared", "prepared.finishing", "attempt.accepted")
RECOVERY = ("recovery.outcome", "recovery.freed")


class Site:
    """Two queues in a directory and a ledger; the process under test runs over them again and again."""

    def __init__(self, directory: Path, ledger: str) -> None:
        self.directory = directory
        self.ledger_url = ledger
        with psycopg.connect(ledger, autocommit=True) as database:
            database.execute("create table ledger (sale text not null)")
        self.queues = open_queues(directory)
        sales = [NewMessage("/pos", f"sale-{n}", b"%d" % n, lane=b"/pos") for n in range(SALES)]
        self.queues["inbound"].put(sales, NOW)

    def run(self, at: str = "") -> int:
        command = [sys.executable, "-m", "tests.integration.queue_site", str(self.directory), self.ledger_url]
        return subprocess.run(command, env={**os.environ, VARIABLE: at}, check=False, timeout=120).returncode

    def assert_once(self) -> None:
        with psycopg.connect(self.ledger_url) as database:
            sales = [sale for (sale,) in database.execute("select sale from ledger")]
            prepared = database.execute(
                "select count(*) from pg_prepared_xacts where database = current_database()"
            ).fetchone()
        assert sorted(sales) == [f"sale-{n}" for n in range(SALES)]
        assert prepared == (0,)
        for handle in range(1, SALES + 1):
            parent = self.queues["inbound"].view(handle)
            assert parent is not None
            assert (parent.state, parent.subscribers[0].state) == (PublisherState.JOURNALLED, SubscriberState.JOURNALLED)
        outbound = self.queues["outbound"]
        states, _ = outbound.counts()
        assert states.get(PublisherState.REVEALED) == SALES
        assert not states.get(PublisherState.PUT)
        shown = [view.id for view in (outbound.view(handle) for handle in range(1, 3 * SALES)) if view and view.state is PublisherState.REVEALED]
        assert sorted(shown) == sorted(f"of-sale-{n}" for n in range(SALES))


@pytest.fixture
def site(tmp_path: Path, postgres: str) -> Site:
    return Site(tmp_path, postgres)


@pytest.mark.parametrize("point", ATTEMPT)
def test_killed_at_a_step_of_an_attempt_each_effect_happens_once(site: Site, point: str) -> None:
    assert site.run(f"{point}:2") == EXIT_STATUS

    assert site.run() == 0

    site.assert_once()


@pytest.mark.parametrize("point", RECOVERY)
@pytest.mark.parametrize("died_at", ["prepared.prepared", "attempt.accepted"])
def test_killed_in_its_recovery_too(site: Site, point: str, died_at: str) -> None:
    assert site.run(f"{died_at}:2") == EXIT_STATUS
    for _ in range(2):
        assert site.run(point) in (EXIT_STATUS, 0), "a second recovery may find nothing more to do at this step"

    assert site.run() == 0

    site.assert_once()


def test_without_the_decision_first_a_prepared_effect_would_outlive_its_attempt(site: Site) -> None:
    """The attempt died before its decision: its prepared effect must not stay, and must not happen twice."""
    assert site.run("prepared.prepared:1") == EXIT_STATUS
    with psycopg.connect(site.ledger_url) as database:
        assert database.execute("select count(*) from pg_prepared_xacts where database = current_database()").fetchone() == (1,)

    assert site.run() == 0

    site.assert_once()

"""Many handlers killed at random moments over a long run: each message DONE once, effects once, lanes in order."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.work_site import Site, lent_site

SCALE = int(os.environ.get("RELAY_TEST_KILLS_SCALE", "1"))
"""5: a hundred thousand messages and a thousand kills."""
MESSAGES = 20_000 * SCALE
KILLS = 200 * SCALE
LANES = 97
APP = """
from relay import subscriber

@subscriber("orders", resource="shop", batch=20)
def book(messages, db):
    db.executemany("insert into effect (lane, number, attempt) values ({p}, {p}, {p})",
                   [(one.lane.decode(), int(one.value), one.taken.ticket.attempt) for one in messages])
"""


@pytest.fixture
def site(
    medium: str, request: pytest.FixtureRequest, tmp_path: Path, kafka: str, kafka_admin: AdminClient
) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path}/shop.db" if medium == "sqlite" else request.getfixturevalue("postgres")
    with lent_site(tmp_path, kafka, kafka_admin, url) as made:
        yield made


def kill_at_random(site: Site, messages: int, kills: int, seed: int, deadline_s: float) -> tuple[int, int]:
    """Return how many were killed, and how many ended wrongly by themselves."""
    site.put(range(messages), LANES)
    store = site.store()
    uuid = store.uuid
    store.close()
    words = [str(site.path), str(site.app(APP)), uuid, str(kills), str(seed)]
    command = [sys.executable, "-m", "tests.integration.nursery", *words]
    done = subprocess.run(command, capture_output=True, timeout=deadline_s, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    killed, failed = done.stdout.split()
    return int(killed), int(failed)


@pytest.mark.parametrize("medium", [pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"])
def test_a_few_handlers_killed_at_random_lose_and_repeat_nothing(site: Site) -> None:
    killed, failed = kill_at_random(site, 1_000, 8, 1, 120.0)

    assert (killed, failed) == (8, 0)
    site.check(range(1_000))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("medium", ["sqlite", "postgresql"])
def test_hundreds_of_handlers_killed_at_random_lose_and_repeat_nothing(site: Site) -> None:
    killed, failed = kill_at_random(site, MESSAGES, KILLS, 7, 3000.0)

    assert (killed, failed) == (KILLS, 0)
    site.check(range(MESSAGES))

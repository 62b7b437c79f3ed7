"""Many handlers killed at random moments over a long run: each message DONE once, effects once, lanes in order."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from relay.queue.message import NewMessage, Place
from tests.conftest import MakeTopic
from tests.integration.work_site import Site, lent_site

SCALE = int(os.environ.get("RELAY_TEST_KILLS_SCALE", "1"))
"""10: a hundred thousand messages and a thousand kills."""
MESSAGES = 10_000 * SCALE
KILLS = 100 * SCALE
LANES = 97
APP = """
import asyncio, time

from relay import subscriber

@subscriber("orders", resource="shop", batch=BATCH)
def book(messages, db):
    time.sleep(0.01)
    db.executemany("insert into effect (lane, number, attempt) values ({p}, {p}, {p})",
                   [(one.lane.decode(), int(one.value), one.taken.ticket.attempt) for one in messages])
"""

ASYNC = APP.replace("def book", "async def book").replace("time.sleep", "await asyncio.sleep").replace("db.ex", "await db.ex")


@dataclass(frozen=True)
class Medium:
    """A store of the queue, as the configuration writes it, and the database of the handlers' effects."""

    store: str
    database: str
    alive: int = 2
    """So many workers at a time; files are for one."""
    app: str = APP
    batch: int = 20
    """Messages of one call: where the effects' database decides for another store, recovery settles each in a commit of its own."""


MEDIA = {
    "sqlite": Medium("shop", "sqlite"),
    "postgresql": Medium("shop", "postgresql"),
    "postgresql, async": Medium("shop", "postgresql", app=ASYNC),
    "files": Medium("files:///orders", "sqlite", alive=1, batch=5),
    "log": Medium("log+shop", "postgresql"),
}
LONG = ("files", "postgresql, async")
"""Killed many times, these are for the night."""


@dataclass
class Run:
    """One site with its queue on one medium; ``topic`` has the values where the index has not."""

    site: Site
    medium: Medium
    kafka: str
    topic: str

    def put(self, messages: int) -> str:
        """Put so many messages, and return the queue's uuid."""
        store = self.site.store()
        for first in range(0, messages, 1000):
            numbers = range(first, min(first + 1000, messages))
            places = self._append(numbers) if "log+" in self.medium.store else {}
            store.put(
                [
                    NewMessage("p", str(n), b"%d" % n, lane=b"%d" % (n % LANES), place=places.get(n))
                    for n in numbers
                ],
                1,
            )
        store.close()
        return store.uuid

    def _append(self, numbers: range) -> dict[int, Place]:
        """Append values to the log and return their places."""
        places: dict[int, Place] = {}
        producer = Producer({"bootstrap.servers": self.kafka, "linger.ms": 5})
        for number in numbers:

            def note(error: object, record: Any, number: int = number) -> None:
                assert error is None
                places[number] = Place(self.topic, "", record.partition(), record.offset())

            producer.produce(self.topic, b"%d" % number, key=b"%d" % (number % LANES), on_delivery=note)
        producer.flush(60)
        return places

    def kill_at_random(self, messages: int, kills: int, seed: int, deadline_s: float) -> None:
        """Let so many workers be killed; none may end wrongly by itself."""
        uuid = self.put(messages)
        words = [
            str(self.site.path),
            str(self.site.app(self.medium.app.replace("BATCH", str(self.medium.batch)))),
            uuid,
            str(kills),
            str(seed),
            str(self.medium.alive),
            str(2 * messages // kills // self.medium.batch),
        ]
        command = [sys.executable, "-m", "tests.integration.nursery", *words]
        done = subprocess.run(command, capture_output=True, timeout=deadline_s, check=False)
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        assert done.stdout.split() == [b"%d" % kills, b"0"], done.stderr.decode()[-3000:]

    def begun_anew(self) -> int:
        """Return how many messages had an attempt that came to nothing before the one that took effect."""
        return int(self.site.run_sql("select count(*) from effect where attempt > 1")[0][0])


@pytest.fixture
def run(
    medium: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kafka: str,
    kafka_admin: AdminClient,
    make_topic: MakeTopic,
) -> Iterator[Run]:
    chosen = MEDIA[medium]
    url = (
        request.getfixturevalue("postgres")
        if chosen.database == "postgresql"
        else f"sqlite:///{tmp_path}/shop.db"
    )
    topic = make_topic(4) if "log+" in chosen.store else ""
    # What dies alone with its worker again and again is ended as its killer after so many tries, and nobody here is one.
    with lent_site(tmp_path, kafka, kafka_admin, url, store=chosen.store, extra="tries = 1000") as site:
        yield Run(site, chosen, kafka, topic)


@pytest.mark.parametrize(
    "medium", [name if name == "postgresql" else pytest.param(name, marks=pytest.mark.slow) for name in MEDIA]
)
def test_a_few_handlers_killed_at_random_lose_and_repeat_nothing(run: Run) -> None:
    run.kill_at_random(1_000, 8, 1, 120.0)

    run.site.check(range(1_000))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "medium", [pytest.param(name, marks=pytest.mark.nightly) if name in LONG else name for name in MEDIA]
)
def test_many_handlers_killed_at_random_lose_and_repeat_nothing(run: Run) -> None:
    run.kill_at_random(MESSAGES, KILLS, 7, 3500.0)

    run.site.check(range(MESSAGES))
    assert run.begun_anew() > KILLS

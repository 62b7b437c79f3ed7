"""A plain producer's log, two workers killed ten times at random moments: every id exactly once, in order per source."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from relay.audit.verify import verify
from relay.config.loading import load
from tests.routes import Route, ce, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

PARTITIONS: Final = 3
SOURCES: Final = 6
MESSAGES: Final = 40_000
IN_TRANSACTION: Final = 200
KILLS: Final = 10
SEED: Final = 20261121
BATCH: Final = "\n[routes.main.batch]\nmessages = 100\n"
"""Short batches: about as many delivery transactions as a long soak has, in less time."""


@dataclass
class Written:
    """What the plain producer did."""

    good: list[str] = field(default_factory=list)
    poison: list[str] = field(default_factory=list)
    repeats: int = 0
    ghosts: int = 0


def write_log(kafka: str, topic: str, rng: random.Random, *, oversized: int) -> Written:
    """Nothing of the relay: ce_ headers, one transaction in ten aborted, 2 % repeats, some poison."""
    done = Written()
    producer = Producer(
        {"bootstrap.servers": kafka, "transactional.id": f"plain-{uuid4().hex}", "message.max.bytes": 3_000_000}
    )
    producer.init_transactions()

    def send(source: int, identifier: str, value: bytes, *more: tuple[str, bytes]) -> None:
        headers = [*ce(f"/source/{source}", identifier), *more]
        producer.produce(topic, value=value, key=b"k", partition=source % PARTITIONS, headers=headers)

    for first in range(0, MESSAGES, IN_TRANSACTION):
        if rng.random() < 0.1:
            producer.begin_transaction()
            for n in range(50):
                send(n % SOURCES, f"ghost-{first + n}", b'{"n": 0}')
            producer.flush()
            producer.abort_transaction()
            done.ghosts += 50
        producer.begin_transaction()
        for n in range(first, first + IN_TRANSACTION):
            source = rng.randrange(SOURCES)
            if n % 5000 == 2500:
                done.poison.append(f"poison-{n}")
                send(source, f"poison-{n}", b'{"n": 0}', ("ce_relaycapture", b"no capture"))
            elif oversized and n == MESSAGES // 2:
                done.poison.append(f"poison-{n}")
                send(source, f"poison-{n}", rng.randbytes(oversized))
            send(source, f"m-{n}", b'{"n": %d}' % n)
            done.good.append(f"m-{n}")
            if rng.random() < 0.02:
                send(source, f"m-{n}", b'{"n": %d}' % n)
                done.repeats += 1
        producer.commit_transaction()
    return done


class Reader:
    """Reads a topic read_committed all the time, beside the kills."""

    def __init__(self, kafka: str, topic: str) -> None:
        self.seen: list[Any] = []
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": f"beside-{uuid4().hex}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.seen += [message for message in self._consumer.consume(1000, 0.1) if message.error() is None]


def kill_at_random(route: Route, rng: random.Random, count: Callable[[], int]) -> list[int]:
    """Kill one of two workers ten times, each time started again at once; return the count at each kill."""
    workers = [route.start(0), route.start(1)]
    wait_for(lambda: count() > 0, what="the first output")
    counts = []
    for n in range(KILLS):
        enough = count() + rng.randrange(200, 3000)
        if n % 2:  # anywhere, in a recovery too
            limit = time.monotonic() + rng.uniform(1, 10)
            while count() < enough and time.monotonic() < limit:
                time.sleep(0.005)
        else:
            wait_for(lambda enough=enough: count() >= enough, 60, what="deliveries between two kills")
        victim = rng.randrange(2)
        assert workers[victim].poll() is None, route.said(victim)
        workers[victim].kill()
        workers[victim].wait()
        counts.append(count())
        workers[victim] = route.start(victim)
    return counts


def finish(route: Route, count: Callable[[], int], written: Written) -> None:
    wait_for(lambda: count() >= len(written.good), 60, what="all output")
    route.stop()
    assert route.finish() == 0, route.said()


def assert_clean(route: Route, written: Written) -> None:
    (report,) = verify(load(route.path), ())
    assert report.ok, (report.sentence, report.offences)
    assert report.findings.dead_letters == len(written.poison)
    assert report.findings.delivered == len(written.good)


def assert_once_in_order(found: list[tuple[str, str]], written: Written) -> None:
    """``found`` are (source, id) in the order of each destination partition, or of the table."""
    assert sorted(identifier for _, identifier in found) == sorted(written.good)
    by_source: dict[str, list[int]] = {}
    for source, identifier in found:
        by_source.setdefault(source, []).append(int(identifier.removeprefix("m-")))
    assert len(by_source) == SOURCES
    assert all(numbers == sorted(numbers) for numbers in by_source.values())


@pytest.fixture
def routes() -> Iterator[list[Route]]:
    made: list[Route] = []
    yield made
    for route in made:
        route.stop()


def test_ten_kills_of_a_topic_route(
    tmp_path: Path, kafka: str, make_topic: Callable[..., str], routes: list[Route]
) -> None:
    log, out = make_topic(PARTITIONS, {"max.message.bytes": "3000000"}), make_topic(PARTITIONS)
    route = Route(tmp_path, kafka, log, f'{{ topic = "{out}" }}', BATCH)
    routes.append(route)
    rng = random.Random(SEED)
    written = write_log(kafka, log, rng, oversized=1_200_000)
    route.migrate()
    reader = Reader(kafka, out)
    try:
        counts = kill_at_random(route, rng, lambda: len(reader.seen))
        finish(route, lambda: len(reader.seen), written)
    finally:
        reader.close()

    assert counts[-1] < len(written.good), "the last kill must hit a route that still has work"
    assert len(set(counts)) >= KILLS // 2, "every second kill waits for deliveries"
    assert min(written.repeats, written.ghosts, len(written.poison)) > 5
    found = [(dict(m.headers())["ce_source"].decode(), dict(m.headers())["ce_id"].decode()) for m in reader.seen]
    assert_once_in_order(found, written)
    assert_clean(route, written)


def test_ten_kills_of_a_table_route(
    tmp_path: Path, kafka: str, postgres: str, make_topic: Callable[..., str], routes: list[Route]
) -> None:
    log = make_topic(PARTITIONS)
    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute("create table ledger (seen bigserial, id text not null, source text not null, n integer)")
    to = '{ table = "ledger", resource = "shop", columns = { id = "ce:id", source = "ce:source", n = "json:/n" } }'
    route = Route(tmp_path, kafka, log, to, f'{BATCH}\n[resources.shop]\nurl = "{postgres}"\n')
    routes.append(route)
    rng = random.Random(SEED)
    written = write_log(kafka, log, rng, oversized=0)
    route.migrate()
    with psycopg.connect(postgres, autocommit=True) as database:

        def count() -> int:
            row = database.execute("select count(*) from ledger").fetchone()
            assert row is not None
            return int(row[0])

        counts = kill_at_random(route, rng, count)
        finish(route, count, written)
        found = database.execute("select source, id from ledger order by seen").fetchall()

    assert counts[-1] < len(written.good), "the last kill must hit a route that still has work"
    assert len(set(counts)) >= KILLS // 2, "every second kill waits for deliveries"
    assert_once_in_order([(source, identifier) for source, identifier in found], written)
    assert_clean(route, written)

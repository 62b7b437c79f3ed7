"""Capture against an outbox with a poller: the same rows and message, 8 threads, in turns on the same machine.

Commits are counted without a reader; the time until they show is taken in turns of their own, with one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import quantiles
from typing import Any, Final

import psycopg

from relay.bench.peers import MARKER_KEY_BYTES, PARTITIONS, beside
from relay.capture.capture import Capture
from relay.kafka.settings import DefaultTiming
from relay.kafka.topics import TopicPlan, Topics
from relay.resources import open_resource
from relay.world import clock, schedule

THREADS: Final = 8
PAYLOAD: Final = b"x" * 256
TYPE: Final = "order.placed"
ROUNDS: Final = 3
WARM_UP_S: Final = 1.0
WARM_BROKER_S: Final = 40.0
"""A broker that was just started needs twice the processor time for a small request for its first minute (design section 12)."""
DRAIN_S: Final = 10.0

ORDER: Final = "insert into relay_bench_orders (thread, number) values (%s, %s)"
OUTBOX: Final = (
    "insert into relay_bench_outbox (topic, key, type, payload) values (%s, %s, %s, %s) returning id"
)

Commit = Callable[[int], bytes]
"""Makes one commit with the number given and returns the key under which it will show."""


class _Measured:
    """Commits and their times over all rounds of one side."""

    def __init__(self) -> None:
        self.commits = 0
        self.seconds = 0.0
        self.latencies_ms: list[float] = []

    @property
    def rate(self) -> float:
        return self.commits / self.seconds

    def percentile(self, percent: int) -> float:
        return quantiles(self.latencies_ms, n=100)[percent - 1]


def run(kafka: str, postgres: str, seconds: float) -> dict[str, Any]:
    """Measure for about ``seconds`` altogether and return the row that `relay bench` prints.

    The database at ``postgres`` gets the relay's tables and two of the benchmark, which are dropped again.
    """
    capture, outbox = _Measured(), _Measured()
    resource = open_resource("bench", postgres)
    resource.create_tables()
    with Topics({"bootstrap.servers": kafka}, DefaultTiming()) as topics, _tables(postgres):
        names = [f"relay-bench-{secrets.token_hex(4)}-{side}" for side in ("capture", "outbox")]
        topics.create([TopicPlan(name, PARTITIONS, 1) for name in names])
        try:
            _capture_round(kafka, postgres, names[0], WARM_BROKER_S, _Measured(), False)
            _outbox_round(kafka, postgres, names[1], WARM_UP_S, _Measured(), False)
            for _ in range(ROUNDS):
                for read in (False, True):
                    _capture_round(kafka, postgres, names[0], seconds / ROUNDS / 4, capture, read)
                    _outbox_round(kafka, postgres, names[1], seconds / ROUNDS / 4, outbox, read)
        finally:
            topics.delete(names)
    return {
        "name": "capture",
        "value": round(capture.rate, 1),
        "unit": "commits/s",
        "reference": round(outbox.rate, 1),
        "ratio": round(capture.rate / outbox.rate, 3),
        "visible_p50_ms": round(capture.percentile(50), 2),
        "visible_p99_ms": round(capture.percentile(99), 2),
        "reference_visible_p50_ms": round(outbox.percentile(50), 2),
        "reference_visible_p99_ms": round(outbox.percentile(99), 2),
    }


def _capture_round(
    kafka: str, postgres: str, topic: str, seconds: float, measured: _Measured, read: bool
) -> None:
    resource = open_resource("bench", postgres)
    with (
        Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/bench") as capture,
        _reader(kafka, topic, read) as seen,
    ):

        def side(thread: int) -> Commit:
            def commit(number: int) -> bytes:
                with capture.transaction() as tx:
                    tx.execute(ORDER, (thread, number))
                    tx.publish(topic, PAYLOAD, key=f"{thread}-{number}", type=TYPE)
                return tx.id

            return commit

        _drive(side, seconds, seen, measured)


def _outbox_round(
    kafka: str, postgres: str, topic: str, seconds: float, measured: _Measured, read: bool
) -> None:
    connections = [psycopg.connect(postgres, autocommit=True) for _ in range(THREADS)]

    def side(thread: int) -> Commit:
        connection = connections[thread]

        def commit(number: int) -> bytes:
            with connection.transaction():
                connection.execute(ORDER, (thread, number))
                row = connection.execute(OUTBOX, (topic, f"{thread}-{number}", TYPE, PAYLOAD)).fetchone()
            assert row is not None
            return int(row[0]).to_bytes(MARKER_KEY_BYTES, "big")

        return commit

    with _reader(kafka, topic, read) as seen, beside("poll", kafka, postgres):
        _drive(side, seconds, seen, measured)
    for connection in connections:
        connection.close()


def _drive(
    side: Callable[[int], Commit], seconds: float, seen: dict[bytes, float] | None, measured: _Measured
) -> None:
    """Commit on all threads for ``seconds`` after a warm-up, then wait until every commit has shown."""
    done: list[list[tuple[bytes, float]]] = [[] for _ in range(THREADS)]
    begun = clock.monotonic()
    count_from, until = begun + WARM_UP_S, begun + WARM_UP_S + seconds

    def work(thread: int) -> None:
        commit = side(thread)
        number = 0
        while (now := clock.monotonic()) < until:
            key = commit(number)
            number += 1
            if now >= count_from:
                done[thread].append((key, clock.monotonic()))

    threads = [schedule.start_thread(f"bench-{n}", lambda n=n: work(n)) for n in range(THREADS)]  # type: ignore[misc]
    for thread in threads:
        thread.join()
    commits = [pair for pairs in done for pair in pairs]
    if seen is None:
        measured.commits += len(commits)
        measured.seconds += seconds
        return
    deadline = clock.monotonic() + DRAIN_S
    while not all(key in seen for key, _ in commits) and clock.monotonic() < deadline:
        clock.sleep(0.05)
    missing = sum(key not in seen for key, _ in commits)
    if missing:
        raise RuntimeError(f"{missing} of {len(commits)} commits did not show within {DRAIN_S:g} s")
    measured.latencies_ms += [max(seen[key] - at, 0.0) * 1000 for key, at in commits]


def _reader(kafka: str, topic: str, read: bool) -> AbstractContextManager[dict[bytes, float] | None]:
    return beside("read", kafka, topic) if read else nullcontext()


@contextmanager
def _tables(postgres: str) -> Iterator[None]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("drop table if exists relay_bench_orders, relay_bench_outbox")
        connection.execute(
            "create table relay_bench_orders (id bigserial primary key, thread integer, number integer)"
        )
        connection.execute(
            "create table relay_bench_outbox (id bigserial primary key, topic text, key text, type text, "
            "created_at timestamptz not null default now(), payload bytea)"
        )
        try:
            yield
        finally:
            connection.execute("drop table relay_bench_orders, relay_bench_outbox")

"""Publisher ranges with a real broker and database: one run for what threads captured and aborted, on both routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay import Capture
from relay.message.errors import CaptureError
from relay.monitor.entries import decode
from relay.monitor.evidence import Evidence
from relay.monitor.ranges import RangeEntry, RangeKey, Ranges, decode_value
from relay.resources import open_resource
from tests.routes import Route, ids, publish, read_all, wait_for

THREADS, BLOCKS = 4, 30
PARTITIONS = 2
# The reference is looked at by COMMIT, when the messages are in the log already: such a capture's numbers end aborted.
ORDERS = "create table orders (id text primary key, parent text references orders deferrable initially deferred)"


@pytest.fixture(params=["topic", "table"])
def route(
    request: pytest.FixtureRequest, tmp_path: Path, kafka: str, postgres: str, make_topic: Callable[..., str]
) -> Iterator[Route]:
    with psycopg.connect(postgres) as connection:
        connection.execute(ORDERS)
        connection.execute("create table ledger (id text primary key)")
    to = '{ table = "ledger", resource = "shop", columns = { id = "ce:id" } }'
    if request.param == "topic":
        to = f'{{ topic = "{make_topic(PARTITIONS)}" }}'
    made = Route(tmp_path, kafka, make_topic(PARTITIONS), to)
    made.path.write_text(made.path.read_text() + f'\n[resources.shop]\nurl = "{postgres}"\n')
    made.migrate()
    yield made
    made.stop()


def capture_in_threads(route: Route, postgres: str, source: str) -> tuple[str, int]:
    """Capture from several threads, every third block aborted at its COMMIT; return incarnation and messages shown."""
    with Capture(kafka={"bootstrap.servers": route.kafka}, resource=open_resource("shop", postgres), source=source) as made:

        def blocks(thread: int) -> int:
            shown = 0
            for n in range(BLOCKS):
                name = f"{source}-{thread}-{n}"
                try:
                    with made.transaction() as tx:
                        tx.execute("insert into orders values (%s, %s)", [name, "nobody" if n % 3 == 0 else None])
                        tx.publish(route.log, {"n": n}, id=f"{name}-a", partition=0)
                        tx.publish(route.log, {"n": n}, id=f"{name}-b", partition=n % PARTITIONS)
                    shown += 2
                except CaptureError:
                    assert n % 3 == 0
            return shown

        with ThreadPoolExecutor(THREADS) as pool:
            shown = sum(pool.map(blocks, range(THREADS)))
        wait_for(lambda: made.backlog == 0, what="the markers")
        return made._publisher.incarnation, shown


def runs_in_monitor(route: Route) -> dict[tuple[int, RangeKey], list[int]]:
    folds: dict[int, tuple[Ranges, Evidence]] = {}
    keys: dict[tuple[int, RangeKey], None] = {}
    for record in read_all(route.kafka, f"{route.name}.main.monitor", PARTITIONS):
        _ranges, fold = folds.setdefault(record.partition(), _fold())
        entry = decode(record.key(), record.value())
        if isinstance(entry, RangeEntry):
            keys[record.partition(), entry.key] = None
        if entry is not None:
            fold.add(record.offset(), entry)
    return {
        (partition, key): entry.closed
        for partition, key in keys
        for entry in folds[partition][0].entries({key: None}, worker="", instance=bytes(16), n=0)
    }


def _fold() -> tuple[Ranges, Evidence]:
    ranges = Ranges()
    return ranges, Evidence(on_range=ranges.restore, on_closing=ranges.restore_closing)


def runs_in_table(postgres: str) -> dict[tuple[int, RangeKey], list[int]]:
    with psycopg.connect(postgres) as connection:
        rows = connection.execute("select partition, state from relay_range").fetchall()
    entries = [(partition, decode_value(state)) for partition, state in rows]
    return {(partition, one.key): one.closed for partition, one in entries if one.key.incarnation}  # else an anchor's


def delivered(route: Route, postgres: str) -> list[str]:
    if '"ledger"' not in route.path.read_text():
        out = route.path.read_text().partition('to = { topic = "')[2].partition('"')[0]
        return ids(read_all(route.kafka, out, PARTITIONS))
    with psycopg.connect(postgres) as connection:
        return [row[0] for row in connection.execute("select id from ledger").fetchall()]


def test_threads_aborts_and_restarts_leave_one_run_for_each_incarnation(route: Route, postgres: str) -> None:
    first, shown = capture_in_threads(route, postgres, "/shop")
    assert route.finish() == 0, route.said()
    second, more = capture_in_threads(route, postgres, "/shop/again")
    records = {tuple(m.headers()): m for m in read_all(route.kafka, route.log, PARTITIONS)}
    (victim,) = [m for h, m in records.items() if dict(h).get("ce_id") == b"/shop-0-1-a"]
    publish(route.kafka, route.log, [(0, victim.headers(), victim.value()), (0, _renamed(victim), victim.value())])
    assert route.finish() == 0, route.said()

    found = delivered(route, postgres)
    assert len(found) == len(set(found)) == shown + more
    table = '"ledger"' in route.path.read_text()
    runs = runs_in_table(postgres) if table else runs_in_monitor(route)
    numbers = {(p, k.incarnation.decode()): closed for (p, k), closed in runs.items()}
    assert set(numbers) == {(p, i) for p in range(PARTITIONS) for i in (first, second)}
    for closed in numbers.values():
        assert len(closed) == 2, "aborted numbers are closed too"
        assert closed[0] == 1
    assert sum(closed[1] for closed in numbers.values()) == 2 * 2 * THREADS * BLOCKS
    dead = read_all(route.kafka, f"{route.name}.deadletter", 1)
    assert [dict(m.headers())["ce_id"] for m in dead] == [b"a stranger's"]


def _renamed(record: Any) -> list[tuple[str, bytes]]:
    return [(name, b"a stranger's" if name == "ce_id" else value) for name, value in record.headers()]

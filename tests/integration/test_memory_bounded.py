"""Memory stays bounded while a destination makes a worker wait, however large the messages in the log are."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.routes import Route, ce, publish, wait_for

LARGE = 900_000
COUNT = 700
SMALL = 500


def resident_mb(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


@pytest.mark.slow
def test_a_locked_table_does_not_fill_the_memory_with_large_messages(
    tmp_path: Path, kafka: str, postgres: str, make_topic: Callable[..., str]
) -> None:
    to = '{ table = "ledger", resource = "shop", columns = { id = "ce:id" } }'
    route = Route(tmp_path, kafka, make_topic(1), to)
    route.path.write_text(route.path.read_text() + f'\n[resources.shop]\nurl = "{postgres}"\n')
    with psycopg.connect(postgres) as connection:
        connection.execute("create table ledger (id text primary key)")
    route.migrate()
    worker = route.start()
    try:
        publish(kafka, route.log, [(0, ce("/s", f"m-{n}"), b"v") for n in range(100)])
        with psycopg.connect(postgres) as locking:
            wait_for(lambda: _rows(postgres) == 100, what="the small messages")
            before = resident_mb(worker.pid)
            locking.execute("lock table ledger in access exclusive mode")
            for first in range(100, 100 + SMALL, 100):  # batches under way: what follows them is only read
                publish(kafka, route.log, [(0, ce("/s", f"m-{n}"), b"v") for n in range(first, first + 100)])
                time.sleep(0.5)
            for first in range(0, COUNT, 100):
                publish(kafka, route.log, [(0, ce("/s", f"l-{n}"), b"v" * LARGE) for n in range(first, first + 100)])
            seen = []
            for _ in range(60):
                seen.append(resident_mb(worker.pid))
                time.sleep(0.2)
        # Two batches under way and two ready at 16 MB each, and the client's own queue.
        assert max(seen) - before < 350, f"{before} MB before, {max(seen)} MB of {COUNT * LARGE // 1_000_000} in the log"
        wait_for(lambda: _rows(postgres) == 100 + SMALL + COUNT, what="all messages")
    finally:
        route.stop()


def _rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute("select count(*) from ledger").fetchone()
        return int(found[0]) if found else 0

"""A message costs the same however many journalled ones lie in the queue: 10 million by night, on both databases."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest

from relay.bench.queue import bench_settings, lent_database
from relay.queue.stores import open_store
from relay.queue.stores.sql_schema import create
from tests.benchmarks.journalled_queue import costs_of_cycles, fill_postgresql, fill_sqlite

JOURNALLED = 10_000_000
FEWER = 2_000_000
"""Whatever goes through them all, or grows with them, costs thousands of messages' time by these already."""
TURNS = 40


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("journalled", [FEWER, pytest.param(JOURNALLED, marks=pytest.mark.nightly)])
def test_a_message_in_sqlite_costs_no_more_with_millions_journalled(tmp_path: Path, journalled: int) -> None:
    full = open_store(bench_settings(), "sqlite:///full.db", state=tmp_path)
    filling = sqlite3.connect(tmp_path / "full.db", isolation_level=None)
    filling.execute("pragma synchronous = off")
    fill_sqlite(filling, journalled)
    filling.execute("pragma wal_checkpoint(truncate)")
    filling.close()
    empty = open_store(bench_settings(), "sqlite:///empty.db", state=tmp_path)

    cost, reference = costs_of_cycles([full, empty], TURNS)

    full.close()
    empty.close()
    (tmp_path / "full.db").unlink()
    assert cost <= 1.3 * reference, f"{cost * 1e6:.1f} us instead of {reference * 1e6:.1f}"


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_a_message_in_postgresql_costs_no_more_with_ten_million_journalled(postgres: str) -> None:
    with lent_database(postgres) as other, psycopg.connect(other) as connection:
        create(connection)
        connection.commit()
        with psycopg.connect(postgres, autocommit=True) as filling:
            create(filling)
            full = open_store(bench_settings(), postgres)
            fill_postgresql(filling, JOURNALLED)
            filling.execute("vacuum analyze")
            filling.execute("checkpoint")
        empty = open_store(bench_settings(), other)

        cost, reference = costs_of_cycles([full, empty], TURNS)

        full.close()
        empty.close()
    assert cost <= 1.3 * reference, f"{cost * 1e6:.1f} us instead of {reference * 1e6:.1f}"

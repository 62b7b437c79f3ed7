"""Topic to PostgreSQL table, exactly once with inbox and monitor, against the loop that one writes by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, LiteralString
from uuid import uuid4

import psycopg
from psycopg import sql

from relay.bench.pace import pace
from relay.bench.turns import PARTITIONS, PLAIN, RELAY, in_turns, lent_topic, relay_pace, row
from relay.config.timing import Timing
from relay.kafka.plain.table_loop import fill, reference_loop
from relay.kafka.topics import Topics

__all__ = ["reference_loop", "run"]

COLUMNS: Final = 'id = "ce:id", customer = "json:/customer", total = "json:/total"'
SAMPLE_ROWS: Final = 50_000
SAMPLE: Final = """
insert into ledger select gen_random_uuid()::text, 'customer-' || to_char(i %% 1000, 'FM000'), 1000000 + i
from generate_series(1, %s) i
"""
PAGES: Final = "select pg_relation_size('ledger') / 8192"
STILL: Final = 5
"""Samples without a new page after which the rows are counted: it may be the end."""
ESTIMATED: Final = 0.93
"""Up to this part of the run rows are estimated; the measured part ends before."""


def run(kafka: str, postgres: str, messages: int = 600_000, rounds: int = 2) -> dict[str, Any]:
    """Measure in turns on one log of ``messages`` JSON records of 256 bytes; return the row of `relay bench`.

    Each turn has a database of its own at ``postgres``, which is dropped again.
    """
    topics = Topics({"bootstrap.servers": kafka}, Timing())
    with lent_topic(topics, "log") as log:
        fill(kafka, log, PARTITIONS, messages)

        def plain() -> float:
            with _database(postgres) as url, psycopg.connect(url, autocommit=True) as connection:
                command = [sys.executable, "-m", "relay.kafka.plain.table_loop", kafka, url, log, str(messages)]
                return pace(command, _filled(connection, messages), messages)

        def relay() -> float:
            with _database(postgres) as url, psycopg.connect(url, autocommit=True) as connection:
                filled = _filled(connection, messages)
                return relay_pace(topics, kafka, lambda directory: _route(directory, url, log), filled, messages)

        return row("table", in_turns({PLAIN: plain, RELAY: relay}, rounds))


@contextmanager
def _database(postgres: str) -> Iterator[str]:
    """Lend the URL of a fresh database with the table."""
    name = f"bench_{uuid4().hex[:8]}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            url = postgres.rpartition("/")[0] + f"/{name}"
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("create table ledger (id text primary key, customer text, total bigint)")
            admin.execute("checkpoint")  # the other side's dirty pages are not this one's to write
            yield url
        finally:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def _route(directory: Path, url: str, log: str) -> str:
    secret = directory / "url"
    secret.touch(mode=0o600)
    secret.write_text(url)
    return (
        f'[resources.shop]\nurl = "${{file:{secret}}}"\n[routes.bench]\nfrom = ["{log}"]\n'
        f'to = {{ table = "ledger", resource = "shop", columns = {{ {COLUMNS} }} }}\n'
    )


def _filled(connection: psycopg.Connection[Any], total: int) -> Callable[[], int]:
    """Return what says how many rows there are: by pages for most of the run, since counting would slow it down.

    Rows have one width, so that pages tell their number; pages are given out ahead of the rows, on both sides.
    """

    def ask(query: LiteralString) -> int:
        row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])

    connection.execute(SAMPLE, [SAMPLE_ROWS])
    rows_per_page = SAMPLE_ROWS / ask(PAGES)
    connection.execute("truncate ledger")
    last = [-1] * STILL

    def filled() -> int:
        last.append(ask(PAGES))
        estimate = int(last[-1] * rows_per_page)
        if len(set(last[-STILL:])) > 1 and estimate < ESTIMATED * total:
            return estimate
        return ask("select count(*) from ledger")

    return filled

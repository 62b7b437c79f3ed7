"""An address that leads to a pooler, as PgBouncer's with a session for each client or for each transaction, or to what only reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.config.loading import load
from relay.delivery.table.postgresql.cursor import PostgresqlCursor
from relay.delivery.table.verdicts import TablePlan
from relay.message.errors import ConfigError
from relay.queue.message import Audience, Group
from relay.queue.settings import QueueSettings
from relay.queue.stores import open_store
from relay.queue.stores.sql_schema import create
from relay.resources.postgresql import PostgresqlResource
from relay.resources.schema import statements
from relay.setup.check import check_resources
from relay.setup.check_topics import Findings
from tests.contracts.table_databases import COLUMNS, LEDGER, P0, TOPIC_ID, message, outcomes
from tests.poolers import Pooler

SHARED = "another session"
QUEUE = QueueSettings("work", Audience((Group("all", ("all",)),)))


@pytest.fixture
def database(postgres: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        for statement in (*statements("postgresql"), LEDGER, "create table refunds (like ledger including all)"):
            connection.execute(statement.encode())
        create(connection)
        yield connection


def to_table(url: str, route: str, table: str) -> PostgresqlCursor:
    plan = TablePlan(relay="shop", route=route, resource="shop", table=table, mode="upsert", columns=COLUMNS, key=("id",))
    return PostgresqlCursor(url, plan)


def deliver_twice_at_once(url: str) -> None:
    """Two routes as two workers of them would, in turn: each in its own session, if it has one."""
    routes = {name: to_table(url, name, name) for name in ("ledger", "refunds")}
    for cursor in routes.values():
        cursor.claim({P0: TOPIC_ID})
    for n in range(10):
        for name, cursor in routes.items():
            assert outcomes(cursor.deliver({P0: n + 1}, cursor.prepare([message(n, name=f"{name}-{n}")]))) == [0]
    for cursor in routes.values():
        cursor.close()


def test_rows_do_not_go_into_another_routes_table(postgres: str, database: psycopg.Connection[tuple[Any, ...]]) -> None:
    with Pooler(postgres, shared=True) as pooler, pytest.raises(ConfigError, match=SHARED):
        deliver_twice_at_once(pooler.url)
    for table in ("ledger", "refunds"):
        strangers = f"select count(*) from {table} where id not like '{table}-%'"
        assert database.execute(strangers.encode()).fetchone() == (0,)


@pytest.mark.parametrize(
    "opened",
    [
        lambda url: PostgresqlResource("shop", url, 1.0).session(),
        lambda url: PostgresqlResource("shop", url, 1.0).decisions(),
        lambda url: PostgresqlResource("shop", url, 1.0).create_tables(),
        lambda url: PostgresqlResource("shop", url, 1.0).connect(),
        lambda url: open_store(QUEUE, url),
    ],
    ids=["capture", "resolver", "migrate", "handler", "queue"],
)
@pytest.mark.usefixtures("database")
def test_a_session_that_is_shared_is_refused_and_nothing_is_left_in_it(postgres: str, opened: Callable[[str], object]) -> None:
    with Pooler(postgres, shared=True) as pooler:
        with pytest.raises(ConfigError, match=SHARED):
            opened(pooler.url)
        left = [session for session in pooler.sessions if not session.closed]
        assert left
        for session in left:
            assert session.execute("select count(*) from pg_settings where source = 'session'").fetchone() == (0,)


@pytest.mark.parametrize("free", [1, 2, 3, 20])
@pytest.mark.parametrize("in_turn", [False, True])
def test_it_is_found_out_whichever_session_a_pooler_gives(postgres: str, free: int, in_turn: bool) -> None:
    with Pooler(postgres, shared=True, in_turn=in_turn, free=free) as pooler, pytest.raises(ConfigError, match=SHARED):
        PostgresqlResource("shop", pooler.url, 1.0).connect()


def test_a_pooler_that_keeps_a_session_for_each_client_does(postgres: str, database: psycopg.Connection[tuple[Any, ...]]) -> None:
    with Pooler(postgres, shared=False) as pooler:
        deliver_twice_at_once(pooler.url)
        PostgresqlResource("shop", pooler.url, 1.0).session().close()
        open_store(QUEUE, pooler.url).close()
    assert database.execute("select (select count(*) from ledger), (select count(*) from refunds)").fetchone() == (10, 10)


def checked(url: str, directory: Path) -> Findings:
    file = directory / "relay.toml"
    file.write_text(
        '[relay]\nname = "shop"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
        f'[resources.shop]\nurl = "{url}"\n'
    )
    findings = Findings()
    check_resources(load(file), findings)
    return findings


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("shared", [True, False])
def test_a_check_names_it(postgres: str, tmp_path: Path, shared: bool) -> None:
    with Pooler(postgres, shared=shared) as pooler:
        findings = checked(pooler.url, tmp_path)
        assert findings.unreachable == []
        assert [fault.key for fault in findings.faults] == (["resources.shop"] if shared else [])
        assert all(SHARED in fault.problem and "pool_mode = session" in fault.remedy for fault in findings.faults)


@pytest.mark.usefixtures("database")
def test_a_check_names_a_database_that_only_reads(postgres: str, tmp_path: Path) -> None:
    findings = checked(f"{postgres}?options=-cdefault_transaction_read_only%3Don", tmp_path)
    assert [(fault.key, fault.value) for fault in findings.faults] == [("resources.shop", "default_transaction_read_only = on")]

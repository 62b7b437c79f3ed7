"""A database that says nothing about characters (SQL_ASCII), of which the driver returns bytes for text unless it is told otherwise."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from relay.audit.tables import open_store
from relay.config.model import RelayConfig, ResourceConfig, TableDestination
from relay.control.queue_cursor_copy import copy_cursors
from relay.resources import open_resource
from relay.run.queues import queue_of
from relay.setup.check_table import judge_own_tables, judge_table, look_at
from relay.setup.check_topics import Findings
from relay.setup.migrate import _grant
from relay.setup.queue_tables import create_tables
from tests.integration.conftest import url_of
from tests.integration.test_queue_cursor_copy_back import written

TOPIC = bytes(range(16))


@pytest.fixture
def plain(postgres: str) -> Iterator[str]:
    name = f"ascii_{secrets.token_hex(4)}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(sql.SQL("create database {} encoding 'SQL_ASCII' locale 'C' template template0").format(sql.Identifier(name)))
        url = postgres.rpartition("/")[0] + f"/{name}"
        open_resource("shop", url).create_tables()
        yield url
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def test_positions_of_a_queue_that_moves_into_a_file_are_found_there(tmp_path: Path, plain: str) -> None:
    config: RelayConfig = written(tmp_path, plain, "shop")
    target = f"sqlite:///{tmp_path}/new.db"
    create_tables(config, queue_of(config, "credit"), target)
    with psycopg.connect(plain) as old:
        old.execute(
            "insert into relay_position (relay, route, topic_id, topic, partition, position, epoch, worker) values ('shop', 'main', %s, 'orders', 0, 7, 1, 'w')",
            (TOPIC,),
        )

    assert copy_cursors(config, "credit", target) == 1

    with closing(sqlite3.connect(tmp_path / "new.db")) as new:
        found = new.execute("select topic, position from relay_position where relay = 'shop' and route = 'main'").fetchall()
    assert found == [("orders", 7)]


def test_it_is_checked_and_audited_as_any_other(plain: str) -> None:
    with psycopg.connect(plain) as database:
        database.execute("create table ledger (id text primary key, total integer not null)")
        database.execute("insert into ledger values ('42', 1999), (convert_from(%s, 'SQL_ASCII'), 1)", (b"caf\xe9",))
    resource = ResourceConfig.model_validate({"url": plain})
    to = TableDestination.model_validate({"table": "ledger", "resource": "shop", "columns": {"id": "ce:id", "total": "json:/total"}})
    findings = Findings()

    judge_own_tables("shop", resource, findings)
    judge_table(to, look_at("shop", resource, "ledger"), "routes.main.to", findings)

    assert findings.faults == []
    with closing(open_store("shop", resource)) as store:
        assert list(store.rows("ledger", ["id", "total"])) == [("42", "1999"), ("caf\ufffd", "1")]
        assert len(store.uuid()) == 36


def test_a_workers_role_gets_its_rights(tmp_path: Path, worker_role: str, plain: str) -> None:
    config = written(tmp_path, url_of(plain, worker_role), "shop", f'migrate_url = "{plain}"\n')

    _grant("shop", config.resources["shop"])
    create_tables(config, queue_of(config, "credit"), "shop")

    with psycopg.connect(plain) as database:
        tables = ("relay_queue_message", "relay_inbox")
        assert all(
            database.execute("select has_table_privilege(%s, %s, 'insert')", (worker_role, table)).fetchone() == (True,) for table in tables
        )

"""`relay check --connect` against a real broker and real databases."""

from __future__ import annotations

import json
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo
from typer.testing import CliRunner

from relay.cli.main import app
from relay.config.model import ResourceConfig, TableDestination
from relay.config.timing import Timing
from relay.kafka.topics import Topics
from relay.local.jars import KAFKA_VERSION
from relay.setup.check_table import judge_table, look_at
from relay.setup.check_topics import Findings
from tests.integration.conftest import url_of
from tests.routes import wait_for

MakeTopic = Callable[..., str]
runner = CliRunner()


@pytest.fixture
def relay_name(kafka: str) -> Iterator[str]:
    name = f"c{secrets.token_hex(4)}"
    yield name
    topics = Topics({"bootstrap.servers": kafka}, Timing())
    owned = [f"{name}.{rest}" for rest in ("r.monitor", "t.monitor", "deadletter", "control")]
    topics.delete(list(topics.describe(owned, settings=False)))


@pytest.fixture
def write(kafka: str, relay_name: str, tmp_path: Path) -> Callable[[str], str]:
    def write_config(rest: str) -> str:
        path = tmp_path / "relay.toml"
        path.write_text(
            f'[relay]\nname = "{relay_name}"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "{kafka}"\n{rest}'
        )
        return str(path)

    return write_config


def check(config: str) -> tuple[int, dict[str, Any]]:
    result = runner.invoke(app, ["check", config, "--connect", "--json"])
    return result.exit_code, json.loads(result.stdout)


def keys(report: dict[str, Any]) -> set[str]:
    return {fault["key"] for fault in report["faults"]}


def test_before_and_after_migrate(
    postgres: str, make_topic: MakeTopic, write: Callable[[str], str], relay_name: str
) -> None:
    log, output = make_topic(2), make_topic(2)
    with psycopg.connect(postgres) as connection:
        connection.execute("create table ledger (id text primary key, total int)")
    config = write(
        f'[resources.shop]\nurl = "{postgres}"\n'
        f'[routes.r]\nfrom = ["{log}"]\nto = {{ topic = "{output}" }}\n'
        f'[routes.t]\nfrom = ["{log}"]\nto = {{ table = "ledger", resource = "shop", mode = "upsert", key = ["id"], '
        'columns = { id = "ce:id", total = "json:/total" } }\n'
    )

    before_code, before = check(config)
    migrated = runner.invoke(app, ["migrate", config])
    after_code, after = check(config)

    assert before_code == 1
    assert keys(before) == {
        f"topic {relay_name}.r.monitor",
        f"topic {relay_name}.t.monitor",
        f"topic {relay_name}.deadletter",
        f"topic {relay_name}.control",
        f"topic {relay_name}.inquiries",
        f"topic {relay_name}.decisions",
        "resources.shop",
    }
    assert migrated.exit_code == 0, migrated.output
    assert (after_code, after["faults"]) == (0, [])
    assert after["checked"] == ["configuration", "1 broker", "8 topics", "resource shop"]
    assert any("no synchronous standby" in note for note in after["notes"])
    version = os.environ.get("RELAY_KAFKA_VERSION", KAFKA_VERSION)
    assert any("is of 3.6" in note for note in after["notes"]) is version.startswith("3.6.")


def test_topics_that_would_break_the_guarantee(
    make_topic: MakeTopic, write: Callable[[str], str], relay_name: str
) -> None:
    compacted = make_topic(2, config={"cleanup.policy": "compact"})
    other = make_topic(3)
    config = write(f'[routes.r]\nfrom = ["{compacted}", "{other}"]\nto = {{ topic = "no-such-topic" }}\n')
    assert runner.invoke(app, ["migrate", config]).exit_code == 0

    code, report = check(config)

    assert code == 1
    assert keys(report) == {f"topic {compacted} cleanup.policy", "routes.r.from", "routes.r.to.topic"}


def test_evidence_that_would_go_by_size_is_a_fault_until_it_is_migrated(
    kafka: str, make_topic: MakeTopic, write: Callable[[str], str], relay_name: str
) -> None:
    config = write(f'[routes.r]\nfrom = ["{make_topic(1)}"]\nto = {{ topic = "{make_topic(1)}" }}\n')
    monitor = f"{relay_name}.r.monitor"
    defaults = {"retention.bytes": str(10 * 1024**3), "unclean.leader.election.enable": "true"}
    assert runner.invoke(app, ["migrate", config]).exit_code == 0
    with Topics({"bootstrap.servers": kafka}, Timing()) as topics:
        topics.alter(monitor, defaults)
        wait_for(lambda: defaults.items() <= topics.describe([monitor])[monitor].settings.items(), what="the broker's new settings")

    code, report = check(config)
    assert runner.invoke(app, ["migrate", config]).exit_code == 0

    assert code == 1
    assert keys(report) == {f"topic {monitor} {setting}" for setting in defaults}
    assert check(config)[0] == 0


def test_tables_that_do_not_take_what_the_route_writes(
    postgres: str, make_topic: MakeTopic, write: Callable[[str], str]
) -> None:
    log = make_topic(1)
    with psycopg.connect(postgres) as connection:
        connection.execute("create table ledger (id text, total int, place text not null)")
    route = (
        f'[routes.t]\nfrom = ["{log}"]\nto = {{ table = "ledger", resource = "shop", mode = "upsert", key = ["id"], '
        'columns = { id = "ce:id", amount = "json:/total" } }\n'
    )
    config = write(f'[resources.shop]\nurl = "{postgres}"\n{route}')
    assert runner.invoke(app, ["migrate", config]).exit_code == 0

    code, report = check(config)
    with psycopg.connect(postgres) as connection:
        connection.execute("drop table ledger")
    gone_code, gone = check(config)

    assert code == gone_code == 1
    assert keys(report) == {"routes.t.to.columns.amount", "routes.t.to.columns", "routes.t.to.key"}
    assert keys(gone) == {"routes.t.to.table"}


@pytest.mark.parametrize(
    ("ddl", "name", "remedy"),
    [
        ("create unlogged table ledger (id text, total int)", "ledger", "alter table ledger set logged"),
        (("create table ledger (id text, total int) partition by hash (id);"
         "create table half partition of ledger for values with (modulus 2, remainder 0);"
         'create unlogged table "Other" partition of ledger for values with (modulus 2, remainder 1)'),
         '"Other"', 'alter table "Other" set logged'),
        (("create foreign data wrapper far; create server far foreign data wrapper far;"
         "create foreign table ledger (id text, total int) server far"), "ledger", "a table of this database"),
    ],
    ids=["unlogged", "partition", "foreign"],
)
def test_a_table_whose_rows_may_be_gone_when_the_inbox_is_not(
    postgres: str, make_topic: MakeTopic, write: Callable[[str], str], ddl: str, name: str, remedy: str
) -> None:
    log = make_topic(1)
    with psycopg.connect(postgres) as connection:
        connection.execute(ddl.encode())
    route = (
        f'[routes.t]\nfrom = ["{log}"]\nto = {{ table = "ledger", resource = "shop", '
        'columns = { id = "ce:id", total = "json:/total" } }\n'
    )
    config = write(f'[resources.shop]\nurl = "{postgres}"\n{route}')
    assert runner.invoke(app, ["migrate", config]).exit_code == 0

    code, report = check(config)

    assert (code, keys(report)) == (1, {"routes.t.to.table"})
    (fault,) = report["faults"]
    assert name in fault["problem"]
    assert remedy in fault["remedy"]


def judged(postgres: str, ddl: str, role: str | None = None, /, **to: Any) -> set[str]:
    """Make a table and return which keys of a destination are at fault with it."""
    with psycopg.connect(postgres) as connection:
        connection.execute(ddl.encode())
    findings = Findings()
    destination = TableDestination(table="ledger", resource="shop", columns={"id": "ce:id", "total": "json:/total"}, **to)
    facts = look_at("shop", ResourceConfig.model_validate({"url": role or postgres}), "ledger")
    judge_table(destination, facts, "to", findings)
    return {fault.key for fault in findings.faults}


@pytest.mark.parametrize(
    "ddl",
    [
        "create domain place as text default 'here'; create table ledger (id text, total int, place place not null)",
        ("create table ledger (id text, total int, place text not null); create function placed() returns trigger language plpgsql "
         "as $$ begin new.place := 'here'; return new; end $$; "
         "create trigger placed before insert on ledger for each row execute function placed()"),
    ],
    ids=["domain", "trigger"],
)
def test_a_column_that_a_domain_or_a_trigger_gives_its_value_need_not_be_mapped(postgres: str, ddl: str) -> None:
    assert judged(postgres, ddl) == set()


GENERATED = "create table ledger (id text primary key, total int generated always as (1) stored)"
NUMBERED = "create table ledger (id text primary key, total int generated always as identity)"


@pytest.mark.parametrize(
    ("ddl", "to", "faults"),
    [
        (GENERATED, {}, {"to.columns.total"}),
        (GENERATED, {"mode": "upsert", "key": ["id"]}, {"to.columns.total"}),
        (NUMBERED, {"mode": "upsert", "key": ["id"]}, {"to.columns.total"}),
        (NUMBERED, {}, set()),  # COPY takes the value that is given
    ],
)
def test_a_column_that_takes_no_value_is_not_mapped(postgres: str, ddl: str, to: dict[str, Any], faults: set[str]) -> None:
    assert judged(postgres, ddl, **to) == faults


def test_an_upsert_reads_the_columns_that_it_updates(postgres: str, worker_role: str) -> None:
    role, upsert = url_of(postgres, worker_role), {"mode": "upsert", "key": ["id"]}
    made = f"create table ledger (id text primary key, total int); grant insert, update, select (id) on ledger to {worker_role}"

    assert judged(postgres, made, role, **upsert) == {"to.columns.total"}
    assert judged(postgres, f"grant select (total) on ledger to {worker_role}", role, **upsert) == set()


def test_a_default_of_a_sequence_takes_the_right_to_use_that(postgres: str, worker_role: str) -> None:
    role, made = url_of(postgres, worker_role), "create table ledger (line bigserial, id text, total int); grant insert on ledger to "
    grant = "grant usage on sequence ledger_line_seq to "

    assert judged(postgres, made + worker_role, role) == {"to.columns"}
    assert judged(postgres, grant + worker_role, role) == set()


@pytest.mark.parametrize(
    ("view", "faults"),
    [
        ("view ledger as select id, total from book", set()),
        ("view ledger as select distinct id, total from book", {"to.table"}),
        ("materialized view ledger as select id, total from book", {"to.table"}),
    ],
)
def test_a_view_that_takes_no_rows_is_a_fault(postgres: str, view: str, faults: set[str]) -> None:
    assert judged(postgres, f"create table book (id text primary key, total int); create {view}") == faults


def test_sqlite(make_topic: MakeTopic, write: Callable[[str], str], tmp_path: Path) -> None:
    log = make_topic(1)
    route = (
        f'[routes.t]\nfrom = ["{log}"]\nto = {{ table = "ledger", resource = "shop", '
        'columns = { id = "ce:id", total = "json:/total" } }\n'
    )
    config = write(f'[resources.shop]\nurl = "sqlite:///shop.db"\n{route}')

    absent_code, absent = check(config)
    assert runner.invoke(app, ["migrate", config]).exit_code == 0
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute(
            "create table ledger (id text primary key, total int, note text not null default '')"
        )
    connection.close()
    code, report = check(config)

    assert absent_code == 1
    assert {"resources.shop", "routes.t.to.table"} <= keys(absent)
    assert (code, report["faults"]) == (0, [])


def test_a_database_that_is_away_is_unreachable_and_shows_no_password(write: Callable[[str], str]) -> None:
    config = write('[resources.shop]\nurl = "postgresql://bob:c4n4ry@127.0.0.1:1/shop"\n')

    code, report = check(config)

    assert code == 3
    assert "127.0.0.1:1/shop: no answer" in report["unreachable"][0]
    assert "start it, or correct the address" in report["unreachable"][0]
    assert "c4n4ry" not in json.dumps(report)


def test_an_address_that_cannot_be_tried_is_to_be_corrected_and_not_started(write: Callable[[str], str]) -> None:
    code, report = check(write('[resources.shop]\nurl = "postgresql://bob@127.0.0.1:1/shop?sslmode=banana"\n'))

    assert code == 3
    assert report["unreachable"][0].endswith('(connection is bad: invalid sslmode value: "banana"); correct the address')


def test_a_database_that_refuses_the_login_is_not_told_to_be_at_another_address(
    postgres: str, write: Callable[[str], str]
) -> None:
    url = conninfo.conninfo_to_dict(postgres)
    code, report = check(write(f'[resources.shop]\nurl = "postgresql://nobody:x@{url["host"]}:{url["port"]}/shop"\n'))

    assert code == 3
    assert report["unreachable"][0].endswith("correct what it names (user, password, database), or look at the server's log")


def test_a_table_in_a_schema_that_the_role_may_not_use_is_a_fault_with_its_remedy(
    postgres: str, worker_role: str, write: Callable[[str], str]
) -> None:
    with psycopg.connect(postgres) as admin:
        admin.execute("create schema books")
        admin.execute("create table books.ledger (id text primary key)")

    code, report = check(
        write(
            f'[resources.shop]\nurl = "{url_of(postgres, worker_role)}"\n[routes.t]\nfrom = ["orders"]\n'
            'to = { table = "books.ledger", resource = "shop", columns = { id = "ce:id" } }\n'
        )
    )

    (fault,) = (fault for fault in report["faults"] if fault["key"] == "routes.t.to.table")
    assert "let the role see its schema" in fault["remedy"]
    assert code == 1


def test_a_queues_tables_that_are_missing_or_not_granted_are_faults(
    postgres: str, make_topic: MakeTopic, write: Callable[[str], str], relay_name: str
) -> None:
    """Workers need no DDL: their role is another one than the owner of the tables, and what it lacks must be said."""
    role = f"weak_{relay_name}"
    log = make_topic(1)
    route = f'[routes.r]\nfrom = ["{log}"]\nto = {{ topic = "{make_topic(1)}" }}\n'
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"create role {role} login password 'weak'")
    try:
        owned = f'[resources.shop]\nurl = "{postgres}"\n{route}'
        assert runner.invoke(app, ["migrate", write(owned)]).exit_code == 0
        queue = '[queues.mail]\nstore = "shop"\nsubscribers = { sender = {} }\n'

        code, report = check(write(owned + queue))
        assert (code, keys(report)) == (1, {"queues.mail.store"})
        assert "relay migrate" in report["faults"][0]["remedy"]

        assert runner.invoke(app, ["migrate", write(owned + queue)]).exit_code == 0
        weaker = re.sub(r"//[^@/]*@", f"//{role}:weak@", postgres)
        weak = write(f'[resources.shop]\nurl = "{weaker}"\n{route}{queue}')
        code, report = check(weak)
        assert code == 1
        (fault,) = [fault for fault in report["faults"] if fault["key"] == "queues.mail.store"]
        assert "permission denied for table relay_queue" in fault["problem"]
        assert "grant select, insert, update and delete" in fault["remedy"]
        listed = runner.invoke(app, ["message", "list", weak, "mail"])
        assert listed.exit_code == 2
        assert "grant" in listed.stderr
    finally:
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"drop role {role}")


def test_before_the_first_migrate_a_queue_does_not_make_the_broker_look_away(
    make_topic: MakeTopic, write: Callable[[str], str], relay_name: str, tmp_path: Path
) -> None:
    queue = f'[queues.mail]\nstore = "sqlite:///{tmp_path}/mail.db"\nsubscribers = {{ sender = {{}} }}\n'
    started = time.monotonic()

    code, report = check(write(f'[routes.r]\nfrom = ["{make_topic(1)}"]\nto = {{ queue = "mail" }}\n{queue}'))

    assert (code, report["unreachable"]) == (1, [])
    assert f"topic {relay_name}.control" in keys(report)
    assert time.monotonic() - started < 20, "no deadline was waited for"

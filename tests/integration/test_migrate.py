"""`relay migrate` on a real broker and real databases: what it creates, twice, and with two roles."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

from relay.cli.main import app
from relay.config.loading import load
from relay.config.model import ResourceConfig
from relay.config.timing import Timing
from relay.kafka.reading import PartitionReader
from relay.kafka.topics import TopicPlan, Topics
from relay.message.errors import ConfigError, Unreachable
from relay.message.record import LogPartition
from relay.queue.stores import sql_text
from relay.queue.stores.sql_schema import create
from relay.resources import open_resource
from relay.resources.attempts import PostgresqlAttempts
from relay.run.following import control_topic
from relay.run.starts import StartPolicy
from relay.setup import migrate as migrating
from relay.setup.migrate import _grant
from tests.cluster_changes import make_topics
from tests.integration.conftest import url_of

MakeTopic = Callable[..., str]
runner = CliRunner()


@pytest.fixture
def topics(kafka: str) -> Topics:
    return Topics({"bootstrap.servers": kafka}, Timing())


@pytest.fixture
def relay_name(topics: Topics) -> Iterator[str]:
    """A relay's name of this test's own; its topics are deleted afterwards."""
    name = f"m{secrets.token_hex(4)}"
    yield name
    owned = [f"{name}.{rest}" for rest in ("r.monitor", "t.monitor", "deadletter", "control")]
    topics.delete(list(topics.describe(owned, settings=False)))


def write(path: Path, kafka: str, name: str, rest: str) -> str:
    path.write_text(
        f'[relay]\nname = "{name}"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "{kafka}"\n{rest}'
    )
    return str(path)


def relay(*words: str) -> dict[str, object]:
    result = runner.invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


def test_topics_and_tables_are_created_once(
    kafka: str, postgres: str, make_topic: MakeTopic, topics: Topics, relay_name: str, tmp_path: Path
) -> None:
    log, output = make_topic(3), make_topic(2)
    rest = (
        f'[resources.shop]\nurl = "{postgres}"\n[resources.small]\nurl = "sqlite:///small.db"\n'
        f'[routes.r]\nfrom = ["{log}"]\nto = {{ topic = "{output}" }}\n'
    )
    config = write(tmp_path / "relay.toml", kafka, relay_name, rest)

    planned = relay("migrate", config, "--print")
    assert topics.describe([f"{relay_name}.r.monitor"]) == {}
    first = relay("migrate", config)
    again = relay("migrate", config)

    assert first["create"] == planned["create"]
    assert (again["create"], again["grow"], again["alter"]) == ([], {}, {})
    assert first["identities"] == again["identities"]
    assert any("relay_inbox" in statement for statement in planned["tables"]["shop"])  # type: ignore[index]
    facts = topics.describe([f"{relay_name}.{rest}" for rest in ("r.monitor", "deadletter", "control")])
    monitor = facts[f"{relay_name}.r.monitor"]
    assert monitor.partitions == 3
    assert monitor.settings["cleanup.policy"] == "compact,delete"
    assert monitor.settings["message.timestamp.type"] == "LogAppendTime"
    assert monitor.settings["retention.ms"] == str(14 * 86_400_000)
    control = facts[f"{relay_name}.control"]
    assert (control.partitions, control.settings["message.timestamp.type"]) == (1, "LogAppendTime")
    with psycopg.connect(postgres) as connection:
        assert connection.execute("select count(*) from relay_resource").fetchone() == (1,)


def test_a_log_topic_of_which_the_broker_has_yet_to_hear_is_waited_for(
    kafka: str, kafka_admin: AdminClient, make_topic: MakeTopic, relay_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made it a moment ago may have been told so by another broker."""
    monkeypatch.setattr(migrating, "VISIBLE_S", 60.0)  # as long as a busy machine takes for it
    log = f"late-{relay_name}"
    route = f'[routes.r]\nfrom = ["{log}"]\nto = {{ topic = "{make_topic(1)}" }}\n'
    later = threading.Timer(0.5, make_topics, (kafka_admin, NewTopic(log, 3)))
    later.start()
    try:
        done = relay("migrate", write(tmp_path / "relay.toml", kafka, relay_name, route))
    finally:
        later.join()
        kafka_admin.delete_topics([log])[log].result(30)
    assert {one["topic"]: one["partitions"] for one in done["create"]}[f"{relay_name}.r.monitor"] == 3  # type: ignore[attr-defined]


def test_partitions_added_to_the_log_are_added_to_the_monitor(
    kafka: str, make_topic: MakeTopic, topics: Topics, relay_name: str, tmp_path: Path
) -> None:
    log, output = make_topic(2), make_topic(1)
    config = write(
        tmp_path / "relay.toml",
        kafka,
        relay_name,
        f'[routes.r]\nfrom = ["{log}"]\nto = {{ topic = "{output}" }}\n',
    )
    relay("migrate", config)

    topics.grow(log, 5)
    relay("migrate", config)

    assert topics.describe([f"{relay_name}.r.monitor"])[f"{relay_name}.r.monitor"].partitions == 5


def test_a_relay_under_a_new_name_is_not_migrated_where_it_would_repeat_what_it_has_delivered(
    kafka: str, make_topic: MakeTopic, topics: Topics, relay_name: str, tmp_path: Path
) -> None:
    log, output = make_topic(2), make_topic(1)
    route = f'[routes.r]\nfrom = ["{log}"]\nto = {{ topic = "{output}" }}\n'
    former = write(tmp_path / "former.toml", kafka, relay_name, route)
    new = write(tmp_path / "new.toml", kafka, f"{relay_name}-2", route)
    meant = write(tmp_path / "meant.toml", kafka, f"{relay_name}-2", route + 'start = "latest"\n')
    relay("migrate", former)
    relay("migrate", new, "--print")  # the former one has not run yet
    id_ = topics.describe([log])[log].topic_id
    with closing(control_topic(load(Path(former)))) as control:
        StartPolicy(
            control, route="r", policy="earliest", topics={log: 2}, topic_ids={log: id_}, watermarks=lambda _: (0, 0), place=f"topic {output}"
        ).record()

    refused = runner.invoke(app, ["migrate", new])
    checked = runner.invoke(app, ["check", new, "--connect", "--json"])

    assert refused.exit_code == 2
    assert f"route 'r' of relay '{relay_name}' has led {log} to topic {output}" in " ".join(refused.output.split())
    assert topics.describe([f"{relay_name}-2.control", f"{relay_name}-2.r.monitor"]) == {}
    assert "relay.name" in [fault["key"] for fault in json.loads(checked.stdout)["faults"]]
    assert relay("migrate", meant, "--print")["create"]


def test_a_changed_retention_is_altered(
    kafka: str, make_topic: MakeTopic, topics: Topics, relay_name: str, tmp_path: Path
) -> None:
    route = f'[routes.r]\nfrom = ["{make_topic(1)}"]\nto = {{ topic = "{make_topic(1)}" }}\n'
    relay("migrate", write(tmp_path / "relay.toml", kafka, relay_name, route))

    relay(
        "migrate",
        write(tmp_path / "relay.toml", kafka, relay_name, route + '[timing]\nmonitor_retention = "20d"\n'),
    )

    monitor = topics.describe([f"{relay_name}.r.monitor"])[f"{relay_name}.r.monitor"]
    assert monitor.settings["retention.ms"] == str(20 * 86_400_000)
    assert monitor.settings["cleanup.policy"] == "compact,delete"


def test_a_copy_of_a_database_gets_an_identity_of_its_own(
    kafka: str, postgres: str, relay_name: str, tmp_path: Path
) -> None:
    config = write(tmp_path / "relay.toml", kafka, relay_name, f'[resources.shop]\nurl = "{postgres}"\n')

    first = relay("migrate", config)["identities"]
    second = relay("migrate", config, "--new-identity")["identities"]
    third = relay("migrate", config)["identities"]

    assert first != second
    assert second == third


def test_the_worker_may_use_the_tables_and_not_change_them(
    kafka: str, postgres: str, relay_name: str, worker_role: str, tmp_path: Path
) -> None:
    url = url_of(postgres, worker_role)
    queue = '[queues.mail]\nstore = "shop"\nsubscribers = { sender = {} }\n'
    resource = f'[resources.shop]\nurl = "{url}"\nmigrate_url = "{postgres}"\n{queue}'
    config = write(tmp_path / "relay.toml", kafka, relay_name, resource)

    planned = relay("migrate", config, "--print")
    relay("migrate", config)

    assert any(statement.startswith("grant") for statement in planned["tables"]["shop"])  # type: ignore[index]
    with psycopg.connect(url, autocommit=True) as worker:
        worker.execute("insert into relay_capture (capture, outcome) values ('\\x01', 'aborted')")
        worker.execute("delete from relay_capture")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute("update relay_resource set uuid = 'forged'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute("alter table relay_inbox add column x text")
        # A queue that is moved here has the handles that it draws follow those that come along.
        worker.execute(sql_text.RAISE.replace(":handle", "1000"))
    checked = relay("check", config, "--connect")
    assert "resource shop" in checked["checked"]  # type: ignore[operator]


def test_a_worker_forgets_outcomes_of_attempts_and_is_told_which_right_it_needs(
    kafka: str, postgres: str, relay_name: str, worker_role: str, tmp_path: Path
) -> None:
    url = url_of(postgres, worker_role)
    resource = f'[resources.shop]\nurl = "{url}"\nmigrate_url = "{postgres}"\n'
    config = write(tmp_path / "relay.toml", kafka, relay_name, resource)
    relay("migrate", config)

    with psycopg.connect(url, autocommit=True) as worker:
        outcomes = PostgresqlAttempts("shop", worker)
        assert [outcomes.settle(name, committed=name != "b", now=0) for name in "abc"] == [True, False, True]
        outcomes.forget(["a", "b"])
        assert worker.execute("select attempt from relay_attempt order by attempt").fetchall() == [("b",), ("c",)]

        with psycopg.connect(postgres, autocommit=True) as admin:
            admin.execute(sql.SQL("revoke delete on relay_attempt from {}").format(sql.Identifier(worker_role)))
        with pytest.raises(ConfigError, match="relay_attempt"):
            outcomes.forget(["c"])
    answer = runner.invoke(app, ["check", str(config), "--connect", "--json"])
    assert answer.exit_code == 1
    assert "grant delete on relay_attempt" in answer.stdout


def test_tables_are_created_by_several_migrations_at_once(postgres: str, worker_role: str) -> None:
    config = ResourceConfig.model_validate({"url": url_of(postgres, worker_role), "migrate_url": postgres})
    start = threading.Barrier(6)

    def run() -> None:
        resource = open_resource("shop", postgres)
        start.wait(30)
        resource.create_tables()
        _grant("shop", config)
        with psycopg.connect(postgres) as connection:
            create(connection)

    with ThreadPoolExecutor(6) as pool:
        for one in [pool.submit(run) for _ in range(6)]:
            one.result(60)


def test_a_schema_that_hides_the_one_with_the_tables_gets_none_of_its_own(postgres: str) -> None:
    """Workers would find empty ones there, and deliver all that the log has once more."""
    resource = open_resource("shop", postgres)
    uuid = resource.create_tables() or resource.identity().uuid
    with psycopg.connect(postgres, autocommit=True) as database:
        create(database)
        database.execute("insert into relay_position values ('shop', 'r', 'id', 'orders', 0, 7, 1, 'w')")
        database.execute(sql.SQL("create schema {}").format(sql.Identifier(str(conninfo_to_dict(postgres)["user"]))))

    resource.create_tables()
    with psycopg.connect(postgres, autocommit=True) as database:
        create(database)

    with psycopg.connect(postgres) as database:
        assert database.execute("select position from relay_position").fetchall() == [(7,)]
        assert database.execute("select count(distinct relnamespace) from pg_class where relname like 'relay\\_%'").fetchall() == [(1,)]
    assert resource.identity().uuid == uuid


def test_a_search_path_that_names_no_schema_is_no_database_that_is_away(postgres: str) -> None:
    resource = open_resource("shop", f"{postgres}{'&' if '?' in postgres else '?'}options=-csearch_path%3Dnowhere")

    with pytest.raises(ConfigError, match="no schema has been selected to create in; create the schema"):
        resource.create_tables()


def test_what_cannot_be_migrated_is_said(kafka: str, relay_name: str, tmp_path: Path) -> None:
    route = '[routes.r]\nfrom = ["absent-topic"]\nto = { topic = "x" }\n'
    missing = runner.invoke(app, ["migrate", write(tmp_path / "relay.toml", kafka, relay_name, route)])
    away = write(tmp_path / "away.toml", "127.0.0.1:1", relay_name, "[timing]\nsocket_timeout = 0.5\n")
    shop = '[resources.shop]\nurl = "sqlite:///absent/shop.db"\n'
    folder = runner.invoke(app, ["migrate", write(tmp_path / "folder.toml", kafka, relay_name, shop)])

    assert missing.exit_code == 2
    assert "absent-topic" in missing.stderr
    assert folder.exit_code == 3
    assert "create its folder, or correct the path" in folder.stderr
    assert runner.invoke(app, ["migrate", away]).exit_code == 3


def test_topics_by_their_adapter(make_topic: MakeTopic, topics: Topics, kafka: str) -> None:
    name = make_topic(3)

    facts = topics.describe([name, "absent-topic"])

    assert list(facts) == [name]
    assert len(facts[name].topic_id) == 16
    assert facts[name].topic_id != bytes(16)
    assert facts[name].replication >= 1
    assert topics.watermarks(name, range(3)) == {0: (0, 0), 1: (0, 0), 2: (0, 0)}
    assert topics.create([TopicPlan(name, 3, 1)]) == []
    with pytest.raises(ConfigError, match="grow topic"):
        topics.grow(name, 2)
    with pytest.raises(ConfigError, match="not a topic's name"):
        topics.create([TopicPlan("x" * 250, 1, 1)])
    with pytest.raises(ConfigError, match="cannot list offsets"):
        topics.watermarks("absent-topic", [0])
    given = {"bootstrap.servers": kafka, "group.id": "absent"}
    with (
        PartitionReader(given, committed=False, clock=time.monotonic, deadline_s=5.0) as reader,
        pytest.raises(Unreachable, match="if absent-topic was deleted, create it again"),
    ):
        reader.watermarks(LogPartition("absent-topic", 0))
    away = Topics({"bootstrap.servers": "127.0.0.1:1"}, Timing(socket_timeout=0.5), timeout_s=1)
    with pytest.raises(Unreachable, match=r"127.0.0.1:1: no broker answers .*Connection refused"):
        away.describe([name])
    in_clear = Topics({"bootstrap.servers": kafka, "security.protocol": "ssl"}, Timing(socket_timeout=0.5), timeout_s=1)
    with pytest.raises(Unreachable, match=r'SSL.*; correct "security.protocol"'):
        in_clear.describe([name])
    with pytest.raises(ConfigError, match=r"ssl.ca.location"):
        Topics(
            {"bootstrap.servers": kafka, "security.protocol": "ssl", "ssl.ca.location": "/absent"}, Timing()
        )


def test_a_recreated_topic_has_another_id(make_topic: MakeTopic, topics: Topics) -> None:
    name = make_topic(1)
    before = topics.describe([name], settings=False)[name].topic_id

    topics.delete([name])
    while topics.describe([name], settings=False):
        pass
    topics.create([TopicPlan(name, 1, 1)])

    assert topics.describe([name], settings=False)[name].topic_id != before


def test_a_topic_that_another_migration_has_grown_meanwhile_is_left_as_it_is(topics: Topics, make_topic: MakeTopic) -> None:
    name = make_topic(1)
    topics.grow(name, 3)
    topics.grow(name, 3)

    assert topics.describe([name], settings=False)[name].partitions == 3
    with pytest.raises(ConfigError, match="cannot grow topic"):
        topics.grow(f"{name}-gone", 2)

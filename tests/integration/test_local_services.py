"""`relay dev`: one directory is one set of services, which outlive their starter and survive their crash."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from relay.chaos.frame_proxy import FrameProxy
from relay.cli.dev import app
from relay.kafka.probe import wait_for_brokers
from relay.local.java import JavaMissingError, find_java
from relay.local.kafka import BrokerSettings, KafkaCluster
from relay.local.ports import free_ports
from relay.local.postgres import PostgresServer, StopMode
from relay.local.process import RecordedProcess
from relay.local.services import LocalServices
from relay.message.errors import CheckFailed, ConfigError
from tests.cluster_changes import make_topics
from tests.frame_matches import API_VERSIONS

if not os.environ.get("CI"):
    try:
        find_java()
    except JavaMissingError as error:
        pytest.skip(str(error), allow_module_level=True)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A folder that PostgreSQL's account may reach; whatever runs in it is stopped afterwards."""
    path = Path(tempfile.mkdtemp(prefix="relay-services-"))
    yield path
    started = LocalServices.find(path)
    if started is not None:
        started.down()
    shutil.rmtree(path)


def relay_dev(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


def pids(services: LocalServices) -> list[int | None]:
    report = services.status()
    return [broker["pid"] for broker in report["kafka"]["brokers"]] + [report["postgres"]["pid"]]


@pytest.mark.slow
def test_services_outlive_their_starter_and_starting_twice_changes_nothing(directory: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from relay.cli.dev import app; app()",
        "up",
        "--dir",
        directory,
        "--json",
    ]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    before = LocalServices.find(directory)
    assert before is not None
    first_pids = pids(before)

    code, again, _ = relay_dev("up", "--dir", directory, "--json")

    addresses = json.loads(first.stdout)
    assert list(addresses) == ["kafka", "postgres"]
    assert (code, json.loads(again)) == (0, addresses)
    assert pids(before) == first_pids
    assert None not in first_pids
    with psycopg.connect(addresses["postgres"]) as connection:
        assert connection.execute("show max_prepared_transactions").fetchone() == ("64",)
        assert connection.execute("show fsync").fetchone() == ("on",)

    assert relay_dev("topic", "orders", "ledger", "--dir", directory, "--partitions", "2")[0] == 0
    code, said, _ = relay_dev("topic", "orders", "more", "--dir", directory, "--json")
    assert (code, json.loads(said)) == (0, {"created": ["more"], "partitions": {"more": 4, "orders": 2}})
    code, _, why = relay_dev("topic", "no such name", "--dir", directory)
    assert (code, "no such name" in why) == (2, True)

    code, status, _ = relay_dev("status", "--dir", directory, "--json")
    assert code == 0
    assert json.loads(status)["kafka"]["answers"] is True
    password = addresses["postgres"].split(":")[2].split("@")[0]
    assert password not in status

    code, said, _ = relay_dev("down", "--dir", directory, "--json")
    assert (code, json.loads(said)) == (0, {"stopped": {"kafka": 1, "postgres": 1}})
    code, said, _ = relay_dev("down", "--dir", directory)  # stopping what is stopped is no error
    assert (code, said.strip()) == (0, f"Nothing ran in {directory}")
    assert relay_dev("status", "--dir", directory)[0] == 3
    assert pids(before) == [None, None]


@pytest.mark.slow
def test_killed_services_come_back_at_the_same_address_with_their_data(directory: Path) -> None:
    services = LocalServices.up(directory)
    assert services.postgres is not None
    admin = AdminClient({"bootstrap.servers": services.kafka})
    make_topics(admin, NewTopic("kept", 1))
    producer = Producer({"bootstrap.servers": services.kafka, "acks": "all"})
    producer.produce("kept", b"before the crash")
    assert producer.flush(30) == 0
    with psycopg.connect(services.postgres, autocommit=True) as connection:
        connection.execute("create table kept as select 42 as answer")
        connection.execute("begin")
        connection.execute("insert into kept values (43)")
        connection.execute("prepare transaction 'open'")
    cluster, server = KafkaCluster.find(directory / "kafka"), PostgresServer(directory / "postgres")
    assert cluster is not None

    cluster.kill()
    server.kill()

    assert not cluster.is_running()
    assert not server.is_running()
    assert LocalServices.up(directory) == services
    with psycopg.connect(services.postgres, autocommit=True) as connection:
        connection.execute("commit prepared 'open'")
        assert connection.execute("select answer from kept order by 1").fetchall() == [(42,), (43,)]
    consumer = Consumer({"bootstrap.servers": services.kafka, "group.id": "g"})
    consumer.assign([TopicPartition("kept", 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.value() == b"before the crash"


@pytest.mark.slow
def test_process_of_a_stranger_is_not_stopped(directory: Path) -> None:
    services = LocalServices.up(directory, postgres=False)
    broker = directory / "kafka" / "1" / "process.json"
    recorded = broker.read_text()
    with subprocess.Popen(["sleep", "60"]) as stranger:
        # As after a reboot: the pid in the record is now somebody else's, who started at another moment.
        stale = replace(RecordedProcess(**json.loads(recorded)), pid=stranger.pid)
        broker.write_text(json.dumps({"pid": stale.pid, "started": stale.started}))

        services.down()

        assert stranger.poll() is None
        stranger.kill()
    broker.write_text(recorded)


@pytest.mark.slow
def test_broker_is_ready_before_the_proxy_it_advertises_exists(directory: Path) -> None:
    own, proxy = free_ports(2)

    code, output, errors = relay_dev(
        *("up", "--dir", directory, "--kafka-port", str(own), "--advertise", f"127.0.0.1:{proxy}"),
        *("--no-postgres", "--json"),
    )

    assert code == 0, errors
    assert json.loads(output) == {"kafka": f"127.0.0.1:{own}", "postgres": None}
    # A client that learned the advertised address before it asks for metadata asks there: by now the proxy must answer.
    with FrameProxy(f"127.0.0.1:{own}", proxy):
        metadata = AdminClient({"bootstrap.servers": f"127.0.0.1:{own}", "log_level": 0}).list_topics(timeout=30)
    assert [(broker.host, broker.port) for broker in metadata.brokers.values()] == [("127.0.0.1", proxy)]
    with pytest.raises(ConfigError, match=r"relay dev down.* first"):
        LocalServices.up(directory, advertise="127.0.0.1:1", postgres=False)
    with pytest.raises(ConfigError, match=r"set up with 1 broker"):
        LocalServices.up(directory, brokers=3, postgres=False)
    # What a client learns between two attempts names the proxy only, and it forgets the address that it was given.
    with FrameProxy(f"127.0.0.1:{own}") as slow:
        late = slow.before(lambda request: request.api_key == API_VERSIONS, lambda _: time.sleep(0.5))
        wait_for_brokers(slow.address, 1, timeout_s=60, check=lambda: time.sleep(2))
        assert late.is_caught


def test_taken_port_is_named(directory: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]

        with pytest.raises(CheckFailed, match=f"Port {port}.*taken by another process"):
            LocalServices.up(directory, kafka_port=port, postgres=False)


@pytest.mark.slow
def test_another_clusters_broker_that_came_first_is_not_taken_for_ours(
    kafka: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of two that start at once, both of which find the port free.
    monkeypatch.setattr("relay.local.kafka.is_free", lambda _: True)

    with pytest.raises(CheckFailed, match=r"Broker 1 ended while starting"):
        LocalServices.up(directory, kafka_port=int(kafka.rpartition(":")[2]), postgres=False)


@pytest.mark.slow
def test_broker_that_ends_while_starting_shows_the_end_of_its_log(directory: Path) -> None:
    services = LocalServices.up(directory, postgres=False)
    services.down()
    unusable = BrokerSettings(properties={"num.io.threads": "none"})

    with pytest.raises(CheckFailed, match=r"Broker 1 ended while starting[\s\S]*num\.io\.threads"):
        LocalServices.up(directory, postgres=False, settings=unusable)


@pytest.mark.slow
def test_where_postgres_cannot_start_only_brokers_that_ran_before_go_on(directory: Path) -> None:
    data = directory / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "leftover").touch()

    code, _, complaint = relay_dev("up", "--dir", directory)
    assert (code, "holds leftover but no finished database" in complaint) == (1, True)
    cluster = KafkaCluster.find(directory / "kafka")
    assert cluster is not None
    assert cluster.process(1) is None

    cluster.start()
    ran = cluster.process(1)
    code, _, _ = relay_dev("up", "--dir", directory)

    assert (code, cluster.process(1)) == (1, ran)


@pytest.mark.slow
def test_existing_postgres_is_used_and_left_alone(directory: Path) -> None:
    server = PostgresServer(directory / "elsewhere")
    server.start()
    try:
        code, output, _ = relay_dev("up", "--dir", directory / "dev", "--postgres", server.url, "--json")
        assert code == 0
        assert json.loads(output)["postgres"] == server.url

        assert relay_dev("down", "--dir", directory / "dev")[0] == 0

        assert server.is_running()
    finally:
        server.stop(StopMode.IMMEDIATE)


def test_unreachable_postgres_ends_with_exit_code_3_and_keeps_the_password(directory: Path) -> None:
    (port,) = free_ports(1)

    code, output, errors = relay_dev(
        "up", "--dir", directory, "--postgres", f"postgresql://me:s3cret@127.0.0.1:{port}/db", "--json"
    )

    assert (code, output) == (3, "")
    assert f"127.0.0.1:{port}/db" in errors
    assert "s3cret" not in errors


def test_directory_without_services_is_a_usage_error(directory: Path) -> None:
    assert relay_dev("status", "--dir", directory)[0] == 2
    assert relay_dev("down", "--dir", directory)[0] == 2
    assert relay_dev("up", "--dir", directory, "--no-postgres", "--postgres", "postgresql://h/d")[0] == 2
    assert relay_dev("up", "--dir", directory, "--postgres", "not a url")[0] == 2
    assert not (directory / "kafka").exists()


@pytest.mark.parametrize("mode", list(StopMode))
def test_postgres_stops_in_every_mode_and_starts_again(directory: Path, mode: StopMode) -> None:
    server = PostgresServer(directory, {"fsync": "off", "shared_buffers": "16MB"})
    server.start()
    url = server.url

    server.stop(mode)
    assert not server.is_running()
    server.start()

    assert server.url == url
    with psycopg.connect(url) as connection:
        assert connection.execute("show fsync").fetchone() == ("off",)
    server.stop()


def test_postgres_killed_under_open_backends_starts_again(directory: Path) -> None:
    server = PostgresServer(directory, {"shared_buffers": "16MB"})
    server.start()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("create table t as select 1 as n")

        server.kill()

        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    server.start()
    with psycopg.connect(server.url) as connection:
        assert connection.execute("select n from t").fetchone() == (1,)
    server.stop()


def test_fixtures_give_a_fresh_database_and_topics(postgres: str, make_topic: Callable[..., str]) -> None:
    topics = [make_topic(partitions=2), make_topic(config={"cleanup.policy": "compact"})]

    with psycopg.connect(postgres) as connection:
        tables = connection.execute(
            "select count(*) from information_schema.tables where table_schema = 'public'"
        ).fetchone()

    assert tables == (0,)
    assert len(set(topics)) == 2


def test_a_benchmark_that_is_told_to_end_leaves_no_server_behind(directory: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "relay", "bench", "topic"], env={**os.environ, "TMPDIR": str(directory)}, stderr=subprocess.DEVNULL
    ) as bench:
        limit = time.monotonic() + 60
        broker: RecordedProcess | None = None
        while broker is None and time.monotonic() < limit:
            time.sleep(0.05)
            for made in directory.glob("relay-bench-*"):
                cluster = KafkaCluster.find(made / "kafka")
                broker = None if cluster is None else cluster.process(1)
        bench.terminate()

        assert bench.wait(120) == 128 + signal.SIGTERM
    assert broker is not None
    assert broker.wait_for_end(30)
    assert list(directory.glob("relay-bench-*")) == []

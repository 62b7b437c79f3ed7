"""Real services for the tests: one broker and one PostgreSQL per session, fresh topics and databases per test."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import settings
from psycopg import sql
from psycopg.conninfo import make_conninfo

from relay.local.kafka import BRIEF, KafkaCluster
from relay.local.ports import LOOPBACK, free_ports
from relay.local.services import LocalServices
from tests.cluster_changes import make_topics
from tests.own_services import ProxiedBroker, or_skipped, own_proxied_broker
from tests.routes import TopicRoute

settings.register_profile("relay", deadline=None)  # a busy machine says nothing about the code
settings.load_profile("relay")
MEMORY, MEMORY_MIN = Path("/dev/shm"), 4 << 30
MakeTopic = Callable[..., str]
MakeRoute = Callable[..., TopicRoute]


@pytest.hookimpl(trylast=True)  # of what is deselected nothing is long
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that may take longest are begun first: the last to be handed out is alone with one process at the end."""
    longest: Counter[Path] = Counter()
    for item in items:
        mark = item.get_closest_marker("timeout")
        longest[item.path] = max(longest[item.path], mark.args[0] if mark else 0)
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (-longest[item.path], -sizes[item.path], item.path))


@dataclass(frozen=True)
class Services:
    """Addresses of the session's services, and what stands before the broker if it was started here."""

    kafka: str
    postgres: str
    proxied: ProxiedBroker | None = None


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """One broker and one PostgreSQL: those named by environment variables, in containers, or started here."""
    kafka, postgres = os.environ.get("RELAY_TEST_KAFKA"), os.environ.get("RELAY_TEST_POSTGRES")
    if kafka and postgres:
        yield Services(kafka, postgres)
    elif os.environ.get("RELAY_TEST_CONTAINERS") == "1":
        with _in_containers() as started:
            yield started
    else:
        with _started_here(postgres) as local:
            yield replace(local, kafka=kafka or local.kafka)


@contextmanager
def _started_here(postgres: str | None) -> Iterator[Services]:
    # Not pytest's own temporary directory: its mode 0700 would lock out PostgreSQL's account under root.
    directory = Path(tempfile.mkdtemp(prefix="relay-tests-", dir=_memory()))
    proxied = ProxiedBroker.planned()
    try:
        with or_skipped():
            local = LocalServices.up(directory, **proxied.wanted, postgres=postgres or True, settings=BRIEF)
        assert local.postgres is not None
        if postgres is None:
            _keep_no_promise_to_disks(local.postgres)
        yield Services(_past_the_proxy(directory), local.postgres, proxied)
    finally:
        started = LocalServices.find(directory)
        if started is not None:
            started.down()
        proxied.proxy.close()
        shutil.rmtree(directory, ignore_errors=True)


def _memory() -> Path | None:
    """Where files lie in memory, if there is room for the services of a few processes.

    A database is three hundred files, and ext4 passes over whatever was deleted within minutes each time that it creates one.
    """
    is_roomy = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_MIN
    return MEMORY if is_roomy else None


def _past_the_proxy(directory: Path) -> str:
    """Return the address that a broker has for others of its cluster: it names itself by the same to whoever asks there."""
    cluster = KafkaCluster.find(directory / "kafka")
    assert cluster is not None
    return f"{LOOPBACK}:{cluster.plan.brokers[0].internal_port}"


def _keep_no_promise_to_disks(url: str) -> None:
    """What a killed server has written is still there, and no test crashes the machine: nothing need wait for its disk."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("alter system set fsync = off")
        admin.execute("alter system set max_wal_size = '256MB'")
        admin.execute("select pg_reload_conf()")


@contextmanager
def _in_containers() -> Iterator[Services]:
    """docker/compose.yaml under a project name and ports of its own: a developer's own containers stay."""
    from testcontainers.compose import DockerCompose  # noqa: PLC0415 - only where containers are asked for

    kafka_port, postgres_port = free_ports(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPOSE_PROJECT_NAME", f"relay-tests-{secrets.token_hex(4)}")
        patch.setenv("RELAY_KAFKA_PORT", str(kafka_port))
        patch.setenv("RELAY_POSTGRES_PORT", str(postgres_port))
        docker = Path(__file__).parent.parent / "docker"
        with DockerCompose(docker, compose_file_name="compose.yaml", wait=True):
            url = f"postgresql://postgres:relay@127.0.0.1:{postgres_port}/postgres"
            yield Services(f"127.0.0.1:{kafka_port}", url)


@pytest.fixture(scope="session")
def proxied_broker(services: Services) -> Iterator[ProxiedBroker]:
    """The session's broker behind the frame proxy; one of its own where that is not to be had."""
    if services.proxied is not None:
        yield services.proxied
    else:
        with own_proxied_broker() as started:
            yield started


@pytest.fixture(scope="session")
def kafka(services: Services) -> str:
    """``bootstrap.servers`` of the session's broker."""
    return services.kafka


@pytest.fixture
def postgres(services: Services) -> Iterator[str]:
    """URL of a database of this test's own, dropped afterwards."""
    name = f"t_{secrets.token_hex(6)}"
    with psycopg.connect(services.postgres, autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        yield services.postgres.rpartition("/")[0] + f"/{name}"
        # A prepared transaction outlives its connection and would keep the database from being dropped.
        with psycopg.connect(make_conninfo(services.postgres, dbname=name), autocommit=True) as inside:
            for (gid,) in inside.execute(
                "select gid from pg_prepared_xacts where database = current_database()"
            ).fetchall():
                inside.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def kafka_admin(kafka: str) -> AdminClient:
    """An admin client of the session's broker."""
    return AdminClient({"bootstrap.servers": kafka})


@pytest.fixture
def make_topic(kafka_admin: AdminClient) -> Iterator[MakeTopic]:
    """Return a factory ``make_topic(partitions=4, config={}, name="t") -> name`` of topics deleted afterwards."""
    made: list[str] = []

    def make(partitions: int = 4, config: Mapping[str, str] | None = None, name: str = "t") -> str:
        topic = f"{name}-{secrets.token_hex(5)}"
        new = NewTopic(topic, num_partitions=partitions, config=dict(config or {}))
        make_topics(kafka_admin, new)
        made.append(topic)
        return topic

    yield make
    if made:
        for deleted in kafka_admin.delete_topics(made).values():
            deleted.result(30)


@pytest.fixture
def make_route(tmp_path: Path, kafka: str, make_topic: MakeTopic) -> Iterator[MakeRoute]:
    """Return a factory ``make_route(extra="", partitions=1, log={}, out={})`` of topic routes, their workers ended."""
    made: list[TopicRoute] = []

    def make(
        extra: str = "", partitions: int = 1, log: Mapping[str, str] | None = None, out: Mapping[str, str] | None = None
    ) -> TopicRoute:
        route = TopicRoute(tmp_path, kafka, make_topic(partitions, log), make_topic(partitions, out), partitions, extra)
        route.migrate()
        made.append(route)
        return route

    yield make
    for route in made:
        route.stop()

"""Sites for the auditor, databases of handlers and table routes, and a broker behind the frame proxy for tests that let requests arrive late."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from relay.chaos.frame_proxy import FrameProxy
from relay.config.loading import load
from relay.local.kafka import SMALL, KafkaCluster
from relay.setup.migrate import migrate
from tests.cluster_changes import make_topics
from tests.integration.audit_site import PARTITIONS, TOPIC_ROUTE, Site
from tests.integration.handler_site import Books, Table
from tests.integration.table_site import Database
from tests.own_services import ProxiedBroker, own_brokers

MARKER_DEADLINE_S = 20.0


@dataclass(frozen=True)
class Proxied:
    """A broker that every client reaches through the proxy; nothing is kept back between tests."""

    kafka: str
    proxy: FrameProxy

    def topic(self, name: str, partitions: int = 1) -> str:
        """Create a topic under a fresh name and return it."""
        fresh = f"{name}-{uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.kafka})
        make_topics(admin, NewTopic(fresh, partitions))
        return fresh

    def wait_for_markers(self, topic: str, partitions: int = 1) -> None:
        """Return when no transaction is open in the topic: an EndTxn is answered before its markers are written."""
        ends = [self._consumer(f"read_{isolation}") for isolation in ("committed", "uncommitted")]
        limit = time.monotonic() + MARKER_DEADLINE_S
        for partition in range(partitions):
            where = TopicPartition(topic, partition)
            while True:
                stable, high = (one.get_watermark_offsets(where, timeout=10)[1] for one in ends)
                if stable == high:
                    break
                assert time.monotonic() < limit, f"{topic}[{partition}] keeps an open transaction"
                time.sleep(0.01)
        for one in ends:
            one.close()

    def _consumer(self, isolation: str) -> Consumer:
        return Consumer({"bootstrap.servers": self.kafka, "group.id": "markers", "isolation.level": isolation})


@pytest.fixture(scope="session")
def proxied(proxied_broker: ProxiedBroker) -> Proxied:
    return Proxied(proxied_broker.proxy.address, proxied_broker.proxy)


@pytest.fixture
def make_site(kafka: str, kafka_admin: AdminClient, make_topic: Callable[..., str], tmp_path: Path) -> Iterator[Callable[..., Site]]:
    owned: list[str] = []

    def make(route: str = TOPIC_ROUTE, resources: str = "") -> Site:
        name = f"v{secrets.token_hex(4)}"
        log, output = make_topic(PARTITIONS), make_topic(PARTITIONS)
        path = tmp_path / f"{name}.toml"
        path.write_text(
            f'[relay]\nname = "{name}"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "{kafka}"\n{resources}\n'
            f'[routes.main]\nfrom = ["{log}"]\n' + route.format(output=output)
        )
        config = load(path)
        migrate(config)
        owned.extend([f"{name}.main.monitor", config.deadletter_topic, config.control_topic])
        return Site(config, kafka, log, output)

    yield make
    if owned:
        for deleted in kafka_admin.delete_topics(owned).values():
            deleted.result(30)


@pytest.fixture
def shop(postgres: str) -> str:
    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute("create table ledger (id text, source text)")
    return f'[resources.shop]\nurl = "{postgres}"\n'


@pytest.fixture
def three_brokers() -> Iterator[KafkaCluster]:
    """A cluster of its own: a test may kill its brokers."""
    with own_brokers("away", brokers=3) as local:
        found = KafkaCluster.find(local.directory / "kafka", SMALL)
        assert found is not None
        yield found


@pytest.fixture
def table(postgres: str) -> Iterator[Table]:
    """A message whose handler's database is that of its queue."""
    made = Table(postgres)
    yield made
    made.close()


@pytest.fixture
def books(tmp_path: Path, postgres: str) -> Iterator[Books]:
    """A message whose handler writes into a further database."""
    made = Books(tmp_path, postgres)
    yield made
    made.close()


@pytest.fixture
def database(postgres: str) -> Iterator[Database]:
    """A database for the cursors of a table route."""
    made = Database(postgres)
    yield made
    made.close()


@pytest.fixture
def worker_role(postgres: str) -> Iterator[str]:
    """A role without any right, and its URL for this test's database."""
    role = f"w_{secrets.token_hex(4)}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(sql.SQL("create role {} login password 'w'").format(sql.Identifier(role)))
        yield role
        admin.execute(sql.SQL("drop owned by {}").format(sql.Identifier(role)))
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def url_of(postgres: str, role: str) -> str:
    """The same database for another role; its host may be a socket's folder."""
    facts = conninfo_to_dict(postgres)
    place = {key: str(facts[key]) for key in ("host", "port") if facts.get(key)}
    return f"postgresql://{role}:w@/{facts['dbname']}?{urlencode(place)}"

"""A log that has lost its end, as after a power failure of all its brokers, and has grown again beyond a position."""

from __future__ import annotations

import signal
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from relay.config.loading import load
from relay.local.kafka import SMALL, KafkaCluster
from relay.local.services import LocalServices
from tests.cluster_changes import make_topics
from tests.routes import Route, ce, ids, publish, read_all, stand_at, wait_for

LASTING = 'session_timeout = "30s"'
"""A worker stays in its group while the broker is away: no assignment makes it look."""
pytestmark = pytest.mark.slow
QUIET_S = 1.0
"""Long enough that nothing is under way any more whose failure would make a worker look."""
_BATCH_HEAD = struct.Struct(">qi")


class CutBroker:
    """A broker of a test's own, whose partitions lose their ends while it is down."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.address = LocalServices.up(directory, postgres=False, settings=SMALL).kafka
        self._admin = AdminClient({"bootstrap.servers": self.address})

    def make_topic(self, name: str) -> str:
        make_topics(self._admin, NewTopic(name, 1))
        return name

    def cut(self, topic: str, offset: int) -> None:
        """Kill the broker, take away what ``topic`` has from ``offset`` on, and start it again."""
        cluster = KafkaCluster.find(self._directory / "kafka")
        assert cluster is not None
        broker = cluster.process(1)
        assert broker is not None
        broker.send(signal.SIGKILL)
        wait_for(lambda: cluster.process(1) is None, what="the broker's end")
        (partition,) = (self._directory / "kafka").rglob(f"{topic}-0")
        (segment,) = partition.glob("*.log")
        with segment.open("r+b") as batches:
            while head := batches.read(_BATCH_HEAD.size):
                first, size = _BATCH_HEAD.unpack(head)
                if first >= offset:
                    batches.truncate(batches.tell() - _BATCH_HEAD.size)
                    break
                batches.seek(size, 1)
        for derived in (*partition.glob("*.*index"), *partition.glob("*.snapshot")):
            derived.unlink()
        LocalServices.up(self._directory, postgres=False, settings=SMALL)

    def down(self) -> None:
        started = LocalServices.find(self._directory)
        if started is not None:
            started.down()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CutBroker]:
    made = CutBroker(tmp_path_factory.mktemp("services"))
    yield made
    made.down()


@pytest.fixture(params=["topic", "table"])
def route(request: pytest.FixtureRequest, broker: CutBroker, tmp_path: Path) -> Iterator[Route]:
    log = broker.make_topic(f"log-{request.node.name}".replace("[", "-").replace("]", ""))
    if request.param == "topic":
        to, extra = f'{{ topic = "{broker.make_topic("out-" + log)}" }}', ""
    else:
        file = tmp_path / "orders.db"
        with sqlite3.connect(file) as database:
            database.execute("create table orders (id text primary key)")
        to = '{ table = "orders", resource = "db", columns = { id = "ce:id" } }'
        extra = f'[resources.db]\nurl = "sqlite:///{file}"'
    made = Route(tmp_path, broker.address, log, to, extra, timing=LASTING)
    made.migrate()
    yield made
    made.stop()


def effects(route: Route) -> list[str]:
    file = route.path.parent / "orders.db"
    if file.exists():
        with sqlite3.connect(file) as database:
            return [row[0] for row in database.execute("select id from orders order by rowid")]
    return ids(read_all(route.kafka, f"out-{route.log}", 1))


def say(route: Route, first: int, following: int, what: str = "m") -> None:
    for n in range(first, following):  # a batch each: as many as are cut off
        publish(route.kafka, route.log, [(0, ce("/s", f"{what}-{n}"), f"{what}-{n}".encode())])


def test_a_worker_that_comes_back_does_not_read_on_in_a_log_that_was_cut(broker: CutBroker, route: Route) -> None:
    say(route, 0, 10)
    assert route.finish() == 0
    assert len(effects(route)) == 10
    broker.cut(route.log, 6)
    say(route, 6, 12, "new")
    assert route.finish() == 10, route.said()
    assert len(effects(route)) == 10
    assert "what it has read at 9 is not there any more" in route.said()

    put_back(route, 6)
    assert route.finish() == 0, route.said()
    assert effects(route) == [*(f"m-{n}" for n in range(10)), *(f"new-{n}" for n in range(6, 12))]


def put_back(route: Route, position: int) -> None:
    """Do what the operator is told to: go on where the log was cut."""
    file = route.path.parent / "orders.db"
    if file.exists():
        with sqlite3.connect(file) as database:
            database.execute("update relay_position set position = ?", (position,))
    else:
        stand_at(route.kafka, load(route.path).group_id("main"), route.log, [position])


def test_a_worker_that_has_read_nothing_yet_looks_at_what_lay_below_its_position(broker: CutBroker, route: Route) -> None:
    say(route, 0, 10)
    assert route.finish() == 0
    worker = route.start()
    wait_for(lambda: route.said().count('"running"') == 2, what="the take-over")
    time.sleep(QUIET_S)
    broker.cut(route.log, 6)
    say(route, 6, 12, "new")
    assert worker.wait(60) == 10, route.said()
    assert len(effects(route)) == 10


def test_a_worker_that_lived_through_it_does_not_either(broker: CutBroker, route: Route) -> None:
    say(route, 0, 10)
    worker = route.start()
    wait_for(lambda: len(effects(route)) == 10, what="the effects", told=route.said)
    time.sleep(QUIET_S)
    broker.cut(route.log, 6)
    say(route, 6, 12, "new")
    assert worker.wait(60) == 10, route.said()
    assert len(effects(route)) == 10

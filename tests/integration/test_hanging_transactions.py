"""What Kafka left open, because a partition had no leader when its transaction was ended: aborted it never shows, committed it does."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from relay.config.loading import load
from relay.local.kafka import KafkaCluster
from relay.message.errors import ConfigError
from relay.world.crash import EXIT_STATUS, VARIABLE
from tests.cluster_changes import make_topics
from tests.routes import Route, ids, publish, read_all, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
MESSAGES = 40
END_TXN, DESCRIBE_TRANSACTIONS = 26, 65
DESCRIBED = struct.Struct(">iqqh")
"""Timeout, start, producer id and epoch: what follows the state's name."""


class Site:
    """A route into a topic that lies on the third broker only, unlike all else."""

    def __init__(self, cluster: KafkaCluster, directory: Path) -> None:
        self.cluster = cluster
        self.kafka = cluster.bootstrap
        self.admin = AdminClient({"bootstrap.servers": self.kafka})
        make_topics(self.admin, NewTopic("log", 1), NewTopic("out", 1, replica_assignment=[[3]]))
        self.route = Route(directory, self.kafka, "log", '{ topic = "out" }')
        wait_for(self.is_migrated, what="topics that every broker knows")

    def is_migrated(self) -> bool:
        """A broker that has not heard of the topics yet may be the one that is asked."""
        try:
            self.route.migrate()
        except ConfigError:
            return False
        return True

    def leader(self) -> int:
        leader: int = self.admin.list_topics("out", timeout=10).topics["out"].partitions[0].leader
        return leader

    def is_open(self, topic: str) -> bool:
        """Is a transaction open in partition 0?"""
        stable, high = (self.end(topic, isolation) for isolation in ("read_committed", "read_uncommitted"))
        return stable < high

    def end(self, topic: str, isolation: str) -> int:
        asker = Consumer({"bootstrap.servers": self.kafka, "group.id": "asker", "isolation.level": isolation})
        try:
            return int(wait_for(lambda: self.ends(asker, topic), what=f"an answer about {topic}")[1])
        finally:
            asker.close()

    @staticmethod
    def ends(asker: Consumer, topic: str) -> tuple[int, int] | None:
        """Ask once: a new leader does not know its high watermark yet."""
        try:
            marks: tuple[int, int] = asker.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        except KafkaException:
            return None
        return marks

    def commit(self) -> bool:
        """Send the EndTxn that the worker has died before; False if nobody took it, as by a coordinator that is being elected."""
        name = load(self.route.path).transactional_id("main", 0).encode()
        for address in self.kafka.split(","):
            try:
                described = asked(address, DESCRIBE_TRANSACTIONS, 0, b"\0\x02" + bytes([len(name) + 1]) + name + b"\0")
                state_at = described.index(name) + len(name) + 1 if name in described else 0
                if described[state_at : state_at + 7] != b"Ongoing":
                    continue
                _, _, producer_id, epoch = DESCRIBED.unpack_from(described, state_at + 7)
                ended = asked(address, END_TXN, 1, struct.pack(f">h{len(name)}sqh?", len(name), name, producer_id, epoch, True))
            except OSError:
                continue
            if ended[-2:] == b"\0\0":
                return True
        return False

    def crash(self, point: str) -> None:
        assert self.route.finish(**{VARIABLE: point}) == EXIT_STATUS, self.route.said()


def asked(address: str, key: int, version: int, body: bytes) -> bytes:
    """Ask a broker in the words of Kafka's protocol guide; the header's end, for requests with tags, is the body's first byte."""
    host, _, port = address.strip().rpartition(":")
    request = struct.pack(">hhih", key, version, 1, -1) + body
    with socket.create_connection((host, int(port)), 10) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", answers.read(4))
        return answers.read(size)


def test_a_committed_transaction_that_hangs_in_an_output_is_written_again(three_brokers: KafkaCluster, tmp_path: Path) -> None:
    site = Site(three_brokers, tmp_path)
    publish(site.kafka, "log", [(0, [("ce_id", b"m-%d" % n), ("ce_source", b"/a")], b"v") for n in range(MESSAGES)])
    site.crash("sealed.committing:2")
    three_brokers.kill(3)
    wait_for(lambda: site.leader() == -1, what="a partition without a leader")
    wait_for(site.commit, what="the commit")
    wait_for(lambda: not site.is_open(f"{site.route.name}.main.monitor"), what="the commit in the monitor")
    three_brokers.start()
    wait_for(lambda: site.leader() == 3, what="the third broker")
    assert site.is_open("out"), "this broker ends the transaction there as well: nothing is shown by this test"

    site.crash("recovery.ending:2")  # the first end is that of offsets
    site.crash("recovery.claiming")
    assert site.route.finish() == 0, site.route.said()

    assert "sealed and not shown" in site.route.said()
    assert ids(read_all(site.kafka, "out", 1)) == [f"m-{n}" for n in range(MESSAGES)]


def test_an_aborted_transaction_that_hangs_in_an_output_is_ended_before_anything_is_written_there(
    three_brokers: KafkaCluster, tmp_path: Path
) -> None:
    site = Site(three_brokers, tmp_path)
    publish(site.kafka, "log", [(0, [("ce_id", b"m-%d" % n), ("ce_source", b"/a")], b"v") for n in range(MESSAGES)])
    site.crash("sealed.committing:2")
    three_brokers.kill(3)
    wait_for(lambda: site.leader() == -1, what="a partition without a leader")
    wait_for(lambda: not site.is_open(f"{site.route.name}.main.monitor"), what="the coordinator's abort")
    three_brokers.start()
    wait_for(lambda: site.leader() == 3, what="the third broker")
    assert site.is_open("out"), "this broker ends the transaction there as well: nothing is shown by this test"

    site.crash("recovery.ending")
    site.crash("recovery.ending:2")
    assert site.route.finish() == 0, site.route.said()

    assert "ending what may hang" in site.route.said()
    assert ids(read_all(site.kafka, "out", 1)) == [f"m-{n}" for n in range(MESSAGES)]

"""A route under test: its configuration, its topics, its workers as real processes, and plain readers beside them."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from relay.config.loading import load
from relay.kafka.failures import LEADER_MOVES
from relay.kafka.scan import COORDINATOR_MOVES
from relay.setup.migrate import migrate
from relay.world.crash import EXIT_STATUS, VARIABLE
from tests.forked import MODULES, Forked

DEADLINE_S = 60.0
IDLE_S = 0.3
"""A worker that has had nothing to do for as long has done what a test gave it."""
IN_ORDER = {"acks": "all", "max.in.flight": 1}
"""One request at a time keeps the order as well as idempotence does, and is half a second sooner ready."""
MARKERS_S = 2.0
_LEAVE_GROUP = 13
FAST = """
session_timeout = "6s"
idle_in_transaction = "5s"
statement_timeout = "5s"
marker_wait = "500ms"
"""
"""A killed worker's partitions pass on after the shortest session that a broker grants by default."""


def wait_for(
    condition: Callable[[], Any],
    deadline_s: float = DEADLINE_S,
    what: str = "the condition",
    told: Callable[[], str] = lambda: "",
) -> Any:
    """Ask again until the answer is true; fail with what was waited for, and what those said who should bring it."""
    limit = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < limit, f"{what} did not come true within {deadline_s} s\n{told()}"
        time.sleep(0.05)
    return found


Worker = Forked | subprocess.Popen[bytes]


class Route:
    """One relay with one route from a log topic of its own; ``module`` is what a worker process runs, of the route ``called`` so."""

    module = "relay.run.process"
    called = "main"

    def __init__(self, directory: Path, kafka: str, log: str, to: str, extra: str = "", timing: str = FAST) -> None:
        self.kafka = kafka
        self.log = log
        self.name = f"r{uuid4().hex[:8]}"
        self.path = directory / f"{self.name}.toml"
        self.path.write_text(
            f"""
[relay]
name = "{self.name}"
instance = "test"
state = "{directory}/state-{self.name}"

[kafka]
"bootstrap.servers" = "{kafka}"

[timing]
{timing}

[routes.main]
from = ["{log}"]
to = {to}
{extra}
"""
        )
        self._workers: list[Worker] = []

    def say(self, line: str) -> None:
        """Add a line to the section [relay]."""
        self.path.write_text(self.path.read_text().replace("[kafka]", f"{line}\n\n[kafka]", 1))

    def migrate(self) -> None:
        """Create what the relay owns."""
        migrate(load(self.path))

    def start(self, number: int = 0, until_idle_s: float | None = None, **env: str) -> Worker:
        """Start a worker as a process of its own."""
        words = [str(self.path), "--route", self.called, "--worker", str(number)]
        if until_idle_s is not None:
            words += ["--until-idle", str(until_idle_s)]
        said, given = self.path.parent / f"{self.name}-{number}.log", {**os.environ, **env}
        if self.module in MODULES:
            worker: Worker = Forked(self.module, words, given, said)
        else:
            with said.open("ab") as log:
                worker = subprocess.Popen([sys.executable, "-m", self.module, *words], env=given, stdout=log, stderr=log)
        self._workers.append(worker)
        return worker

    def finish(self, number: int = 0, until_idle_s: float = IDLE_S, **env: str) -> int:
        """Run a worker until it is idle and return its exit code."""
        code = self.start(number, until_idle_s, **env).wait(DEADLINE_S)
        self._workers.pop()
        return code

    def kill_at(self, point: str, number: int = 0) -> None:
        """Run a worker until it ends itself at ``point``; the group need not wait for its session to expire."""
        assert self.finish(number, **{VARIABLE: point}) == EXIT_STATUS, f"{point} was not reached: {self.said(number)}"
        self.dismiss()

    def dismiss(self) -> None:
        """Take every member out of the group, as the end of dead workers' sessions would six seconds later."""
        group = load(self.path).group_id("main")
        admin = AdminClient({"bootstrap.servers": self.kafka})

        def members() -> list[str]:
            return [member.member_id for member in admin.describe_consumer_groups([group])[group].result(10).members]

        for member in members():
            leave_group(self.kafka, group, member)
        wait_for(lambda: not members(), what="an empty group")

    def said(self, number: int = 0) -> str:
        """Return what a worker wrote."""
        return (self.path.parent / f"{self.name}-{number}.log").read_text()

    def stop(self) -> None:
        """End every worker that still runs."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait(10)
        self._workers.clear()


def leave_group(kafka: str, group: str, member: str) -> None:
    """Send LeaveGroup version 1 in the name of a member (Kafka protocol guide); the test broker coordinates all groups."""
    host, _, port = kafka.partition(":")
    body = struct.pack(">hhih", _LEAVE_GROUP, 1, 1, -1) + b"".join(
        struct.pack(">h", len(text)) + text for text in (group.encode(), member.encode())
    )
    with socket.create_connection((host, int(port)), 10) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", answers.read(4))
        _, _, error = struct.unpack(">iih", answers.read(size))
    assert error == 0, f"LeaveGroup of {member}: error {error}"


class TopicRoute(Route):
    """A route from a fresh log topic to a fresh output topic."""

    def __init__(self, directory: Path, kafka: str, log: str, out: str, partitions: int, extra: str = "") -> None:
        super().__init__(directory, kafka, log, f'{{ topic = "{out}" }}', extra)
        self.out = out
        self.partitions = partitions

    def outputs(self) -> list[Any]:
        """Return what a read_committed reader finds at the destination."""
        return read_all(self.kafka, self.out, self.partitions)


def ce(source: str, identifier: str, **more: str) -> list[tuple[str, bytes]]:
    """CloudEvents headers of a plain producer."""
    fields = {"ce_specversion": "1.0", "ce_id": identifier, "ce_source": source, "ce_type": "test", **more}
    return [(name, value.encode()) for name, value in fields.items()]


def publish(kafka: str, topic: str, records: Iterable[tuple[int, list[tuple[str, bytes]], bytes | None]]) -> None:
    """Append (partition, headers, value) records in order."""
    producer = Producer({"bootstrap.servers": kafka, **IN_ORDER, "linger.ms": 5})
    refused: list[object] = []

    def answered(error: object, _message: object) -> None:
        if error is not None:
            refused.append(error)

    for partition, headers, value in records:
        producer.produce(topic, value=value, partition=partition, headers=headers, key=b"k", on_delivery=answered)
    assert producer.flush(30) == 0
    assert not refused


def delete_below(admin: AdminClient, topic: str, offset: int, *, partition: int = 0) -> None:
    """Let a partition of a topic begin at an offset, as retention does."""
    for deleted in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
        deleted.result(30)


def stand_at(kafka: str, group: str, topic: str, positions: Iterable[int]) -> None:
    """Store a group's positions, partition by partition; a broker that has just started first reads those it keeps."""
    places = [TopicPartition(topic, partition, at) for partition, at in enumerate(positions)]
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": group})

    def is_stored() -> bool:
        try:
            consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_MOVES:
                raise
            return False
        return True

    wait_for(is_stored, what=f"the positions of {group}")
    consumer.close()


def read_all(kafka: str, topic: str, partitions: int, *, committed: bool = True) -> list[Any]:
    """Read a topic from its beginning to its end, each partition in order.

    The markers of a transaction whose commit was answered come after the answer: for those it waits, and, since they look
    the same, for a while also where a transaction is open.
    """
    ends = _ends(kafka, topic, partitions) if committed else [0] * partitions
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": f"reader-{uuid4().hex}",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,  # at the end of all partitions the broker waits for more
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    found = []
    left, early = set(range(partitions)), set[int]()
    began = time.monotonic()
    while left:
        assert time.monotonic() < began + DEADLINE_S, f"{topic} was not read to its end"
        if time.monotonic() > began + MARKERS_S:
            left -= early
        # As many as are asked for are waited for.
        for message in [*consumer.consume(1, 0.2), *consumer.consume(10_000, 0)]:
            if message.error() is None:
                found.append(message)
            elif message.offset() < ends[message.partition()]:
                early.add(message.partition())
            else:
                left.discard(message.partition())
    consumer.close()
    return found


def _ends(kafka: str, topic: str, partitions: int) -> list[int]:
    """Return where a topic's partitions end, whatever in them is committed; of a broker that was just started once it leads them."""

    def asked() -> list[int] | None:
        consumer = Consumer({"bootstrap.servers": kafka, "group.id": f"ends-{uuid4().hex}", "isolation.level": "read_uncommitted"})
        try:
            return [consumer.get_watermark_offsets(TopicPartition(topic, p), DEADLINE_S)[1] for p in range(partitions)]
        except KafkaException as error:
            if error.args[0].code() not in LEADER_MOVES:
                raise
            return None
        finally:
            consumer.close()

    ends: list[int] = wait_for(asked, what=f"the ends of {topic}")
    return ends


def ids(messages: Iterable[Any]) -> list[str]:
    """Return the CloudEvents ids of records."""
    return [dict(message.headers())["ce_id"].decode() for message in messages]


def per_source(messages: Iterable[Any]) -> dict[str, list[int]]:
    """Return the sequence numbers of records by source, in the order read."""
    found: dict[str, list[int]] = {}
    for message in messages:
        fields = dict(message.headers())
        found.setdefault(fields["ce_source"].decode(), []).append(int(fields["ce_id"].decode().rsplit("-", 1)[1]))
    return found

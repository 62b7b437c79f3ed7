"""Workers of a topic route moved step by step on the simulated broker: for what random search meets too seldom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from relay.delivery.batch import Batch
from relay.delivery.deadletter import Letters
from relay.delivery.evidence_reading import MonitorView
from relay.delivery.topic.route import TopicDelivery
from relay.kafka.group import GroupConsumer
from relay.kafka.reading import PartitionReader
from relay.kafka.transactions import TransactionalInstance
from relay.message.envelope import OUT_DIGEST
from relay.message.errors import Retriable, Stuck, Unreachable
from relay.message.record import LogMessage, LogPartition
from relay.monitor.evidence import Evidence
from tests.contracts.kafka_systems import SimulatedKafka, until
from tests.memory_index import memory_index
from tests.simulation.calling import CallingWorld
from tests.simulation.crew import RELAY, ROUTE
from tests.simulation.scheduler import Process

GROUP: Final = f"{RELAY}.{ROUTE}"
TOPIC_ID: Final = b"id of the log"
RECOVERIES_MAX: Final = 5
DEAF_S: Final = 60.0


class Stage:
    """One log partition, its route's topics, and what is to happen when a worker passes a step."""

    def __init__(self, world: CallingWorld, system: SimulatedKafka) -> None:
        self.world = world
        self.system = system
        self.log, self.out, self.dead, self.monitor = (LogPartition(system.topic(), 0) for _ in range(4))
        self._waiting: dict[tuple[Process, str], Callable[[], object]] = {}

    def worker(self, name: str, transactional_id: str = "") -> Worker:
        """Start a worker and let it join the group; its id is its name, unless it is somebody's again."""
        return Worker(self, name, transactional_id or name)

    def when(self, worker: Worker, point: str, action: Callable[[], object]) -> None:
        """Have something happen when the worker next passes a crash point."""
        self._waiting[worker.process, point] = action

    def passed(self, process: Process, point: str) -> None:
        """For ``installed``: a process passes a crash point."""
        action = self._waiting.pop((process, point), None)
        if action is not None:
            action()

    def drop(self, worker: Worker) -> None:
        """The group drops its one member; the news does not reach it before it polls."""
        (name,) = self.system.cluster.groups.group(GROUP).members
        self.system.cluster.network.deaf[worker.process.name] = self.world.now + DEAF_S
        self.system.expel(GROUP, name)

    def end_again(self, worker: Worker) -> Callable[[], object]:
        """A late copy of the EndTxn (commit) by which the worker ended its last transaction (KAFKA-17754)."""
        assert worker.delivery._producer is not None
        instance = worker.delivery._producer._tx
        assert isinstance(instance, TransactionalInstance)
        identity = instance._producer._identity  # type: ignore[attr-defined]
        return lambda: self.system.cluster.transactions.end(instance.transactional_id, *identity, commit=True)

    def delivered(self) -> list[int]:
        """The messages that a read_committed reader of the output finds, in its order."""
        with self.system.reader(committed=False) as scanner:
            span = scanner.watermarks(self.out)
        with self.system.reader(committed=True) as reader:
            found = [record for records in reader.read({self.out: span}) for record in records]
        return [int(dict(record.headers() or ())[OUT_DIGEST], 16) for record in found]


class Worker:
    """One worker: its process, its membership, and production's delivery on production's adapters."""

    def __init__(self, stage: Stage, name: str, transactional_id: str) -> None:
        self.process = stage.world.process(name)
        self._stage = stage
        index = memory_index(0)
        self.view = MonitorView(0, index, Evidence(index.add_page, index.void), 0, 0)
        with stage.world.acting_as(self.process):
            self.member: GroupConsumer = stage.system.group(GROUP, stage.log.topic)
            letters = Letters(route=ROUTE, target=stage.out.topic, group=GROUP, topic=stage.dead.topic, partitions=1)
            self.delivery = TopicDelivery(
                self, route=ROUTE, group_id=GROUP, transactional_id=transactional_id, monitor_topic=stage.monitor.topic,
                topic=stage.out.topic, topic_partitions=1, letters=letters, stop_on_dead=False,
            )  # fmt: skip
            until(self._is_assigned, "assignment")

    def transaction(self, transactional_id: str) -> TransactionalInstance:
        """As production's port."""
        return self._stage.system.instance(transactional_id)

    def reader(self, *, committed: bool, meanwhile: Callable[[], object] = bool) -> PartitionReader:
        """As production's port."""
        return self._stage.system.reader(committed=committed, meanwhile=meanwhile)

    def recover(self) -> None:
        """Recover once."""
        with self._stage.world.acting_as(self.process):
            self.delivery.recover(
                [self._stage.log], [self.view], self.member,
                lambda stored, *_: {p: at or 0 for p, at in stored.items()}, {self._stage.log.topic: TOPIC_ID},
            )  # fmt: skip

    def recover_until_it_can_be_told(self) -> None:
        """Recover as a worker does: again while something hides the evidence."""
        for _ in range(RECOVERIES_MAX):
            try:
                return self.recover()
            except (Stuck, Retriable, Unreachable):
                continue  # in doubt: the next recovery finds out
        raise AssertionError(f"stuck after {RECOVERIES_MAX} recoveries")

    def batch(self, *offsets: int, first: int, position: int) -> Batch:
        """Make a batch of messages under the membership that holds now."""
        log = self._stage.log
        return Batch(
            1, [_message(log, offset) for offset in offsets], {log: first}, {log: position}, {log: max(offsets) + 1},
            membership=self.member.membership(),
        )  # fmt: skip

    def deliver(self, batch: Batch) -> None:
        """Deliver a batch, whenever it was made."""
        with self._stage.world.acting_as(self.process):
            self.delivery.submit(batch)

    def _is_assigned(self) -> bool:
        self.member.consume(1, 0.05)
        return bool(self.member.assigned)


def _message(log: LogPartition, offset: int) -> LogMessage:
    return LogMessage(
        log.topic, 0, offset, b"k", b"v", [], offset.to_bytes(16, "big"), b"c" * 8, b"lane", None, 0
    )

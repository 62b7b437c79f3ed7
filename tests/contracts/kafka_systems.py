"""What the Kafka contract is tested on: the simulated broker and client, and real ones, below the same adapters.

Faults are asked for by name: an answer lost after its effect, an EndTxn kept back, a member removed from outside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from relay.chaos.frame_proxy import END_TXN, PRODUCE, TXN_OFFSET_COMMIT, FrameProxy, api, end_txn
from relay.config.timing import Timing
from relay.kafka import settings
from relay.kafka.appender import Appender
from relay.kafka.control import ControlTopic
from relay.kafka.group import GroupConsumer
from relay.kafka.reading import BATCH_RECORDS, PartitionReader
from relay.kafka.transactions import TransactionalInstance
from relay.message.record import LogPartition
from relay.world import clock
from tests.cluster_changes import make_topics
from tests.routes import leave_group
from tests.simulation.network import FINE, Fate, Weather
from tests.simulation.producer import SimProducer
from tests.simulation.scheduler import World
from tests.simulation.site import Cluster

TIMING: Final = Timing(transaction_timeout=10, socket_timeout=4, session_timeout=6, append_timeout=8)
WAIT_S: Final = 20.0
_APIS: Final = {"Produce": PRODUCE, "EndTxn": END_TXN, "TxnOffsetCommit": TXN_OFFSET_COMMIT}


def until(check: Callable[[], Any], what: str) -> Any:
    """Look again and again until ``check`` finds something; return it."""
    limit = clock.monotonic() + WAIT_S
    while not (found := check()):
        assert clock.monotonic() < limit, f"no {what} after {WAIT_S:.0f} s"
        clock.sleep(0.02)
    return found


class KafkaSystem(ABC):
    """A broker with topics, production's adapters on it, and what can be done to it from outside."""

    kafka: dict[str, str]

    @abstractmethod
    def topic(self, partitions: int = 1, bytes_max: int = 1_000_000) -> str:
        """Create a topic under a fresh name."""

    @abstractmethod
    def lose_answer(self, name: str) -> None:
        """The next request of this api takes effect and its connection is reset instead of answered."""

    @abstractmethod
    def keep_end(self, instance: TransactionalInstance) -> Callable[[], int]:
        """Keep the instance's next EndTxn (commit) back and reset its connection; calling lets it arrive: an error code."""

    @abstractmethod
    def expel(self, group: str, member: str) -> None:
        """Remove a member from its group, as an administrator does; it learns of it by its next heartbeat."""

    @abstractmethod
    def drop_below(self, place: LogPartition, offset: int) -> None:
        """Move the low watermark."""

    def instance(
        self, transactional_id: str, timing: Timing = TIMING, *, one_each: bool = False
    ) -> TransactionalInstance:
        """Make an instance that has not called ``init`` yet."""
        made = settings.producer(self.kafka, timing, transactional_id, log_level=0)
        return TransactionalInstance(made, transactional_id, timing.transaction_timeout, one_each=one_each)

    def reader(
        self, *, committed: bool, deadline_s: float = 10.0, batch: int = BATCH_RECORDS,
        meanwhile: Callable[[], object] = bool,
    ) -> PartitionReader:  # fmt: skip
        """Make a reader by hand."""
        made = settings.consumer(self.kafka, TIMING, "contract.reader")
        return PartitionReader(
            made, committed=committed, clock=clock.monotonic, deadline_s=deadline_s, batch=batch, meanwhile=meanwhile
        )

    def group(self, name: str, topic: str, polls_within_s: float = 300.0) -> GroupConsumer:
        """Make a member, which joins when it is polled, and is expelled when it is not for so long."""
        over = {"max.poll.interval.ms": round(polls_within_s * 1000)}
        return GroupConsumer(settings.consumer(self.kafka, TIMING, name, **over), [topic], lambda: None)

    def appender(self) -> Appender:
        """Make a publisher's producer."""
        return Appender(self.kafka, TIMING)

    def control(self, topic: str) -> ControlTopic:
        """Open a control topic."""
        reads = settings.consumer(self.kafka, TIMING, "contract.control")
        return ControlTopic(reads, settings.producer(self.kafka, TIMING, log_level=0), topic, clock.monotonic, 10.0)


class NextFate(Weather):
    """Everything goes well, except for the next request of the apis named."""

    def __init__(self) -> None:
        super().__init__(Random(0))
        self.next: dict[str, Fate] = {}

    def fate(self, api: str) -> Fate:
        """Return what was asked for, once."""
        return self.next.pop(api, FINE)


class SimulatedKafka(KafkaSystem):
    """The simulator's cluster; the world goes on whenever the test waits."""

    def __init__(self, world: World) -> None:
        self.kafka = {"bootstrap.servers": "127.0.0.1:1"}
        self.cluster = Cluster(world)
        self._world = world
        self._weather = self.cluster.weather = self.cluster.network.weather = NextFate()

    def topic(self, partitions: int = 1, bytes_max: int = 1_000_000) -> str:
        name = f"t{len(self.cluster.topics.by_name)}"
        self.cluster.topics.create(name, partitions, bytes_max)
        return name

    def lose_answer(self, name: str) -> None:
        self._weather.next[name] = Fate(answer_lost=True)

    def keep_end(self, instance: TransactionalInstance) -> Callable[[], int]:
        self._weather.next["EndTxn"] = Fate(late_s=None, cut=True)
        producer = instance._producer
        assert isinstance(producer, SimProducer)
        identity = producer._identity
        assert identity is not None

        def arrive() -> int:
            end = self.cluster.transactions.end
            while (code := end(instance.transactional_id, *identity, commit=True)) == KafkaError.CONCURRENT_TRANSACTIONS:
                self._world.sleep(0.005)
            return code

        return arrive

    def expel(self, group: str, member: str) -> None:
        self.cluster.groups.group(group).leave(member)

    def drop_below(self, place: LogPartition, offset: int) -> None:
        self.cluster.topics.partition(place).drop_below(offset)


class RealKafka(KafkaSystem):
    """A broker that every client reaches through the frame proxy."""

    def __init__(self, proxy: FrameProxy, broker: str) -> None:
        self.kafka = {"bootstrap.servers": proxy.address}
        self._proxy = proxy
        self._broker = broker
        self._admin = AdminClient({"bootstrap.servers": broker})

    def close(self) -> None:
        """End the client of its own, which would look for the broker for as long as anything refers to this."""
        del self._admin

    def topic(self, partitions: int = 1, bytes_max: int = 1_000_000) -> str:
        name = f"contract-{uuid4().hex[:8]}"
        new = NewTopic(name, num_partitions=partitions, config={"max.message.bytes": str(bytes_max)})
        make_topics(self._admin, new)
        return name

    def lose_answer(self, name: str) -> None:
        self._proxy.drop_answer(api(_APIS[name]), reset=True)

    def keep_end(self, instance: TransactionalInstance) -> Callable[[], int]:
        match = end_txn(committed=True, transactional_id=instance.transactional_id)
        return self._proxy.hold(match, reset=True).release_end_txn

    def expel(self, group: str, member: str) -> None:
        leave_group(self._broker, group, member)

    def drop_below(self, place: LogPartition, offset: int) -> None:
        wanted = TopicPartition(place.topic, place.partition, offset)
        for done in self._admin.delete_records([wanted]).values():
            done.result(WAIT_S)

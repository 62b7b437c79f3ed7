"""The simulated cluster as one piece, and how its clients reach it: blocking calls over requests that repeat.

librdkafka repeats what failed on the way silently, under the same producer id and epoch; so do these clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from relay.message.record import LogPartition
from tests.simulation.broker import Topics
from tests.simulation.broker_groups import Groups, OffsetsOf
from tests.simulation.broker_transactions import Transactions
from tests.simulation.network import Connection, Network, Weather
from tests.simulation.scheduler import Process, Waiters, World

BACKOFF_S: Final = (0.01, 0.04)
REPEATED: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
"""What the client itself repeats until it is told to stop."""

Ask = Callable[[], tuple[int, Any]]
Done = Callable[[int, Any], None]


class Cluster:
    """Broker, coordinators and network of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.weather = Weather(world.rng)
        self.brokers = world.rng.choice((1, 3))
        self.network = Network(world, self.weather, self.brokers)
        self.topics = Topics(world)
        self.groups = Groups(world, self.topics)
        self.marker_slow = 0.0
        self.transactions = Transactions(world, self.topics, self.groups, self._marker_delay)
        self.hang_rate = 0.0

    def commit_in_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        membership: tuple[str, str, int],
        offsets: dict[LogPartition, tuple[int, str]],
    ) -> tuple[int, None]:
        """TxnOffsetCommit with the verification that every first write of a transaction to a partition meets."""
        name, member, generation = membership
        group = self.groups.group(name)
        if producer_id not in group.pending:
            refused = self.transactions.verify(transactional_id, producer_id, epoch, OffsetsOf(name))
            if refused:
                return refused, None
        return group.commit_in_transaction((producer_id, epoch), member, generation, offsets), None

    def leader_of(self, place: LogPartition) -> int:
        """Return the broker that leads a partition."""
        return (len(place.topic) + place.partition) % self.brokers

    def _marker_delay(self) -> float:
        rng = self.world.rng
        if self.marker_slow and rng.random() < self.marker_slow:
            return rng.uniform(0.05, 3.0)
        return rng.uniform(0.0003, 0.004)


class Client:
    """What producers and consumers have in common: a process, a cluster, and calls that wait for the background."""

    is_lost = is_overdue = False

    def __init__(self, cluster: Cluster, socket_timeout_s: float) -> None:
        world = cluster.world
        assert world.current is not None, "clients are made inside a process"
        self.cluster = cluster
        self.world = world
        self.process: Process = world.current.process
        self.closed = False
        self._leaders: dict[int, Connection] = {}
        self._socket_timeout_s = socket_timeout_s

    def connect(self, role: str) -> Connection:
        """Make a connection of this client to the first broker, which has both coordinators."""
        return self.cluster.network.connect(self.process, role)

    def leader(self, place: LogPartition) -> Connection:
        """Return the connection to a partition's leader."""
        broker = self.cluster.leader_of(place)
        found = self._leaders.get(broker)
        if found is None:
            found = self._leaders[broker] = self.cluster.network.connect(self.process, "leader", broker)
        return found

    @property
    def was_reset(self) -> bool:
        """Has a leader's connection of this client ever been reset?"""
        return any(connection.resets for connection in self._leaders.values())

    def repeat(
        self, connection: Connection, api: str, ask: Ask, done: Done, also: frozenset[int] = frozenset()
    ) -> None:
        """Ask in the background until there is an answer that is not to be repeated."""

        def send() -> None:
            if not self.closed:
                connection.request(api, lambda reply: reply(ask()), answered, self._socket_timeout_s)

        def answered(code: int, answer: Any) -> None:
            if self.closed:
                return
            found = None
            if code == 0:
                code, found = answer
            if code in REPEATED or code in also:
                self.process.at(self.world.rng.uniform(*BACKOFF_S), send)
            else:
                done(code, found)

        send()

    def wait_for(self, start: Callable[[Done], None], timeout_s: float) -> tuple[int, Any]:
        """Block until the background is done. Raises KafkaException (timed out, retriable); the asking goes on then."""
        world = self.world
        found: list[tuple[int, Any]] = []
        waiters = Waiters(world)

        def done(code: int, answer: Any) -> None:
            found.append((code, answer))
            waiters.wake_all()

        world.call()
        start(done)
        limit = world.now + timeout_s
        while not found:
            if world.now >= limit:
                raise failure(KafkaError._TIMED_OUT, retriable=True)
            waiters.wait(limit - world.now)
        return found[0]


def failure(code: int, *, fatal: bool = False, retriable: bool = False, abort: bool = False) -> KafkaException:
    """Make the client's exception for a code."""
    return KafkaException(error(code, fatal=fatal, retriable=retriable, abort=abort))


def error(code: int, *, fatal: bool = False, retriable: bool = False, abort: bool = False) -> KafkaError:
    """Make the client's error for a code."""
    return KafkaError(code, "simulated", fatal, retriable, abort)

"""What the relay relies on in Kafka, tried through its own adapters on the simulator and on a real broker.

Where both pass, what a simulation proves holds for the real one as well. The suites are `kafka_reading.py`,
`kafka_transactions.py` and `kafka_groups.py`; what only the simulator can be told to do is tried here.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from relay.kafka.transactions import TransactionalInstance
from relay.message.record import LogPartition
from tests.contracts.kafka_contract import failing
from tests.contracts.kafka_groups import GroupContract
from tests.contracts.kafka_reading import ReadingContract
from tests.contracts.kafka_systems import TIMING, KafkaSystem, RealKafka, SimulatedKafka
from tests.contracts.kafka_transactions import TransactionContract
from tests.own_services import ProxiedBroker
from tests.simulation import kafka_ports
from tests.simulation.calling import CallingWorld
from tests.simulation.installation import installed
from tests.simulation.scheduler import Crashed


class Simulated:
    """The world of one test."""

    @pytest.fixture
    def world(self) -> CallingWorld:
        return CallingWorld(7)

    @pytest.fixture
    def system(self, world: CallingWorld) -> Iterator[KafkaSystem]:
        made = SimulatedKafka(world)
        with installed(world, also=kafka_ports.stand_ins(made.cluster, kafka_ports.Disks())):
            yield made


class Real:
    """The session's broker, behind the proxy."""

    @pytest.fixture
    def system(self, proxied_kafka: RealKafka) -> KafkaSystem:
        return proxied_kafka


@pytest.fixture(scope="module")
def proxied_kafka(proxied_broker: ProxiedBroker) -> Iterator[RealKafka]:
    """A broker that advertises the proxy's address."""
    kafka = RealKafka(*proxied_broker)
    yield kafka
    kafka.close()
    gc.collect()  # instances that were thrown away would look for the broker once it has ended


class TestSimulatedReading(Simulated, ReadingContract):
    pass


class TestSimulatedTransactions(Simulated, TransactionContract):
    def test_a_process_that_dies_in_its_commit_leaves_all_or_nothing(self, world: CallingWorld) -> None:
        """Whatever its last steps were, its successor finds a transaction that has ended, the same in both partitions."""
        outcomes = set()
        for steps in range(1, 6):
            places = [LogPartition(self.system.topic(), 0) for _ in range(2)]
            dying = world.process(f"dying-{steps}")
            transactional_id = f"dying-{steps}"
            with world.acting_as(dying):
                instance = self.begun(transactional_id)
                for place in places:
                    self.write(instance, place, "half")
                dying.kill_in = steps
                with pytest.raises(Crashed):
                    self.commit_for_ever(instance)
            self.begun(transactional_id).discard()
            one, other = (self.read(place) for place in places)
            assert one == other
            outcomes.add(len(one))
        assert outcomes == {0, 1}, "some of the deaths come before the decision and some after it"

    @staticmethod
    def commit_for_ever(instance: TransactionalInstance) -> None:
        while True:
            instance.commit()
            instance.begin()

    def test_a_transaction_that_nobody_ends_is_aborted_and_its_producer_fenced(self, world: CallingWorld) -> None:
        place = LogPartition(self.system.topic(), 0)
        instance = self.begun()
        self.write(instance, place, "forgotten")
        world.sleep(TIMING.transaction_timeout + 5)
        with failing(KafkaError._FENCED):
            instance.commit()
        assert self.read(place) == []


class TestSimulatedGroups(Simulated, GroupContract):
    def test_a_frozen_member_is_expelled_and_finds_its_partitions_given_away(
        self, world: CallingWorld, log: LogPartition, name: str
    ) -> None:
        other = world.process("frozen")
        with world.acting_as(other):
            frozen = self.join(name, log.topic)
            membership = frozen.membership()
        self.members.remove(frozen)
        other.freeze(30.0)
        heir = self.join(name, log.topic)
        assert len(heir.assigned or ()) == 2
        with failing(KafkaError.UNKNOWN_MEMBER_ID):
            self.begun().send_offsets({log: 7}, {}, membership)


class TestReading(Real, ReadingContract):
    pass


class TestTransactions(Real, TransactionContract):
    pass


class TestGroups(Real, GroupContract):
    pass

"""What every suite about Kafka does with the system under test: append, write in a transaction, read, join a group."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException

import relay.kafka.group
from relay.kafka.appender import Receipt, Record
from relay.kafka.failures import kafka_error
from relay.kafka.group import GroupConsumer
from relay.kafka.transactions import TransactionalInstance
from relay.message.errors import Unreachable
from relay.message.record import LogPartition
from relay.world import clock
from tests.contracts.kafka_systems import KafkaSystem, until

PREFIX = b"CGMDv2:"
"""How the client begins a membership, before generation and name."""
FENCED = (KafkaError.INVALID_PRODUCER_EPOCH, 90)
"""What is late of a former epoch is refused so; 90 is PRODUCER_FENCED, for which the client has no name."""


@contextmanager
def failing(*codes: int) -> Iterator[None]:
    """The client raises one of these, whatever it is wrapped in."""
    with pytest.raises(KafkaException) as raised:
        yield
    error = kafka_error(raised.value)
    assert error is not None
    assert error.code() in codes, f"{error.name()}: {error.str()}"


class Member(NamedTuple):
    """A member's name in its group and the generation that it knows."""

    name: str
    generation: int


def member_of(consumer: GroupConsumer) -> Member:
    body = consumer.membership()[len(PREFIX) :]
    (generation,) = struct.unpack_from("<i", body)
    return Member(body[4:].split(b"\0")[1].decode(), generation)


class KafkaContract:
    """The suite; subclasses give the system under test."""

    @pytest.fixture
    def system(self) -> Iterator[KafkaSystem]:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _given(self, system: KafkaSystem, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(relay.kafka.group, "COMMITTED_TIMEOUT_S", 0.5)
        self.system = system
        self.members: list[GroupConsumer] = []
        yield
        for member in self.members:
            member.close()

    def begun(self, transactional_id: str = "", *, one_each: bool = False) -> TransactionalInstance:
        """Make an instance with an open transaction."""
        made = self.system.instance(transactional_id or f"tx-{uuid4().hex[:8]}", one_each=one_each)
        made.init()
        made.begin()
        return made

    def write(self, instance: TransactionalInstance, place: LogPartition, *values: str) -> None:
        """Append and wait for the reports."""
        for value in values:
            instance.produce(place, None, value.encode())
        instance.flush()

    def append(self, place: LogPartition, *values: str) -> None:
        """Append outside transactions, as one capture."""
        publisher = self.system.appender()
        receipt = Receipt(len(values))
        records = [Record(*place, None, value.encode(), []) for value in values]
        publisher.append(records, receipt, clock.monotonic() + 5)
        assert receipt.wait(10)
        assert receipt.failure is None
        publisher.close()

    def read(self, place: LogPartition, *, committed: bool = True) -> list[str]:
        """Read to the high watermark, as recovery does."""
        with self.system.reader(committed=False) as scanner:
            span = scanner.watermarks(place)
        with self.system.reader(committed=committed) as reader:
            return [record.value().decode() for records in reader.read({place: span}) for record in records]

    def ends(self, place: LogPartition) -> tuple[int, int]:
        """The last stable offset and the high watermark."""
        with self.system.reader(committed=True) as stable, self.system.reader(committed=False) as scanner:
            return stable.watermarks(place)[1], scanner.watermarks(place)[1]

    def wait_for_markers(self, place: LogPartition) -> None:
        """Return when no transaction is open in the partition."""
        until(lambda: len(set(self.ends(place))) == 1, f"end of the transactions in {place}")

    def join(
        self, name: str, topic: str, others: Sequence[GroupConsumer] = (), polls_within_s: float = 300.0
    ) -> GroupConsumer:
        """Make a member that has its assignment, while the others are polled."""
        made = self.system.group(name, topic, polls_within_s)
        self.members.append(made)
        self.poll_until(lambda: made.assigned, made, *others)
        return made

    def poll_until(self, check: Callable[[], Any], *consumers: GroupConsumer) -> None:
        def look() -> bool:
            for consumer in consumers:
                consumer.consume(1, 0.05)
            return bool(check())

        until(look, "assignment as expected")

    def positions(self, consumer: GroupConsumer, place: LogPartition) -> tuple[int, str] | None:
        """The position, once no transaction has one pending and the coordinator tells it in time."""

        def look() -> list[tuple[int, str] | None]:
            try:
                return [self._committed(consumer, place)]
            except Unreachable:
                return []

        return until(look, "committed offsets")[0]

    @staticmethod
    def _committed(consumer: GroupConsumer, place: LogPartition) -> tuple[int, str] | None:
        return consumer.committed([place]).get(place)

"""A record that the broker refuses becomes a dead letter, and nothing of it stays in the worker's memory."""

from __future__ import annotations

import pytest

from relay.delivery.batch import Batch
from relay.message.envelope import Headers
from relay.message.errors import InDoubt, RecordRefused
from relay.message.record import LogPartition
from tests.unit.memory_kafka import MemoryKafka, MemoryTransaction
from tests.unit.test_recovery_again import DEAD, LOG, OUT, Process, message


class Refusing(MemoryKafka):
    """Takes no output."""

    def transaction(self, transactional_id: str) -> MemoryTransaction:
        return Refused(self, transactional_id)


class Refused(MemoryTransaction):
    def produce(
        self,
        partition: LogPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        if partition == OUT:
            raise RecordRefused("it is too large")
        super().produce(partition, key, value, headers, timestamp_ms)


def test_a_refused_record_is_forgotten_when_its_dead_letter_is_written() -> None:
    process = Process(Refusing())
    for offset in range(3):
        batch = Batch(
            1, [message(offset)], {LOG: offset}, {LOG: offset + 1}, {LOG: offset + 1}, membership=b"member"
        )
        process.recover()
        with pytest.raises(InDoubt):
            process.delivery.submit(batch)
        process.recover()
        process.delivery.submit(batch)

    assert len(process.kafka.visible(DEAD)) == 3
    assert not process.delivery._condemned

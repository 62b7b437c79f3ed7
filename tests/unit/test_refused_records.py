"""A record that the broker refuses becomes a dead letter, and nothing of it stays in the worker's memory."""

from __future__ import annotations

import pytest

from relay.delivery.batch import Batch
from relay.message.errors import InDoubt, RecordRefused
from relay.message.record import LogPartition
from tests.unit.memory_kafka import MemoryKafka
from tests.unit.test_recovery_again import DEAD, LOG, OUT, Process, message


def no_output(_: str, partition: LogPartition, _key: bytes | None) -> None:
    if partition == OUT:
        raise RecordRefused("it is too large")


def test_a_refused_record_is_forgotten_when_its_dead_letter_is_written() -> None:
    process = Process(MemoryKafka())
    process.kafka.appending = no_output
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

"""The plainest possible clients, for references that the benchmarks measure against."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from relay.kafka import settings
from relay.kafka.settings import DefaultTiming
from relay.message.envelope import Headers
from relay.message.errors import Unreachable
from relay.message.record import LogPartition

_BATCH: Final = 10_000
_WAIT_S: Final = 0.2
_EMPTY_MAX: Final = 100
_ROOM_S: Final = 0.05
_FLUSH_S: Final = 60.0
_LINGER: Final = {"linger.ms": 50}
_VALUE_BYTES: Final = 256


def append(
    kafka: str,
    partition: LogPartition,
    records: Iterable[tuple[bytes, bytes] | tuple[bytes, bytes, Headers]],
    **over: Any,
) -> tuple[int, int]:
    """Append records of key, value and perhaps headers to a partition; return their number and their bytes without framing."""
    producer = Producer({**settings.producer({"bootstrap.servers": kafka}, DefaultTiming()), **_LINGER, **over})
    failed: list[Any] = []

    def told(error: Any, _message: object) -> None:
        if error is not None:
            failed.append(error)

    count = size = 0
    for key, value, *headers in records:
        named: Any = headers[0] if headers else None
        while True:
            try:
                producer.produce(
                    partition.topic, value, key, partition.partition, on_delivery=told, headers=named
                )
                break
            except BufferError:
                producer.poll(_ROOM_S)
        count += 1
        size += len(key) + len(value)
    if producer.flush(_FLUSH_S) or failed:
        raise Unreachable(f"not every record of {partition} was acknowledged: {failed[:1]}")
    return count, size


def consume_plainly(kafka: str, partition: LogPartition, count: int) -> int:
    """Read ``count`` records from the start, looking at key and value of each; return their bytes."""
    consumer = Consumer(settings.consumer({"bootstrap.servers": kafka}, DefaultTiming(), "plain"))
    try:
        consumer.assign([TopicPartition(partition.topic, partition.partition, 0)])
        seen = size = empty = 0
        while seen < count:
            records = consumer.consume(_BATCH, _WAIT_S)
            empty = 0 if records else empty + 1
            if empty == _EMPTY_MAX:
                raise Unreachable(f"{partition} gave {seen} of {count} records and then nothing")
            for record in records:
                size += len(record.key() or b"") + len(record.value() or b"")
            seen += len(records)
    except KafkaException as error:
        raise Unreachable(f"{partition} cannot be read: {error}") from error
    finally:
        consumer.close()
    return size


class Steady:
    """A publisher that hands over one record at a time, at its caller's pace: 256 bytes, with CloudEvents headers."""

    def __init__(self, kafka: str, topic: str, partitions: int) -> None:
        # Not the batches of a producer in a hurry: what is measured is what comes behind it.
        self._producer = Producer({**settings.producer({"bootstrap.servers": kafka}, DefaultTiming()), "linger.ms": 0})
        self._topic = topic
        self._partitions = partitions

    def append(self, key: bytes, number: int) -> None:
        """Hand over the record of that number."""
        partition = number % self._partitions
        headers: list[tuple[str, str | bytes | None]] = [
            ("ce_specversion", b"1.0"),
            ("ce_id", b"%d" % number),
            ("ce_source", b"/bench/%d" % partition),
            ("ce_type", b"bench"),
        ]
        self._producer.produce(self._topic, bytes(_VALUE_BYTES), key, partition, headers=headers)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all is acknowledged. Raises Unreachable."""
        if self._producer.flush(_FLUSH_S):
            raise Unreachable(f"not every record of {self._topic} was acknowledged")

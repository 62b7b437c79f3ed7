"""The reference of the topic benchmark: the plain transactional consume-produce loop of the client's own examples.

It copies key, value and headers, sends offsets with the transaction, and removes no duplicate.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from relay.kafka import settings
from relay.kafka.settings import DefaultTiming

WAIT_S: Final = 0.01


def loop(kafka: str, source: str, target: str, partitions: int, count: int, at_once: int) -> None:
    """Copy ``count`` records of ``source`` to ``target``, up to ``at_once`` in a transaction."""
    bootstrap = {"bootstrap.servers": kafka}
    consumer = Consumer(settings.consumer(bootstrap, DefaultTiming(), f"plain-{target}"))
    producer = Producer(settings.producer(bootstrap, DefaultTiming(), f"plain-{target}"))
    producer.init_transactions()
    consumer.assign([TopicPartition(source, p, 0) for p in range(partitions)])
    copied = 0
    while copied < count:
        records = [one for one in consumer.consume(at_once, WAIT_S) if one.error() is None]
        if records:
            _transaction(consumer, producer, records, target)
            copied += len(records)
    consumer.close()


def _transaction(consumer: Consumer, producer: Producer, records: list[Any], target: str) -> None:
    producer.begin_transaction()
    ends: dict[tuple[str, int], int] = {}
    for record in records:
        producer.produce(
            target, value=record.value(), key=record.key(), partition=record.partition(), headers=record.headers()
        )
        ends[record.topic(), record.partition()] = record.offset() + 1
    offsets = [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
    producer.commit_transaction()


def fill(kafka: str, topic: str, partitions: int, count: int, size: int = 256) -> None:
    """Append ``count`` records of ``size`` random bytes with CloudEvents headers, one source per partition.

    Random, so that neither side gains by compression what real payloads would not give.
    """
    noise = os.urandom(1 << 20)
    producer = Producer({**settings.producer({"bootstrap.servers": kafka}, DefaultTiming()), "linger.ms": 50})
    for number in range(count):
        partition = number % partitions
        start = number * 61 % (len(noise) - size)
        headers: list[tuple[str, str | bytes | None]] = [
            ("ce_specversion", b"1.0"),
            ("ce_id", b"%d" % number),
            ("ce_source", b"/bench/%d" % partition),
            ("ce_type", b"bench"),
        ]
        while True:
            try:
                producer.produce(topic, value=noise[start : start + size], key=b"%d" % partition, partition=partition, headers=headers)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.flush()


if __name__ == "__main__":
    loop(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]))

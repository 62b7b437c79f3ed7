"""The reference of the table benchmark: the loop that one writes by hand, from a topic into PostgreSQL.

It takes 5,000 records, parses them, inserts them with ``unnest`` and ``on conflict do nothing``, and then commits the
offsets: rows twice are kept out by the table's own key, and nothing else is promised.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final
from uuid import UUID

import orjson
import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition

from relay.kafka import settings
from relay.kafka.settings import DefaultTiming
from relay.message.errors import Unreachable
from relay.world import clock

BATCH: Final = 5_000
WAIT_S: Final = 0.2
FLUSH_S: Final = 60.0
PATIENCE: Final = {"linger.ms": 50, "message.timeout.ms": 60_000}
"""A producer that fills as fast as it can waits in its own queue for longer than a capture may."""
INSERT: Final = """
insert into ledger (id, customer, total)
select * from unnest(%s::text[], %s::text[], %s::bigint[]) on conflict do nothing
"""


def reference_loop(kafka: str, postgres: str, topic: str, messages: int, partitions: int = 4) -> float:
    """Move ``messages`` records of ``topic`` into the table ``ledger`` and return records per second."""
    consumer = Consumer(settings.consumer({"bootstrap.servers": kafka}, DefaultTiming(), f"plain-{topic}"))
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    begun = clock.monotonic()
    moved = 0
    with psycopg.connect(postgres) as connection:
        while moved < messages:
            records = [record for record in consumer.consume(BATCH, WAIT_S) if record.error() is None]
            if records:
                _insert(connection, records)
                _commit_offsets(consumer, records)
                moved += len(records)
    seconds = clock.monotonic() - begun
    consumer.close()
    return moved / seconds


def _insert(connection: psycopg.Connection[Any], records: list[Any]) -> None:
    values = [orjson.loads(record.value()) for record in records]
    columns = [[value[name] for value in values] for name in ("id", "customer", "total")]
    connection.execute(INSERT, columns)
    connection.commit()


def _commit_offsets(consumer: Consumer, records: list[Any]) -> None:
    ends = {(record.topic(), record.partition()): record.offset() + 1 for record in records}
    offsets = [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]
    consumer.commit(offsets=offsets, asynchronous=False)


def fill(kafka: str, topic: str, partitions: int, count: int, size: int = 256) -> None:
    """Append ``count`` JSON records of ``size`` bytes with CloudEvents headers, one source per partition.

    Raises Unreachable if not every record was acknowledged.
    """
    failed: list[Any] = []

    def told(error: Any, _record: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {**settings.producer({"bootstrap.servers": kafka}, DefaultTiming()), **PATIENCE}
    )
    for partition, value, headers in _records(partitions, count, size):
        while True:
            try:
                producer.produce(topic, value, b"%d" % partition, partition, headers=headers, on_delivery=told)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(FLUSH_S) or failed:
        raise Unreachable(f"not every record of {topic} was acknowledged: {failed[:1]}")


def _records(
    partitions: int, count: int, size: int
) -> Iterator[tuple[int, bytes, list[tuple[str, str | bytes | None]]]]:
    for number in range(count):
        partition = number % partitions
        # Ids as producers make them: in no order, so that both sides' indexes are written at random places.
        name = str(UUID(bytes=blake2b(number.to_bytes(8, "big"), digest_size=16).digest()))
        order = {"id": name, "customer": f"customer-{number % 1000:03d}", "total": 10**6 + number, "note": ""}
        value = orjson.dumps(order)
        value = value[:-2] + b"." * (size - len(value)) + value[-2:]
        yield partition, value, [
            ("ce_specversion", b"1.0"),
            ("ce_id", name.encode()),
            ("ce_source", b"/bench/%d" % partition),
            ("ce_type", b"bench"),
        ]


if __name__ == "__main__":
    reference_loop(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

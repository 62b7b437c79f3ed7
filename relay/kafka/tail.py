"""A reader that hands on each record as soon as it is there: for measuring when something shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Message, TopicPartition

from relay.kafka.clients import Consumer
from relay.message.record import LogPartition

_WAIT_S: Final = 0.1
_BATCH: Final = 1000


def tail(
    settings: Mapping[str, Any],
    partitions: Iterable[LogPartition],
    firsts: Mapping[LogPartition, int] | None = None,
) -> Iterator[list[Message]]:
    """Yield records of the partitions, from ``firsts`` or else their beginning, for ever, without waiting for a batch.

    An empty list now and then lets the caller stop.
    """
    consumer = Consumer(dict(settings))
    given = firsts or {}
    consumer.assign([TopicPartition(place.topic, place.partition, given.get(place, 0)) for place in partitions])
    try:
        while True:
            first = consumer.poll(_WAIT_S)
            found = [] if first is None else [first, *consumer.consume(_BATCH, 0)]
            yield [record for record in found if record.error() is None]
    finally:
        consumer.close()

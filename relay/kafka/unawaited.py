"""Appends without waiting or looking back: what does not arrive is appended again, or merely missing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from confluent_kafka import KafkaException

from relay.kafka.clients import Doubt, Producer
from relay.kafka.settings import TimingLike, producer
from relay.message.envelope import Headers
from relay.message.record import LogPartition

_CLOSE_S: Final = 1.0


class UnawaitedAppender:
    """For inquiries, which are asked again, and for markers, which only hasten. For one thread."""

    def __init__(self, kafka: Mapping[str, str], timing: TimingLike) -> None:
        self._settings = producer(kafka, timing, log_level=0)
        self._producer: Producer | None = None
        self._doubt = Doubt()

    def put(self, place: LogPartition, key: bytes, value: bytes, headers: Headers | None = None) -> None:
        """Hand a record over."""
        self._produce(place.topic, key, value, headers, partition=place.partition)

    def put_by_key(self, topic: str, key: bytes, value: bytes) -> None:
        """Hand a record over, for the partition that its key decides."""
        self._produce(topic, key, value, None)

    def close(self) -> None:
        """Give what is under way a moment: the process may end right after."""
        if self._producer is not None:
            with suppress(KafkaException):  # It has failed for good, and nobody has asked it since.
                self._producer.flush(_CLOSE_S)

    def _produce(self, topic: str, key: bytes, value: bytes, headers: Headers | None, **partition: int) -> None:
        if self._producer is None or self._doubt.is_there:
            self._producer = Producer(self._settings)
            self._doubt.is_there = False
        try:
            with suppress(BufferError):  # This record is merely missing; what timed out before keeps its place until it is reported.
                self._producer.produce(topic, value, key, on_delivery=self._doubt.told, headers=headers, **partition)  # type: ignore[arg-type]
            self._producer.poll(0)
        except KafkaException:
            self._producer = None  # With another producer next time: one that has failed for good takes nothing any more.

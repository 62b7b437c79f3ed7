"""The control topic: a small compacted table of what is recorded for all workers of a relay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message

from relay.kafka.clients import Doubt, Producer
from relay.kafka.failures import is_denied, is_end, unavailable
from relay.kafka.reading import PartitionReader
from relay.message.record import LogPartition


class ControlTopic:
    """Reads and writes records of ``<relay>.control``; one instance per worker, on one thread."""

    def __init__(
        self,
        consumer: Mapping[str, object],
        producer: Mapping[str, object],
        topic: str,
        clock: Callable[[], float],
        timeout_s: float,
    ) -> None:
        self._consumer = consumer
        self._made = dict(producer)
        self._partition = LogPartition(topic, 0)
        self._clock = clock
        self._timeout_s = timeout_s
        self._doubt = Doubt()

    @cached_property
    def _producer(self) -> Producer:
        """Made when it is needed: who only reads may lack the right to write, and the client would say so by itself."""
        return Producer(self._made)

    def connect(self) -> Self:
        """Make the producer now, for whoever writes in any case: its first record need not wait for a connection."""
        _ = self._producer
        return self

    def first(self, key: bytes) -> bytes | None:
        """Return the first record under ``key`` that compaction has left: who wrote first, decided."""
        return next(self._values(key), None)

    def under(self, prefixes: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        """Return key and value of every record whose key begins so, in the order in which they were written."""
        wanted = tuple(prefixes)
        return [(key, value) for key, value in self._records() if key.startswith(wanted)]

    def _values(self, key: bytes) -> Iterator[bytes]:
        yield from (value for found, value in self._records() if found == key and value is not None)

    def _records(self) -> Iterator[tuple[bytes, bytes | None]]:
        with PartitionReader(
            self._consumer, committed=False, clock=self._clock, deadline_s=self._timeout_s
        ) as reader:
            low, high = reader.watermarks(self._partition)
            for records in reader.read({self._partition: (low, high)}):
                yield from ((record.key() or b"", record.value()) for record in records)

    def put(self, key: bytes, value: bytes | None, *, wait: bool) -> None:
        """Append a record, or without a value let the key go; with ``wait`` see that it is acknowledged.

        Raises Unreachable if it is not, ConfigError if that is not allowed.
        """
        failures: list[KafkaError] = []
        doubt = self._doubt

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error)
                doubt.told(error)

        left = 1
        try:
            self._append_again(key, value, delivered)
            left = self._producer.flush(self._timeout_s) if wait else self._producer.poll(0) * 0
        except KafkaException as error:
            # The client raises its own end out of any call, and its reports say no more of that than that it let the record go.
            found = error.args[0]
            if not (wait or is_denied(found) or is_end(found)):
                raise
            failures.insert(0, found)
        if wait and (left or failures):
            reason = failures[0] if failures else None
            said = f"{self._partition.topic} cannot be written: {'no acknowledgement' if reason is None else reason.str()}"
            raise unavailable(said, reason)

    def _append_again(self, key: bytes, value: bytes | None, delivered: Callable[[KafkaError | None, Message], None]) -> None:
        """Append with another producer where the one that there is has failed for good, or may have: nothing of this record was sent."""
        if self._doubt.is_there:
            self._renew()
        try:
            self._append(key, value, delivered)
        except KafkaException as error:
            if not is_end(error.args[0]):
                raise
            self._renew()
            self._append(key, value, delivered)

    def _renew(self) -> None:
        self._producer.purge()
        self._producer = Producer(self._made)
        self._doubt.is_there = False

    def _append(self, key: bytes, value: bytes | None, delivered: Callable[[KafkaError | None, Message], None]) -> None:
        topic, partition = self._partition
        self._producer.produce(topic, key=key, value=value, partition=partition, on_delivery=delivered)

    def close(self) -> None:
        """Wait briefly for what is under way."""
        if "_producer" in vars(self):
            with suppress(KafkaException):  # it has failed for good, and nobody has asked it since
                self._producer.flush(1.0)

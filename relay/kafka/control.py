"""The control topic: a small compacted table of what is recorded for all workers of a relay."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final, Self

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message

from relay.kafka.clients import Doubt, Producer
from relay.kafka.failures import is_denied, is_end, is_refusal, unavailable
from relay.kafka.reading import PartitionReader
from relay.message.errors import ConfigError, RelayError, Stopped
from relay.message.record import LogPartition
from relay.world.seldom import Repeats

_log: Final = logging.getLogger("relay.kafka")


class _Unawaited:
    """What comes of records that nobody waits for: only what no waiting mends is said, and that seldom."""

    def __init__(self, why: Callable[[KafkaError | None], RelayError], clock: Callable[[], float]) -> None:
        self._why = why
        self._clock = clock
        self._repeats = Repeats()

    def told(self, error: KafkaError) -> None:
        """Take one failure."""
        if is_refusal(error) or is_denied(error):
            sentence = str(self._why(error))
            if not self._repeats.is_one(sentence, self._clock()):
                _log.warning("%s", sentence)


class _BrokersTime:
    """The brokers' clock, as it dated the record that was acknowledged last, and the monotonic clock as that was heard."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: tuple[int, float] | None = None

    def told(self, message: Message) -> None:
        """Take the acknowledgement of one record."""
        kind, at = message.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            self._known = at, self._clock()

    def now_ms(self) -> float:
        """Return what it shows by now; 0 if nothing was acknowledged, or the topic keeps the times of those who write."""
        if self._known is None:
            return 0.0
        at, heard = self._known
        return at + (self._clock() - heard) * 1000


class ControlTopic:
    """Reads and writes records of ``<relay>.control``; one instance per worker, on one thread.

    What the broker does not allow raises ``denied``.
    """

    def __init__(
        self,
        consumer: Mapping[str, object],
        producer: Mapping[str, object],
        topic: str,
        clock: Callable[[], float],
        timeout_s: float,
        denied: type[ConfigError | Stopped] = ConfigError,
    ) -> None:
        self._consumer = consumer
        self._made = dict(producer)
        self._partition = LogPartition(topic, 0)
        self._clock = clock
        self._timeout_s = timeout_s
        self._denied: Final = denied
        self._doubt = Doubt()
        self._time = _BrokersTime(clock)
        self._unawaited = _Unawaited(lambda error: _unwritten(topic, error, denied), clock)

    @cached_property
    def _producer(self) -> Producer:
        """Made when it is needed: who only reads may lack the right to write, and the client would say so by itself."""
        return Producer(self._made)

    def connect(self) -> Self:
        """Make the producer now, for whoever writes in any case: its first record need not wait for a connection."""
        _ = self._producer
        return self

    def brokers_ms(self) -> float:
        """Return the brokers' time in milliseconds since the epoch, as far as a record of ours has told; 0 if none has."""
        return self._time.now_ms()

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
            self._consumer, committed=False, clock=self._clock, deadline_s=self._timeout_s, denied=self._denied
        ) as reader:
            low, high = reader.watermarks(self._partition)
            for records in reader.read({self._partition: (low, high)}):
                yield from ((record.key() or b"", record.value()) for record in records)

    def put(self, key: bytes, value: bytes | None, *, wait: bool) -> None:
        """Append a record, or without a value let the key go; with ``wait`` see that it is acknowledged.

        Raises Unreachable if it is not, Stopped if the topic does not take it, ``denied`` if that is not allowed. Without ``wait``
        the log says so of the latter two.
        """
        failures: list[KafkaError] = []
        doubt, unawaited, time = self._doubt, self._unawaited, self._time

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                time.told(message)
            else:
                failures.append(error)
                doubt.told(error)
                if not wait:
                    unawaited.told(error)

        left = 1
        try:
            self._append_again(key, value, delivered)
            left = self._producer.flush(self._timeout_s) if wait else self._producer.poll(0) * 0
        except KafkaException as error:
            # The client raises its own end out of any call, and its reports say no more of that than that it let the record go.
            found = error.args[0]
            if not (wait or is_denied(found) or is_end(found) or is_refusal(found)):
                raise
            failures.insert(0, found)
            if not wait:
                unawaited.told(found)
        if wait and (left or failures):
            raise _unwritten(self._partition.topic, failures[0] if failures else None, self._denied)

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


def _unwritten(topic: str, error: KafkaError | None, denied: type[RelayError]) -> RelayError:
    said = f"{topic} cannot be written: {'no acknowledgement' if error is None else error.str()}"
    if error is not None and is_refusal(error):
        return Stopped(
            f"{said}; undo what was changed at this topic, max.message.bytes most likely, and raise \"message.max.bytes\" of [kafka] if "
            "it is set"
        )
    return unavailable(said, error, denied=denied)

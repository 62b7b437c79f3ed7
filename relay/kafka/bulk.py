"""Appends many records at a time outside any transaction: done when every one is acknowledged, failed if any is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException

from relay.kafka.callbacks import Failures
from relay.kafka.clients import Producer
from relay.kafka.failures import is_end, is_refusal, sentence, unavailable
from relay.kafka.settings import TimingLike, producer
from relay.message.envelope import Headers
from relay.message.errors import CaptureError, Unreachable
from relay.world import clock

BulkRecord = tuple[str, int, bytes | None, bytes | None, Headers]
"""Topic, partition, key, value, headers."""
QUEUED_MAX: Final = 200_000
QUEUED_KBYTES_MAX: Final = 131_072
"""Per task: several tasks share a machine's memory."""
_FULL_WAIT_S: Final = 0.05
_SLICE_S: Final = 0.2
_OVER: Final = {
    "linger.ms": 50,
    "queue.buffering.max.messages": QUEUED_MAX,
    "queue.buffering.max.kbytes": QUEUED_KBYTES_MAX,
}


class BulkAppender:
    """An idempotent producer of one thread. Raises CaptureError (refused), ConfigError (no right), Unreachable (not acknowledged in time)."""

    def __init__(self, kafka: Mapping[str, str], timing: TimingLike, timeout_s: float) -> None:
        over: dict[str, Any] = {key: value for key, value in _OVER.items() if key not in kafka}
        over["message.timeout.ms"] = round(timeout_s * 1000)
        self._producer = Producer(producer(kafka, timing, log_level=0, **over))
        self._timeout_s = timeout_s
        self._failures = Failures()

    def append(self, records: Iterable[BulkRecord]) -> None:
        """Hand over records, in their order."""
        produce = self._producer.produce
        report = self._failures.told
        for topic, partition, key, value, headers in records:
            full_until = None
            while True:
                try:
                    produce(topic, value, key, partition, on_delivery=report, headers=headers)  # type: ignore[arg-type]
                except BufferError as full:
                    self._hear(self._producer.poll, _FULL_WAIT_S)  # retry: the queue drains, or its messages time out
                    self._raise_failure()
                    full_until = full_until or clock.monotonic() + 2 * self._timeout_s
                    if clock.monotonic() > full_until:
                        raise CaptureError(
                            f"topic {topic}: a message of {len(value or b'')} bytes finds no room in the client; raise "
                            "queue.buffering.max.kbytes above message.max.bytes"
                        ) from full
                except KafkaException as error:
                    if is_end(error.args[0]):
                        self._hear(self._producer.poll, 0)  # why it ended is told once, and here only that it did
                    raise CaptureError(
                        f"topic {topic}: a message was refused: {error.args[0].str()}"
                    ) from error
                else:
                    break
        self._hear(self._producer.poll, 0)
        self._raise_failure()

    def flush(self) -> None:
        """Wait for every report."""
        limit = clock.monotonic() + self._timeout_s
        while left := self._hear(self._producer.flush, _SLICE_S):
            self._raise_failure()
            if clock.monotonic() > limit:
                raise Unreachable(
                    f"{left} messages are not acknowledged after {self._timeout_s:g} s; look at the brokers"
                )
        self._raise_failure()

    def discard(self) -> None:
        """Let go of what is not yet appended."""
        self._producer.purge()

    def _hear(self, call: Callable[[float], int], seconds: float) -> int:
        """Serve reports; the client raises its own end out of this."""
        try:
            return call(seconds)
        except KafkaException as error:
            raise unavailable(f"the client can append no more: {sentence(error)}", error.args[0]) from error

    def _raise_failure(self) -> None:
        for error, message in self._failures:
            if is_refusal(error):
                raise CaptureError(
                    f"topic {message.topic()}: a message was refused ({error.name()}); it may be larger than the topic's "
                    "max.message.bytes"
                )
            raise unavailable(f"topic {message.topic()} cannot be written: {sentence(KafkaException(error))}", error)

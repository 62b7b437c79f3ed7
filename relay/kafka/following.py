"""Following a small compacted topic from its beginning on, without waiting: what it says now, and what comes after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from relay.kafka.failures import sentence
from relay.message.errors import Unreachable
from relay.run import clock

RECORDS_AT_ONCE: Final = 10_000
_START_S: Final = 0.1
_ASK_S: Final = 5.0


class Following:
    """Reads one partition from its beginning; for one thread. The client fetches by itself, so polling costs little."""

    def __init__(
        self, settings: Mapping[str, Any], topic: str, *, deadline_s: float
    ) -> None:
        own = {"isolation.level": "read_uncommitted", "auto.offset.reset": "earliest", "enable.partition.eof": True}
        self._given = {**settings, **own}
        self._consumer = Consumer(self._given)
        self._topic = topic
        self._deadline_s = deadline_s
        self._next = 0
        self._begun = False

    def records(self) -> list[tuple[bytes, bytes | None]]:
        """Return what came since the last call; the first call returns all there is. Raises Unreachable then only."""
        if not self._begun:
            return self._first()
        return self._consume(0)

    def close(self) -> None:
        """Leave."""
        self._consumer.close()

    def _first(self) -> list[tuple[bytes, bytes | None]]:
        low, high = self._watermarks()
        self._consumer.assign([TopicPartition(self._topic, 0, low)])
        self._next = low
        found: list[tuple[bytes, bytes | None]] = []
        limit = clock.monotonic() + self._deadline_s
        while self._next < high:
            found += self._consume(_START_S)
            if clock.monotonic() > limit:
                raise Unreachable(f"{self._topic} cannot be read to its end within {self._deadline_s:g} s; try again")
        self._begun = True
        return found

    def _watermarks(self) -> tuple[int, int]:
        limit = clock.monotonic() + self._deadline_s
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=_ASK_S)
            except KafkaException as error:
                if clock.monotonic() > limit:
                    raise Unreachable(f"{self._topic} cannot be read: {sentence(error)}; is the broker up?") from None
                # A handle may go on asking the leader it knew; a fresh one asks who leads now.
                clock.sleep(_START_S)
                self._consumer.close()
                self._consumer = Consumer(self._given)
            else:
                return low, high

    def _consume(self, wait_s: float) -> list[tuple[bytes, bytes | None]]:
        found = []
        for record in self._consumer.consume(RECORDS_AT_ONCE, wait_s):
            error = record.error()
            if error is None:
                found.append((record.key() or b"", record.value()))
                self._next = (record.offset() or 0) + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._next = max(self._next, record.offset() or 0)
        return found

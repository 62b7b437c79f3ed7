"""Following a small compacted topic from its beginning on, without waiting: what it says now, and what comes after."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from relay.kafka.clients import Consumer
from relay.kafka.failures import DENIED_REMEDY, MISSING, is_denied, is_of_group, kafka_error, sentence
from relay.kafka.reading import unseen_because
from relay.message.errors import ConfigError, RelayError, Unreachable
from relay.world import clock

RECORDS_AT_ONCE: Final = 10_000
_START_S: Final = 0.1
_ASK_S: Final = 5.0


class Following:
    """Reads one partition from its beginning; for one thread. The client fetches by itself, so polling costs little.

    ``watched`` is one whose ``records`` are asked for all the time (`relay.kafka.clients`).
    """

    def __init__(
        self, settings: Mapping[str, Any], topic: str, *, deadline_s: float, watched: bool = False
    ) -> None:
        own = {"isolation.level": "read_uncommitted", "auto.offset.reset": "earliest", "enable.partition.eof": True}
        self._given = {**settings, **own}
        self._watched = watched
        self._topic = topic
        self._deadline_s = deadline_s
        self._next = 0
        self._begun = False
        self._read: list[tuple[bytes, bytes | None]] = []
        """What came before a call failed, and nobody was told."""
        self._denied: KafkaError | None = None

    @cached_property
    def _consumer(self) -> Consumer:
        """Made when it is asked first: before that nobody hears what it says of itself."""
        return self._made()

    def records(self) -> list[tuple[bytes, bytes | None]]:
        """Return what came since the last call; the first call returns all there is, and raises what ``to_end`` does.

        Later ones raise nothing: what cannot be read now, for want of a broker or of a right, comes when it can be.
        """
        if not self._begun:
            try:
                return self.to_end()
            except RelayError:
                self._let_go()  # nobody may ask it again for long
                raise
        self._consume(0)
        if self._consumer.is_lost or self._consumer.is_overdue:
            self._begin_anew()
        return self._told()

    def to_end(self) -> list[tuple[bytes, bytes | None]]:
        """Return all that was written since the last call, or at all, up to the end that the brokers tell now.

        Raises Unreachable, and ConfigError if the topic may not be read.
        """
        low, high = self._watermarks()
        self._next = max(self._next, low)
        self._assign()
        self._denied = None  # or a right that was missing in the meantime would be so for ever
        limit = clock.monotonic() + self._deadline_s
        while self._next < high:
            self._consume(_START_S)
            if self._denied is not None and self._next < high:
                raise self._may_not(KafkaException(self._denied))
            if clock.monotonic() > limit:
                raise Unreachable(f"{self._topic} cannot be read to its end within {self._deadline_s:g} s; try again")
        self._begun = True
        return self._told()

    def close(self) -> None:
        """Leave."""
        self._let_go()

    def _let_go(self) -> None:
        if "_consumer" in vars(self):
            self._consumer.close()
            del self._consumer

    def _watermarks(self) -> tuple[int, int]:
        limit = clock.monotonic() + self._deadline_s
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=_ASK_S)
            except KafkaException as error:
                said = unseen_because(self._consumer, self._topic, error, _ASK_S) or error
                reason = kafka_error(said)
                if reason is not None and is_denied(reason):
                    raise self._may_not(said) from None
                if clock.monotonic() > limit:
                    remedy = "if there is no such topic, run `relay migrate`" if reason and reason.code() in MISSING else "is the broker up?"
                    raise Unreachable(f"{self._topic} cannot be read: {sentence(error)}; {remedy}") from None
                # A handle may go on asking the leader it knew; a fresh one asks who leads now.
                clock.sleep(_START_S)
                self._consumer.hear()
                self._begin_anew()
            else:
                return low, high

    def _made(self) -> Consumer:
        return Consumer(self._given, watched=self._watched)

    def _begin_anew(self) -> None:
        """Go on by another client; by the same one, and try again, if none can be made: no thread or file is left, say."""
        with suppress(KafkaException, Unreachable):
            made, before = self._made(), self._consumer
            self._consumer = made
            before.close()
            if self._begun:
                self._assign()

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(self._topic, 0, self._next)])

    def _told(self) -> list[tuple[bytes, bytes | None]]:
        found, self._read = self._read, []
        return found

    def _consume(self, wait_s: float) -> None:
        for record in self._consumer.consume(RECORDS_AT_ONCE, wait_s):
            error = record.error()
            if error is None:
                self._read.append((record.key() or b"", record.value()))
                self._next = (record.offset() or 0) + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._next = max(self._next, record.offset() or 0)
            elif is_denied(error) and not is_of_group(error):
                self._denied = error

    def _may_not(self, failure: KafkaException) -> ConfigError:
        return ConfigError(f"{self._topic} cannot be read: {sentence(failure)}; {DENIED_REMEDY}")

"""The topic of inquiries: publishers' processes read all the questions of relays that it still holds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from relay.kafka.clients import Consumer
from relay.kafka.failures import DENIED_REMEDY, is_denied, is_of_group
from relay.kafka.settings import TimingLike, consumer
from relay.message.errors import Unreachable
from relay.world import clock

_log = logging.getLogger("relay.kafka")
_RECORDS_AT_ONCE: Final = 1000
_LOOK_AGAIN_S: Final = 30.0
_METADATA_S: Final = 5.0


class InquiryReader:
    """Reads the topic from its beginning on, by hand; a topic that is not there yet is looked for now and then."""

    def __init__(self, kafka: Mapping[str, str], timing: TimingLike, topic: str) -> None:
        settings: dict[str, Any] = consumer(kafka, timing, f"{topic}.reader", log_level=0)
        settings["auto.offset.reset"] = "earliest"
        self._given = settings
        self._consumer = Consumer(settings, watched=True)
        self._topic = topic
        self._assigned = 0
        self._look_at = float("-inf")
        self._is_told = False

    def poll(self) -> list[tuple[bytes | None, bytes | None]]:
        """Return key and value of what came since; raises Unreachable."""
        if self._consumer.is_lost or self._consumer.is_overdue:
            self._begin_anew()
        now = clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_AGAIN_S
            self._look()
        records = self._consumer.consume(_RECORDS_AT_ONCE, 0)  # also without the topic: it keeps what it says of itself until then
        self._note(record.error() for record in records)
        return [(record.key(), record.value()) for record in records if record.error() is None]

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def _begin_anew(self) -> None:
        """Read all again, by another client: what is asked twice is answered twice. Where none can be made, it is tried again."""
        with suppress(KafkaException, Unreachable):  # no thread or file is left, say
            made, before = Consumer(self._given, watched=True), self._consumer
            self._consumer, self._assigned, self._look_at = made, 0, float("-inf")
            before.close()

    def _note(self, errors: Iterable[KafkaError | None]) -> None:
        """Say once that the right is missing: it is for whoever answers relays without access to the database."""
        denied = next((one for one in errors if one is not None and is_denied(one) and not is_of_group(one)), None)
        if denied is not None and not self._is_told:
            self._is_told = True
            _log.warning("inquiries of relays are not answered: %s cannot be read: %s; %s", self._topic, denied.str(), DENIED_REMEDY)

    def _look(self) -> None:
        try:
            found = self._consumer.list_topics(self._topic, _METADATA_S).topics.get(self._topic)
        except KafkaException as error:
            if not self._assigned:
                self._consumer.hear()
            raise Unreachable(f"{self._topic} cannot be read: {error.args[0].str()}") from error
        self._note([found.error] if found is not None else ())
        count = 0 if found is None or found.error is not None else len(found.partitions)
        if count > self._assigned:
            new = [TopicPartition(self._topic, p, OFFSET_BEGINNING) for p in range(self._assigned, count)]
            self._consumer.incremental_assign(new)
            self._assigned = count

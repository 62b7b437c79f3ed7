"""What a consumer group has committed, asked from outside: nothing here joins a group or moves an offset.

Asked by consumers that never subscribe, not by the admin client: librdkafka 2.15 dereferences null in its
ListConsumerGroupOffsets when the coordinator moves, as it does on a cluster's first group (confluent-kafka-javascript
issue 374).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from relay.kafka.clients import Consumer
from relay.kafka.failures import NO_RIGHT, is_of_group, kafka_error, sentence
from relay.kafka.settings import TimingLike, consumer
from relay.message.errors import ConfigError, RelayError, Unreachable
from relay.message.record import LogPartition


class Groups:
    """Asks for the offsets of any number of groups; one handle for each group, kept until ``close``."""

    def __init__(self, kafka: Mapping[str, str], timing: TimingLike, timeout_s: float = 10.0) -> None:
        self._kafka = kafka
        self._timing = timing
        self._timeout_s = timeout_s
        self._askers: dict[str, Consumer] = {}

    def committed(self, group: str, partitions: Iterable[LogPartition]) -> dict[LogPartition, int]:
        """Return the next offset of those partitions for which the group has stored one.

        Offsets of open transactions are not in it, and are not waited for. Raises Unreachable, or ConfigError where
        a right is missing.
        """
        return {place: offset for place, (offset, _) in self.stored(group, partitions).items()}

    def stored(self, group: str, partitions: Iterable[LogPartition]) -> dict[LogPartition, tuple[int, str]]:
        """The same, with the note that was stored beside each."""
        wanted = [TopicPartition(place.topic, place.partition) for place in partitions]
        if not wanted:
            return {}
        try:
            found = self._asker(group).committed(wanted, timeout=self._timeout_s)
        except KafkaException as error:
            raise _sentence(denial(self._asker(group)) or error, group) from error
        for place in found:
            if place.error is not None:
                raise _sentence(KafkaException(place.error), group)
        return {LogPartition(place.topic, place.partition): (place.offset, place.metadata or "") for place in found if place.offset >= 0}

    def close(self) -> None:
        """Let go of the handles."""
        while self._askers:
            self._askers.popitem()[1].close()

    def _asker(self, group: str) -> Consumer:
        if group not in self._askers:
            # Read_uncommitted: with the other level a commit under way makes the broker put the question off.
            over: dict[str, Any] = {"isolation.level": "read_uncommitted", "log_level": 0}
            self._askers[group] = Consumer(consumer(self._kafka, self._timing, group, **over))
        return self._askers[group]


def denial(asker: Consumer) -> KafkaException | None:
    """Return why an answer for its group did not come in time, if the group may not be looked for: the client tells elsewhere."""
    errors = [one.error() for one in asker.consume(100, 0)]
    return next((KafkaException(error) for error in errors if error is not None and is_of_group(error)), None)


def _sentence(error: Exception, group: str) -> RelayError:
    found = kafka_error(error)
    if found is not None and found.code() in NO_RIGHT:
        return ConfigError(
            f"group {group}: its offsets may not be read ({sentence(error)}); grant DESCRIBE on the group"
        )
    return Unreachable(f"group {group}: its offsets cannot be read ({sentence(error)}); try again")

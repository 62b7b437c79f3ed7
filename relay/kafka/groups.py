"""What a consumer group has committed, asked from outside: nothing here joins a group or moves an offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from relay.kafka.failures import kafka_error, sentence
from relay.kafka.settings import TimingLike, admin
from relay.message.errors import ConfigError, RelayError, Unreachable
from relay.message.record import LogPartition

_DENIED: Final = frozenset(
    {
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


class Groups:
    """An administrative client for consumer groups."""

    def __init__(self, kafka: Mapping[str, str], timing: TimingLike, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self._admin = AdminClient({**admin(kafka, timing), "log_level": 0})

    def committed(self, group: str) -> dict[LogPartition, int]:
        """Return the next offset per partition that the group has stored; empty for a group that never was.

        Offsets of open transactions are not in it. Raises Unreachable, or ConfigError where a right is missing.
        """
        try:
            futures = self._admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], request_timeout=self._timeout_s
            )
            found = futures[group].result(self._timeout_s + 1)
        except (KafkaException, TimeoutError) as error:
            if _code(error) == KafkaError.GROUP_ID_NOT_FOUND:
                return {}
            raise _sentence(error, group) from error
        return {
            LogPartition(place.topic, place.partition): place.offset
            for place in found.topic_partitions or []
            if place.error is None and place.offset >= 0
        }


def _sentence(error: Exception, group: str) -> RelayError:
    if _code(error) in _DENIED:
        return ConfigError(
            f"group {group}: its offsets may not be read ({sentence(error)}); grant DESCRIBE on the group"
        )
    return Unreachable(f"group {group}: its offsets cannot be read ({sentence(error)}); try again")


def _code(error: BaseException) -> int | None:
    found = kafka_error(error)
    return None if found is None else found.code()

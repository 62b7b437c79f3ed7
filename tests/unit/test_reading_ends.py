"""The ends of many partitions, asked for at once: of none without a broker, and a failure names the topics."""

from __future__ import annotations

from typing import NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException

from relay.config.timing import Timing
from relay.kafka import reading, settings
from relay.kafka.reading import PartitionReader
from relay.message.errors import Unreachable
from relay.message.record import LogPartition
from relay.run import clock


def reader(deadline_s: float) -> PartitionReader:
    given = settings.consumer({"bootstrap.servers": "127.0.0.1:1"}, Timing(), "g", log_level=0)
    return PartitionReader(given, committed=True, clock=clock.monotonic, deadline_s=deadline_s)


def test_the_ends_of_nothing_are_known_without_a_broker() -> None:
    """Refused by the client, it was taken for brokers that are away: the route recovered, five seconds after it was idle."""
    with reader(1.0) as reads:
        assert reads.ends([]) == {}


def test_topics_one_of_which_was_deleted_are_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence stands in `relay status` for as long as the route waits."""

    def missing(*_: object) -> NoReturn:
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))

    monkeypatch.setattr(reading, "latest", missing)

    with reader(0.0) as reads, pytest.raises(Unreachable) as caught:
        reads.ends([LogPartition("ledger", 0), LogPartition("ledger", 1), LogPartition("shop.monitor", 0)])

    assert str(caught.value) == (
        "the ends of ledger, shop.monitor (3 partitions) cannot be read: UNKNOWN_TOPIC_OR_PART: Broker: Unknown topic or partition; "
        "if one of them was deleted, create it again as it was"
    )

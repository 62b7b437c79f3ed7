"""Where partitions begin and end: of none without a broker, a failure names the topics, and none seems empty that is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

import confluent_kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from relay.config.timing import Timing
from relay.kafka import reading, settings
from relay.kafka.clients import Consumer
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


class Librdkafka(confluent_kafka.Consumer):
    """A partition of offsets 5 to 19; asked for its begin and its end at once it gives the end for both where the first question failed."""

    begin: ClassVar[int] = 5
    failure: ClassVar[KafkaError | None] = None

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        return 20, 20

    def offsets_for_times(self, places: list[TopicPartition], _timeout: float) -> Any:
        assert [one.offset for one in places] == [OFFSET_BEGINNING]
        return [SimpleNamespace(offset=self.begin, error=self.failure)]


class Asking(Consumer, Librdkafka):
    """The relay's consumer of such a client."""


@pytest.mark.parametrize(("begin", "low"), [(5, 5), (20, 20), (25, 20)], ids=["whole", "empty", "trimmed meanwhile"])
def test_a_partition_that_seems_empty_is_asked_where_it_begins(begin: int, low: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads from its begin to its end would take nothing for all that there is."""
    monkeypatch.setattr(Librdkafka, "begin", begin)
    asking = Asking({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
    assert asking.get_watermark_offsets(TopicPartition("ledger", 1), timeout=1) == (low, 20)


def test_nobody_is_told_a_begin_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Librdkafka, "failure", KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    asking = Asking({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
    with pytest.raises(KafkaException, match="NOT_LEADER_FOR_PARTITION"):
        asking.get_watermark_offsets(TopicPartition("ledger", 1), timeout=1)

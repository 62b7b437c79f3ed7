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
from relay.message.errors import ConfigError, Unreachable
from relay.message.record import LogPartition
from relay.world import clock


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


class Metadata:
    """A client to which the brokers that are asked answer one after the other, the last one again and again."""

    answers: ClassVar[list[Any]] = []
    asked: ClassVar[int] = 0

    def __init__(self, _settings: object) -> None: ...

    def hear(self) -> None: ...

    def close(self) -> None: ...

    def list_topics(self, topic: str, timeout: float) -> Any:
        Metadata.asked += 1
        partitions, code = self.answers[min(self.asked, len(self.answers)) - 1]
        error = None if code is None else KafkaError(code)
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=dict.fromkeys(range(partitions)), error=error)})


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(reading, "Consumer", Metadata)
    monkeypatch.setattr(reading, "_ANEW_PAUSE_S", 0.0)
    monkeypatch.setattr(Metadata, "asked", 0)
    monkeypatch.setattr(Metadata, "answers", [])
    return Metadata.answers


def test_a_topic_is_no_more_only_by_the_word_of_several(answers: list[Any]) -> None:
    """What a former output does not show would be taken for gone with it, and never be written again."""
    answers += [(0, KafkaError.UNKNOWN_TOPIC_OR_PART), (0, KafkaError.UNKNOWN_TOPIC_OR_PART), (3, None)]
    with reader(1.0) as reads:
        assert reads.partitions("ledger") == 3
        answers[:] = [(0, KafkaError.UNKNOWN_TOPIC_OR_PART)]
        Metadata.asked = 0
        assert [reads.partitions("former") for _ in range(100)] == [0] * 100
    assert Metadata.asked == reading.LOOKS_ANEW, "each partition of an output that is no more asks"


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ConfigError, "grant the right"),
        (KafkaError.LEADER_NOT_AVAILABLE, Unreachable, "the partitions of ledger cannot be read"),
    ],
)
def test_a_topic_that_nobody_may_be_told_of_is_not_called_gone(code: int, kind: type[Exception], said: str, answers: list[Any]) -> None:
    answers.append((0, code))
    with reader(1.0) as reads, pytest.raises(kind, match=said):
        reads.partitions("ledger")

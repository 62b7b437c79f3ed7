"""How the auditor's reader asks its client: a range that is read takes no longer than its records do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from relay.config.timing import Timing
from relay.kafka import scan
from relay.kafka.scan import Scan
from relay.message.errors import Unreachable
from relay.message.record import LogPartition


class Client:
    """It waits for as many records as it is asked for, and for up to a second until it asks who leads a topic."""

    def __init__(self, _settings: object) -> None:
        self.waited_s = 0.0
        self.asked: list[str] = []
        self._left: list[Any] = []

    def list_topics(self, topic: str, timeout: float) -> None:
        self.asked.append(topic)
        if topic == "away":
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def assign(self, places: list[TopicPartition]) -> None:
        self.waited_s += sum(one.topic not in self.asked for one in places)
        self._left = [record(one.topic, offset) for one in places for offset in range(one.offset, 5)]

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        taken, self._left = self._left[:count], self._left[count:]
        self.waited_s += timeout_s * (len(taken) < count)
        return taken

    def unassign(self) -> None:
        self._left = []


def record(topic: str, offset: int) -> Any:
    return SimpleNamespace(topic=lambda: topic, partition=lambda: 0, offset=lambda: offset, error=lambda: None)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client({})
    monkeypatch.setattr(scan, "Consumer", lambda _settings: made)
    return made


def read(reader: Scan, topic: str, first: int, end: int) -> list[int]:
    return [one.offset for batch in reader.read({LogPartition(topic, 0): (first, end)}) for one in batch]


def test_ranges_of_one_topic_after_another_are_read_without_waiting(client: Client) -> None:
    reader = Scan({}, Timing(), "g")

    found = [read(reader, *given) for given in (("log", 0, 5), ("out", 1, 3), ("log", 4, 5), ("out", 2, 3))]

    assert found == [[0, 1, 2, 3, 4], [1, 2], [4], [2]]
    assert client.waited_s == 0
    assert client.asked == ["log", "out"], "once each"


def test_a_topic_that_nobody_can_be_asked_about_is_left_to_the_reading(client: Client) -> None:
    assert read(Scan({}, Timing(), "g"), "away", 0, 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE])
def test_what_retention_takes_while_it_is_read_is_said_to_go_with_a_remedy(client: Client, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    gone = record("log", 2)
    gone.error = lambda: KafkaError(code)
    monkeypatch.setattr(client, "consume", lambda _count, _timeout_s: [gone])

    with pytest.raises(Unreachable, match=r"log\[0\] cannot be read: .*; retention takes what is being read: try again, or lengthen it"):
        read(Scan({}, Timing(), "g"), "log", 2, 5)


def test_a_position_that_cannot_be_told_is_not_taken_for_none(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    unstable = SimpleNamespace(topic="log", partition=0, offset=-1001, error=KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT))
    monkeypatch.setattr(client, "committed", lambda *_: [unstable], raising=False)
    monkeypatch.setattr(client, "close", lambda: None, raising=False)

    with pytest.raises(Unreachable, match=r"the committed offset of group g in log\[0\] cannot be read"):
        Scan({}, Timing(), "g").committed("g", [LogPartition("log", 0)])


def test_what_the_client_says_of_no_partition_ends_no_reading(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group's coordinator is looked for behind the reading, and a broker may fail at that."""
    of_group = SimpleNamespace(topic=lambda: None, partition=lambda: 0, offset=lambda: None, error=lambda: KafkaError(KafkaError.UNKNOWN))
    answers = iter([[of_group], [record("log", 2)], [record("log", 3)], [record("log", 4)]])
    monkeypatch.setattr(client, "consume", lambda _count, _timeout_s: next(answers))

    assert read(Scan({}, Timing(), "g"), "log", 2, 5) == [2, 3, 4]

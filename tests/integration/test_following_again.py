"""Following a topic whose brokers fail in the midst of an answer: what was read by then is told with the next one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Producer

from relay.kafka import following
from relay.kafka.following import Following
from relay.message.errors import Unreachable
from tests.conftest import MakeTopic

WAIT_S = 60.0


@pytest.fixture
def topic(kafka: str, make_topic: MakeTopic) -> str:
    name = make_topic(1)
    write(kafka, name, 3)
    return name


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each poll brings one record, however long that takes."""
    monkeypatch.setattr(following, "RECORDS_AT_ONCE", 1)
    monkeypatch.setattr(following, "_START_S", WAIT_S)


@pytest.fixture
def hurried(kafka: str, one_at_a_time: None) -> Iterator[list[Following]]:
    made: list[Following] = []
    yield made
    for one in made:
        one.close()


def write(kafka: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(count):
        producer.produce(topic, str(number).encode(), b"key")
    assert not producer.flush(WAIT_S)


def follow(kafka: str, topic: str, deadline_s: float) -> Following:
    return Following({"bootstrap.servers": kafka, "group.id": "reader"}, topic, deadline_s=deadline_s)


def test_what_was_read_before_a_deadline_is_told_by_the_next_answer(kafka: str, topic: str, hurried: list[Following]) -> None:
    one = follow(kafka, topic, 0.0)
    hurried.append(one)
    failed = 0
    while True:
        try:
            found = one.to_end()
        except Unreachable:
            failed += 1
        else:
            break

    assert failed
    assert [value for _, value in found] == [b"0", b"1", b"2"]


def test_a_right_that_was_missing_for_a_while_stops_nobody_later(kafka: str, topic: str, hurried: list[Following]) -> None:
    one = follow(kafka, topic, WAIT_S)
    hurried.append(one)
    assert len(one.records()) == 3
    one._denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)  # as a poll in between has it, which says nothing
    write(kafka, topic, 2)

    assert [value for _, value in one.to_end()] == [b"0", b"1"]

"""Values of a queue read back from a real log: batches over partitions, retention, a topic that was made anew or deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from relay.config.timing import Timing
from relay.kafka import reading
from relay.kafka.topics import Topics
from relay.kafka.values import GAP, LogValues
from relay.queue.message import Place
from relay.queue.port import StoreAway
from tests.cluster_changes import make_topics
from tests.conftest import MakeTopic


@pytest.fixture
def values(kafka: str) -> Iterator[LogValues]:
    reader = LogValues({"bootstrap.servers": kafka}, Timing(), "test.values")
    yield reader
    reader.close()


def append(kafka: str, topic: str, records: list[tuple[int, bytes | None]]) -> list[Place]:
    """Append values to partitions and return their places, in order."""
    placed: dict[int, Place] = {}
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 5})
    for number, (partition, value) in enumerate(records):

        def note(error: object, record: object, number: int = number) -> None:
            assert error is None
            placed[number] = Place(topic, "", record.partition(), record.offset())  # type: ignore[attr-defined]

        producer.produce(topic, value, partition=partition, on_delivery=note)
    producer.flush(30)
    return [placed[number] for number in range(len(records))]


def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds; brokers that do not agree yet whether there is such a topic count as no answer."""
    deadline = time.monotonic() + 60
    while True:
        with suppress(StoreAway):
            if holds():
                return
        assert time.monotonic() < deadline


def test_values_come_back_from_their_places_in_any_order(
    kafka: str, make_topic: MakeTopic, values: LogValues
) -> None:
    topic = make_topic(3)
    records = [(n % 3, None if n == 7 else b"value-%d" % n) for n in range(60)]
    places = append(kafka, topic, records)
    far = append(kafka, topic, [(0, b"between")] * (GAP + 10) + [(0, b"far")])[-1]
    asked = [*reversed(places[::2]), far]

    assert values.read(asked) == {**{places[n]: records[n][1] for n in range(0, 60, 2)}, far: b"far"}
    assert values.read([places[7]]) == {places[7]: None}
    assert values.read([]) == {}


def test_reading_back_does_not_wait_for_records_that_nobody_asked_for(
    kafka: str, make_topic: MakeTopic, values: LogValues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "POLL_S", 60.0)
    places = append(kafka, make_topic(2), [(n % 2, b"%d" % n) for n in range(20)])
    begun = time.monotonic()

    for chosen in (places[:3], places[5:15], places[18:]):
        assert len(values.read(chosen)) == len(chosen)
    assert time.monotonic() - begun < 30.0


def test_what_the_retention_took_and_what_lay_in_another_topic_is_missing_in_the_answer(
    kafka: str, kafka_admin: AdminClient, make_topic: MakeTopic, values: LogValues
) -> None:
    topic = make_topic(1)
    places = append(kafka, topic, [(0, b"%d" % n) for n in range(10)])
    kafka_admin.delete_records([TopicPartition(topic, 0, 4)])[TopicPartition(topic, 0)].result(30)

    beyond = places[0]._replace(offset=1000)
    assert values.read([*places, beyond]) == {place: b"%d" % place.offset for place in places[4:]}
    with Topics({"bootstrap.servers": kafka}, Timing()) as topics:
        own = beyond._replace(topic_id=topics.describe([topic], settings=False)[topic].topic_id.hex())
    with pytest.raises(StoreAway, match="ends at offset 10"):
        values.read([*places, own])


def test_a_topic_that_was_made_anew_or_deleted_has_none_of_them(
    kafka: str, kafka_admin: AdminClient, make_topic: MakeTopic, values: LogValues
) -> None:
    topic = make_topic(1)
    (place,) = append(kafka, topic, [(0, b"old")])
    assert values.read([place]) == {place: b"old"}

    kafka_admin.delete_topics([topic])[topic].result(30)
    until(lambda: not values.read([place]))
    make_topics(kafka_admin, NewTopic(topic, 1))
    append(kafka, topic, [(0, b"new")])
    until(lambda: values.read([place]) == {place: b"new"})


def test_a_broker_that_does_not_answer_is_away_and_nothing_is_said_of_the_values() -> None:
    reader = LogValues({"bootstrap.servers": "127.0.0.1:9"}, Timing(), "test.values")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader._reader, "_deadline_s", 0.5)
        with pytest.raises(StoreAway):
            reader.read([Place("orders", "", 0, 0)])
    reader.close()

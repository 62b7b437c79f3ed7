"""With a broker gone or silent the relay's administrative questions are answered by another one, or end in a sentence."""

from __future__ import annotations

import time

import pytest

from relay.chaos.frame_proxy import api
from relay.config.timing import Timing
from relay.kafka import settings
from relay.kafka.reading import PartitionReader
from relay.kafka.topics import TopicPlan, Topics
from relay.local.kafka import KafkaCluster
from relay.message.errors import Unreachable
from relay.message.record import LogPartition
from tests.frame_matches import LIST_OFFSETS
from tests.integration.conftest import Proxied
from tests.routes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]

ANSWER_S = 8.0
CLIENTS = 12
"""Each takes a broker at random for the controller: that none of them took the one that dies is one chance in 130."""


def test_a_client_whose_controller_died_asks_another_broker(three_brokers: KafkaCluster) -> None:
    kafka = {"bootstrap.servers": three_brokers.bootstrap}
    clients = [Topics(kafka, Timing(), timeout_s=ANSWER_S) for _ in range(CLIENTS)]
    clients[0].create([TopicPlan("t", 1, 3)])
    for client in clients:
        client.describe(["t"], settings=False)

    three_brokers.kill(3)

    def answers(client: Topics) -> bool:
        try:
            return "t" in client.describe(["t"], settings=False)
        except Unreachable:
            return False

    fresh = Topics(kafka, Timing(), timeout_s=ANSWER_S)
    wait_for(lambda: answers(fresh), 30, "the two others")
    for client in clients:
        assert answers(client) or answers(client)


def test_a_reader_whose_leader_died_finds_the_next_one(three_brokers: KafkaCluster) -> None:
    kafka = {"bootstrap.servers": three_brokers.bootstrap}
    Topics(kafka, Timing()).create([TopicPlan("t", 6, 3)])
    places = [LogPartition("t", number) for number in range(6)]

    def reader() -> PartitionReader:
        given = settings.consumer(kafka, Timing(), "away", log_level=0)
        return PartitionReader(given, committed=False, clock=time.monotonic, deadline_s=2.0)

    def answers(asked: PartitionReader) -> bool:
        try:
            return [asked.watermarks(place) for place in places] == [(0, 0)] * len(places)
        except Unreachable:
            return False

    readers = [reader() for _ in range(3)]
    for asked in readers:
        wait_for(lambda asked=asked: answers(asked), 30, "the leaders")  # type: ignore[misc]

    three_brokers.kill(3)

    wait_for(lambda: answers(reader()), 30, "the next leaders")
    for asked in readers:
        assert answers(asked) or answers(asked)


def test_a_question_that_gets_no_answer_ends_in_a_sentence(proxied: Proxied) -> None:
    topic = proxied.topic("silent")
    asked = Topics({"bootstrap.servers": proxied.kafka}, Timing(), timeout_s=1.0)

    def knows_it() -> bool:
        try:
            return topic in asked.describe([topic], settings=False)
        except Unreachable:
            return False

    wait_for(knows_it, what="a first answer")
    kept = proxied.proxy.hold(api(LIST_OFFSETS))

    with pytest.raises(Unreachable, match="list offsets"):
        asked.watermarks(topic, range(1))

    assert kept.is_caught

    def is_answered() -> bool:
        try:
            return asked.watermarks(topic, range(1)) == {0: (0, 0)}
        except Unreachable:
            return False  # on a busy machine a new client needs more than the second it has

    wait_for(is_answered, what="the answer to a new question")

"""A broker that is being started or stopped says that there are no brokers, and the client forgets all it knew, for ever.

What is watched by that is replaced; what fails by that makes another. The client itself stays as it is (librdkafka's issue 5301).
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from relay.chaos.frame_proxy import Caught, Request, api
from relay.kafka import clients, settings
from relay.kafka.appender import Appender, Receipt, Record
from relay.kafka.control import ControlTopic
from relay.kafka.following import Following
from relay.kafka.group import GroupConsumer
from relay.kafka.inquiries import InquiryReader
from relay.kafka.settings import DefaultTiming
from relay.kafka.unawaited import UnawaitedAppender
from relay.message.errors import Unreachable
from relay.message.record import LogPartition
from relay.world import clock
from tests.cluster_changes import make_topics
from tests.own_services import ProxiedBroker, own_proxied_broker
from tests.routes import read_all, wait_for

pytestmark = pytest.mark.timeout(180)
TOPICS = ("orders", "control")
METADATA = 3
FLEXIBLE = 12
LEADER_NOT_AVAILABLE = 5
TIMING = DefaultTiming()
LOOK_S = 0.3
ASKED_S = 2.0
"""A client that knows whom to ask has asked by then."""
WAIT_S = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[ProxiedBroker]:
    with own_proxied_broker() as started:
        make_topics(AdminClient({"bootstrap.servers": started.proxy.address}), *(NewTopic(name, 1) for name in TOPICS))
        yield started


@pytest.fixture
def kafka(broker: ProxiedBroker, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(clients, "LOOK_S", LOOK_S)
    return {"bootstrap.servers": broker.proxy.address}


def metadata(request: Request, *, port: int | None) -> bytes:
    """Return what a broker answers that is being stopped: nobody leads the topics' partitions; without ``port`` also that there is no broker."""
    assert request.version >= FLEXIBLE, "the client asks as it never did before: teach this test"
    host = b"127.0.0.1"
    brokers = b"\1" if port is None else struct.pack(">BiB", 2, 1, len(host) + 1) + host + struct.pack(">iBB", port, 0, 0)
    topics = bytes([len(TOPICS) + 1])
    for name in TOPICS:
        partition = struct.pack(">BhiiiBiBiBB", 2, LEADER_NOT_AVAILABLE, 0, -1, 1, 2, 1, 2, 1, 1, 0)
        topics += struct.pack(">hB", 0, len(name) + 1) + name.encode() + bytes(17) + partition + struct.pack(">iB", -(2**31), 0)
    error = struct.pack(">h", 0) if request.version > FLEXIBLE else b""
    return struct.pack(">iBi", request.correlation, 0, 0) + brokers + struct.pack(">Bi", 0, -1) + topics + error + b"\0"


def lose(broker: ProxiedBroker, client: Any) -> None:
    """Have a client hear that there are no brokers until it asks nobody any more.

    Whether it forgets them for ever depends on how fast its threads are: else it begins with its bootstrap servers again.
    """
    port = int(broker.proxy.address.rpartition(":")[2])
    began = asked = time.monotonic()
    told = itertools.cycle((port, None))

    def next_rule() -> Caught:
        answer = partial(metadata, port=next(told))
        return broker.proxy.answer(api(METADATA), answer)

    rule = next_rule()
    while time.monotonic() < asked + ASKED_S:
        with suppress(KafkaException):
            client.list_topics("orders", timeout=ASKED_S)
        if rule.is_caught:
            asked, rule = time.monotonic(), next_rule()
        assert asked < began + WAIT_S, "it finds its brokers again each time: the client may have been mended"
    broker.proxy.cancel(rule)


def test_the_client_itself_stays_lost_and_knows(broker: ProxiedBroker, kafka: dict[str, str]) -> None:
    """Should this fail, the client has learned to look for brokers again, and what follows may not be needed any more."""
    consumer = clients.Consumer(settings.consumer(kafka, TIMING, "alone"), watched=True)
    consumer.list_topics("orders", timeout=WAIT_S)
    for _ in range(5):
        consumer.consume(1, LOOK_S)
        assert not consumer.is_lost
    lose(broker, consumer)

    wait_for(lambda: consumer.consume(1, LOOK_S) or consumer.is_lost, WAIT_S, "what it knows of itself")

    with pytest.raises(KafkaException):
        consumer.list_topics("orders", timeout=3)
    consumer.close()


def test_one_that_cannot_reach_its_brokers_is_not_lost(kafka: dict[str, str]) -> None:
    consumer = clients.Consumer(settings.consumer({"bootstrap.servers": "127.0.0.1:1"}, TIMING, "away", log_level=0), watched=True)
    until = time.monotonic() + 10 * LOOK_S
    while time.monotonic() < until:
        consumer.consume(1, LOOK_S)
        assert not consumer.is_lost
    consumer.close()


def test_a_publisher_appends_on(broker: ProxiedBroker, kafka: dict[str, str]) -> None:
    appender = Appender(kafka, TIMING)

    def append() -> bool:
        receipt = Receipt(1)
        appender.append([Record("orders", 0, b"k", b"v", [])], receipt, clock.monotonic() + 5)
        return receipt.wait(6) and receipt.failure is None

    assert append()
    lose(broker, appender._producer)

    wait_for(append, WAIT_S, "a record that is appended")
    appender.close()


def test_a_worker_begins_anew(broker: ProxiedBroker, kafka: dict[str, str]) -> None:
    """It read nothing more, and was called idle."""
    group = GroupConsumer(settings.consumer(kafka, TIMING, "shop.main"), ["orders"], lambda: None)
    wait_for(lambda: group.consume(1, LOOK_S) or group.assigned is not None, WAIT_S, "an assignment")
    lose(broker, group._consumer)

    with pytest.raises(Unreachable, match="has forgotten all brokers"):
        wait_for(lambda: group.consume(1, LOOK_S), WAIT_S, "anything that is read")
    group.close()


def test_what_is_followed_goes_on(broker: ProxiedBroker, kafka: dict[str, str]) -> None:
    reads = settings.consumer(kafka, TIMING, "shop.control")
    followed = Following(reads, "control", deadline_s=WAIT_S, watched=True)
    control = ControlTopic(reads, settings.producer(kafka, TIMING), "control", clock.monotonic, WAIT_S)
    control.put(b"first", b"1", wait=True)
    assert (b"first", b"1") in followed.records()
    lose(broker, followed._consumer)
    control.put(b"second", b"2", wait=True)

    found = wait_for(followed.records, WAIT_S, "what was written since")

    assert found == [(b"second", b"2")]
    followed.close()


def test_the_control_topic_is_written_on(broker: ProxiedBroker, kafka: dict[str, str]) -> None:
    control = ControlTopic(
        settings.consumer(kafka, TIMING, "w"), settings.producer(kafka, TIMING), "control", clock.monotonic, 2 * TIMING.append_timeout
    )
    control.put(b"third", b"3", wait=True)
    lose(broker, control._producer)
    with pytest.raises(Unreachable):
        control.put(b"fourth", b"4", wait=True)

    control.put(b"fifth", b"5", wait=True)

    assert [key for key, _ in control.under([b"fifth"])] == [b"fifth"]


def test_inquiries_are_asked_and_heard_on(broker: ProxiedBroker, kafka: dict[str, str]) -> None:
    reader, asker = InquiryReader(kafka, TIMING, "orders"), UnawaitedAppender(kafka, TIMING)

    def heard() -> list[bytes | None]:
        try:
            return [key for key, _ in reader.poll()]
        except Unreachable:
            return []

    def is_asked(key: bytes) -> bool:
        asker.put(LogPartition("orders", 0), key, b"v")
        return key in {record.key() for record in read_all(broker.proxy.address, "orders", 1)}

    wait_for(lambda: is_asked(b"first"), WAIT_S, "a question that goes out")
    wait_for(lambda: b"first" in heard(), WAIT_S, "the first")
    lose(broker, asker._producer)
    lose(broker, reader._consumer)

    wait_for(lambda: is_asked(b"second"), WAIT_S, "a question that goes out")
    wait_for(lambda: b"second" in heard(), WAIT_S, "the second")
    reader.close()

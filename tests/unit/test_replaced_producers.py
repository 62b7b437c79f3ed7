"""A publisher's producer is replaced, since it failed or a topic takes smaller batches, or closed, while other threads use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
from confluent_kafka import KafkaError, KafkaException

from relay.kafka import appender
from relay.kafka.appender import Appender, Receipt, Record
from relay.kafka.settings import DefaultTiming
from relay.kafka.topics import TopicFacts
from relay.message.errors import CaptureError
from relay.world import clock, schedule

SOON_S = 0.3


class Client:
    """A producer that works; ``meanwhile`` happens as it takes a record, or as one is being made."""

    all: list[Client]
    while_made: Callable[[], object] = bool
    is_lost = is_overdue = False

    def __init__(self, settings: Any, **_: Any) -> None:
        self.settings = dict(settings)
        self.is_slow = False
        self.meanwhile: Callable[[], object] = bool
        self.reports: list[Callable[..., None]] = []
        self.is_closed = False
        self.all.append(self)
        Client.while_made()

    def produce(self, *_given: Any, on_delivery: Callable[..., None], **_: Any) -> None:
        meanwhile, self.meanwhile = self.meanwhile, bool
        meanwhile()
        if self.is_closed:
            raise RuntimeError("Producer has been closed")
        self.reports.append(on_delivery)

    def poll(self, seconds: float) -> int:
        if not self.is_slow:
            self.report(None)
        clock.sleep(min(seconds, 0.005))
        return 0

    def flush(self, _seconds: float) -> int:
        self.report(None)
        return 0

    def purge(self) -> None:
        self.report(KafkaError(KafkaError._PURGE_QUEUE))

    def report(self, error: KafkaError | None) -> None:
        while self.reports:
            self.reports.pop(0)(error, None)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    Client.all = []
    monkeypatch.setattr(Client, "while_made", bool)
    monkeypatch.setattr(appender, "Producer", Client)
    return Client.all


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Appender:
    """Return one to whom a topic's name says how large its messages may be."""

    def described(_: Appender, names: list[str], wait_s: float = 0.0) -> dict[str, TopicFacts]:
        del wait_s
        return {name: TopicFacts(name, bytes(16), 1, 1, {"max.message.bytes": name.partition("-")[2]}) for name in names}

    monkeypatch.setattr(Appender, "describe", described)
    return Appender({"bootstrap.servers": "127.0.0.1:1"}, DefaultTiming())


def record(key: bytes) -> Record:
    return Record("orders", 0, key, b"v", [])


def append(publisher: Appender, *keys: bytes) -> Receipt:
    receipt = Receipt(len(keys))
    publisher.append([record(key) for key in keys], receipt, float("inf"))
    return receipt


def test_what_a_replaced_producer_takes_late_is_not_waited_for(made: list[Client], publisher: Appender) -> None:
    """Nobody asks it for reports any more, so that those who wait for them would wait for ever."""

    def another_thread_replaces_it() -> None:
        publisher.topic("small-1000")
        assert append(publisher, b"other").wait(60)
        clock.sleep(SOON_S)  # by now the old one was asked for the last time

    made[0].meanwhile = another_thread_replaces_it
    with pytest.raises(CaptureError, match="was replaced"):
        append(publisher, b"1", b"2")
    publisher.close()


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_a_replaced_producer_has_under_way_arrives_unless_it_has_lost_its_brokers(
    made: list[Client], publisher: Appender, is_lost: bool
) -> None:
    """Else another topic's first message would fail every block that is just committing, and of a lost one all would wait."""
    made[0].is_slow = True
    under_way = append(publisher, b"1")
    made[0].is_lost = is_lost
    publisher.topic("small-1000")
    append(publisher, b"2")

    assert under_way.wait(60)
    assert (under_way.failure is not None) is is_lost
    publisher.close()


def test_a_topic_that_becomes_known_while_a_producer_is_made_is_heeded_by_the_next(
    made: list[Client], publisher: Appender
) -> None:
    threads: list[schedule.Thread] = []

    def another_topic() -> None:
        Client.while_made = bool
        threads.append(schedule.start_thread("publishes", lambda: publisher.topic("smaller-500")))
        threads[0].join(SOON_S)

    publisher.topic("small-1000")
    Client.while_made = another_topic
    append(publisher, b"1")
    threads[0].join()
    append(publisher, b"2")
    publisher.close()

    assert [one.settings.get("batch.size") for one in made] == [None, 1000, 500]


def test_one_that_has_lost_its_brokers_is_replaced_once(made: list[Client], publisher: Appender) -> None:
    """Whoever asks it for reports once more must not doom its successor, and what that one has taken."""
    made[0].is_lost = True
    clock.sleep(SOON_S)
    append(publisher, b"1")
    clock.sleep(SOON_S)  # by now the old one was asked for the last time
    append(publisher, b"2")
    let_go = KafkaError(KafkaError._PURGE_QUEUE)
    said = publisher.reason(let_go)
    publisher.topic("small-1000")
    afterwards = publisher.reason(let_go)
    publisher.close()

    assert len(made) == 2
    assert said.startswith("the client has forgotten all brokers"), said
    assert afterwards == let_go.str(), "of what was let go for another cause it is no reason"


def test_where_no_other_can_be_made_the_block_is_told_so_and_the_next_one_has_another(made: list[Client], publisher: Appender) -> None:
    """A process without threads or files left makes no client: whoever retries captures by their errors must know it for one."""

    def at_the_limit() -> None:
        raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "Failed to create thread"))

    publisher.topic("small-1000")
    Client.while_made = at_the_limit
    with pytest.raises(CaptureError, match=r"no producer can be made.*Failed to create thread.*run the block again"):
        append(publisher, b"1")
    Client.while_made = bool

    assert append(publisher, b"1").wait(60)
    publisher.close()


def test_a_replaced_one_ends(made: list[Client], publisher: Appender) -> None:
    """Kept, it would keep its connections and, since nobody asks it any more, all that it says of itself."""
    publisher.topic("small-1000")
    append(publisher, b"1")
    replaced = ref(made.pop(0))
    clock.sleep(SOON_S)

    assert replaced() is None
    publisher.close()


def test_what_is_appended_as_the_publisher_is_closed_is_refused_as_what_comes_later(made: list[Client], publisher: Appender) -> None:
    made[0].meanwhile = publisher.close

    with pytest.raises(CaptureError, match="was closed"):
        append(publisher, b"1")


def test_one_that_has_ended_is_told_with_its_own_cause(made: list[Client], publisher: Appender) -> None:
    """Of the one before it nobody wants to hear any more."""

    def ended() -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL, "its own", fatal=True))

    made[0].is_lost = True
    clock.sleep(SOON_S)
    append(publisher, b"1")
    clock.sleep(SOON_S)
    made[1].meanwhile = ended

    with pytest.raises(CaptureError, match="its own"):
        append(publisher, b"2")
    publisher.close()

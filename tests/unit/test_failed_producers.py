"""A producer that has failed for good takes nothing any more: whoever appends now and then goes on with another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from relay.kafka import appender, control, unawaited
from relay.kafka.appender import Appender, Receipt, Record
from relay.kafka.control import ControlTopic
from relay.kafka.settings import DefaultTiming, TimingLike
from relay.kafka.unawaited import UnawaitedAppender
from relay.message.errors import CaptureError, Unreachable
from relay.world import clock

FATAL = KafkaError(KafkaError._FATAL, "out of order")


class Failing:
    """Fails once for all at its second record; each made is in ``all``."""

    all: list[Failing]
    is_lost = is_overdue = False

    def __init__(self, _settings: Any, **_: Any) -> None:
        self.meanwhile: Callable[[], object] = bool
        self.taken: list[bytes] = []
        self.purged = self.failed = False
        self.unsaid = 0
        self.all.append(self)

    def produce(self, _topic: str, value: bytes, key: bytes, *_given: Any, **_: Any) -> None:
        self.meanwhile()
        self.failed = self.failed or (len(self.all) == 1 and len(self.taken) == 1)
        if self.failed:
            raise KafkaException(FATAL)
        self.taken.append(key)

    def purge(self) -> None:
        self.purged = True

    def poll(self, timeout: float) -> int:
        clock.sleep(min(timeout, 0.005))
        if self.unsaid:
            self.unsaid -= 1
            raise KafkaException(FATAL)
        return 0

    flush = poll

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Failing]:
    Failing.all = []
    monkeypatch.setattr(appender, "Producer", Failing)
    monkeypatch.setattr(control, "Producer", Failing)
    monkeypatch.setattr(unawaited, "Producer", Failing)
    return Failing.all


def test_the_control_topic_is_written_on_with_another(made: list[Failing]) -> None:
    topic = ControlTopic({}, {}, "shop.control", lambda: 0.0, 1.0)
    for key in (b"1", b"2", b"3"):
        topic.put(key, b"v", wait=False)

    assert [one.taken for one in made] == [[b"1"], [b"2", b"3"]]
    assert made[0].purged, "what it had is not waited for"


def test_a_record_that_is_not_acknowledged_in_time_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows from it (a first start, a person's word obeyed) must not come before it."""
    monkeypatch.setattr(Failing, "flush", lambda *_: 1)
    topic = ControlTopic({}, {}, "shop.control", lambda: 0.0, 1.0)
    with pytest.raises(Unreachable, match=r"shop\.control cannot be written: no acknowledgement"):
        topic.put(b"1", b"v", wait=True)


def test_who_only_reads_the_control_topic_makes_none(made: list[Failing]) -> None:
    """Without the right to write its client would tell of that on standard error."""
    ControlTopic({}, {}, "shop.control", lambda: 0.0, 1.0).close()

    assert made == []


def test_a_question_after_the_failure_goes_out(made: list[Failing], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unawaited, "producer", lambda *_, **__: {})
    timing: TimingLike = None  # type: ignore[assignment]
    topic = UnawaitedAppender({}, timing)
    for key in (b"1", b"2", b"3"):
        topic.put_by_key("shop.inquiries", key, b"v")

    assert [one.taken for one in made] == [[b"1"], [b"3"]]


def test_what_is_still_said_of_a_failed_producer_does_not_end_its_successor(made: list[Failing]) -> None:
    publisher = Appender({"bootstrap.servers": "127.0.0.1:1"}, DefaultTiming())
    first, second, third = (Record("orders", 0, key, b"v", []) for key in (b"1", b"2", b"3"))
    publisher.append([first], Receipt(1), float("inf"))

    def another_thread_is_faster() -> None:
        made[0].meanwhile = bool
        made[0].failed = True
        made[0].unsaid = 2  # as it is asked, and as it is flushed for the last time
        while not publisher._fatal:
            clock.sleep(0.005)
        publisher.append([third], Receipt(1), float("inf"))

    made[0].meanwhile = another_thread_is_faster
    with pytest.raises(CaptureError, match="out of order"):
        publisher.append([second], Receipt(1), float("inf"))
    while made[0].unsaid:
        clock.sleep(0.005)
    publisher.append([second], Receipt(1), float("inf"))
    publisher.close()

    assert [one.taken for one in made] == [[b"1"], [b"3", b"2"]]


def test_one_whose_token_is_overdue_is_replaced_and_what_it_has_is_waited_for(made: list[Failing]) -> None:
    """The wall clock was put back: it would show its old token for as long, to whichever broker it connects to next."""
    publisher = Appender({"bootstrap.servers": "127.0.0.1:1"}, DefaultTiming())
    publisher.append([Record("orders", 0, b"1", b"v", [])], Receipt(1), float("inf"))
    made[0].is_overdue = True
    limit = clock.monotonic() + 10
    while not publisher._fatal and clock.monotonic() < limit:
        clock.sleep(0.005)
    publisher.append([Record("orders", 0, b"2", b"v", [])], Receipt(1), float("inf"))
    publisher.close()

    assert [one.taken for one in made] == [[b"1"], [b"2"]]


def test_one_that_has_failed_since_it_was_asked_last_is_closed_like_any_other(made: list[Failing], monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that leaves closes it first, and did not leave its group; a command ended in a traceback behind what it had done."""
    monkeypatch.setattr(unawaited, "producer", lambda *_, **__: {})
    timing: TimingLike = None  # type: ignore[assignment]
    inquiries, topic = UnawaitedAppender({}, timing), ControlTopic({}, {}, "shop.control", lambda: 0.0, 1.0)
    inquiries.put_by_key("shop.inquiries", b"1", b"v")
    topic.put(b"1", b"v", wait=False)
    for one in made:
        one.unsaid = 1

    inquiries.close()
    topic.close()

    assert [one.unsaid for one in made] == [0, 0], "both were asked"

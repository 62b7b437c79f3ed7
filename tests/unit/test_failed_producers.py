"""A producer that has failed for good takes nothing any more: whoever appends now and then goes on with another."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from relay.kafka import control, inquiries
from relay.kafka.control import ControlTopic
from relay.kafka.inquiries import InquiryTopic
from relay.kafka.settings import TimingLike


class Failing:
    """Fails once for all at its second record; each made is in ``all``."""

    all: list[Failing]

    def __init__(self, _settings: Any) -> None:
        self.taken: list[bytes] = []
        self.purged = self.failed = False
        self.all.append(self)

    def produce(self, _topic: str, value: bytes, key: bytes, **_: Any) -> None:
        self.failed = self.failed or (len(self.all) == 1 and len(self.taken) == 1)
        if self.failed:
            raise KafkaException(KafkaError(KafkaError._FATAL, "out of order", fatal=True))
        self.taken.append(key)

    def purge(self) -> None:
        self.purged = True

    def poll(self, _timeout: float) -> int:
        return 0

    def flush(self, _timeout: float) -> int:
        return 0


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Failing]:
    Failing.all = []
    monkeypatch.setattr(control, "Producer", Failing)
    monkeypatch.setattr(inquiries, "Producer", Failing)
    return Failing.all


def test_the_control_topic_is_written_on_with_another(made: list[Failing]) -> None:
    topic = ControlTopic({}, {}, "shop.control", lambda: 0.0, 1.0)
    for key in (b"1", b"2", b"3"):
        topic.put(key, b"v", wait=False)

    assert [one.taken for one in made] == [[b"1"], [b"2", b"3"]]
    assert made[0].purged, "what it had is not waited for"


def test_a_question_after_the_failure_goes_out(made: list[Failing], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiries, "producer", lambda *_, **__: {})
    timing: TimingLike = None  # type: ignore[assignment]
    topic = InquiryTopic({}, timing, "shop.inquiries")
    for key in (b"1", b"2", b"3"):
        topic.put(key, b"v")

    assert [one.taken for one in made] == [[b"1"], [b"3"]]

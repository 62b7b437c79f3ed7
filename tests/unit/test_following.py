"""What persons want is heard within a fraction of a second, and read no more often than that takes."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from relay.config.timing import Timing
from relay.kafka import following, inquiries
from relay.message.errors import Unreachable
from relay.run.following import PERIOD_S, DesiredFollower
from relay.world import clock


class Topic:
    """A control topic that is away at first."""

    def __init__(self) -> None:
        self.asked = 0

    def records(self) -> Iterable[tuple[bytes, bytes | None]]:
        self.asked += 1
        if self.asked == 1:
            raise Unreachable("away")
        return []

    to_end = records

    def close(self) -> None:
        pass


def test_it_is_read_a_few_times_a_second_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    topic, now = Topic(), [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    one = DesiredFollower(topic)
    with pytest.raises(Unreachable):
        one.now()

    for step in range(100):
        now[0] = step / 100
        one.now()

    assert topic.asked == 1 + 1 / PERIOD_S


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(KafkaError._UNKNOWN_PARTITION, "if there is no such topic, run `relay migrate`"), (KafkaError._TRANSPORT, "is the broker up?")],
)
def test_a_topic_that_is_not_there_is_told_from_a_broker_that_is_away(
    monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    class Client:
        def __init__(self, _settings: object, **_: object) -> None:
            living.append(self)

        def close(self) -> None:
            living.remove(self)

        def get_watermark_offsets(self, _place: object, timeout: float) -> None:
            raise KafkaException(KafkaError(code))

        def list_topics(self, _topic: str, timeout: float) -> None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    living: list[Client] = []
    monkeypatch.setattr(following, "Consumer", Client)

    with pytest.raises(Unreachable) as raised:
        following.Following({}, "shop.control", deadline_s=-1.0).records()

    assert str(raised.value).startswith("shop.control cannot be read: ")
    assert str(raised.value).endswith(f"; {remedy}")
    assert living == [], "nobody may ask it again for weeks"


def test_before_anything_is_asked_for_there_is_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep what it says of itself, in a worker that waits for partitions."""
    made: list[object] = []
    monkeypatch.setattr(following, "Consumer", lambda *_, **__: made.append(None))

    following.Following({}, "shop.control", deadline_s=0.0, watched=True).close()

    assert made == []


class Lost:
    """A client that has lost all brokers, in a process that makes no other: neither threads nor files are left."""

    is_lost = True
    is_closed = False
    made = 0

    def __init__(self, *_: object, **__: object) -> None:
        Lost.made += 1
        if Lost.made > 1:
            raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE))

    def consume(self, *_: object) -> list[object]:
        assert not self.is_closed
        return []

    def close(self) -> None:
        self.is_closed = True

    def assign(self, _places: object) -> None: ...

    def get_watermark_offsets(self, _place: object, **_: object) -> tuple[int, int]:
        return 0, 0

    def list_topics(self, _topic: str, _seconds: float) -> SimpleNamespace:
        return SimpleNamespace(topics={})


@pytest.mark.parametrize("reader", ["following", "inquiries"])
def test_where_no_other_client_can_be_made_the_lost_one_is_kept_and_it_is_tried_again(monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    monkeypatch.setattr(Lost, "made", 0)
    monkeypatch.setattr(following, "Consumer", Lost)
    monkeypatch.setattr(inquiries, "Consumer", Lost)
    if reader == "following":
        ask = following.Following({}, "shop.control", deadline_s=0.0, watched=True).records
    else:
        ask = inquiries.InquiryReader({}, Timing(), "shop.inquiries").poll
    ask()

    for made in (2, 3) if reader == "following" else (3, 4):
        assert ask() == []
        assert Lost.made == made

"""What a client has not heard of, or a leader does not show, has not left the log yet: the cluster's list of topics tells."""

from __future__ import annotations

from typing import Any, Self

import pytest
from confluent_kafka import KafkaError, KafkaException

from relay.kafka import values
from relay.kafka.topics import TopicFacts
from relay.kafka.values import LogValues
from relay.message.errors import ConfigError, Unreachable
from relay.queue.message import Place
from relay.queue.port import StoreAway

ID, OTHER = b"i" * 16, b"o" * 16
PLACE = Place("orders", ID.hex(), 5, 7)


class Unheard:
    """A reader whose client knows of no such partition."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def watermarks(self, place: object) -> tuple[int, int]:
        raise Unreachable("the ends cannot be read") from KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))


class Behind(Unheard):
    """A reader whose leader ends below the place: it was replaced, and others have acknowledged more."""

    renewed = 0

    def watermarks(self, place: object) -> tuple[int, int]:
        return 0, PLACE.offset

    def renew(self) -> None:
        self.renewed += 1

    def read(self, ranges: dict[object, tuple[int, int]]) -> list[list[object]]:
        assert not ranges
        return []


class Cluster:
    """Tells what there is, or fails."""

    def __init__(self, told: TopicFacts | Exception | None) -> None:
        self._told = told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def describe(self, names: list[str], **_: Any) -> dict[str, TopicFacts]:
        if isinstance(self._told, Exception):
            raise self._told
        return {} if self._told is None else {names[0]: self._told}


def reading(
    told: TopicFacts | Exception | None, monkeypatch: pytest.MonkeyPatch, reader: type[Unheard] = Unheard
) -> LogValues:
    monkeypatch.setattr(values, "PartitionReader", reader)
    monkeypatch.setattr(values, "Topics", lambda *_: Cluster(told), raising=False)
    monkeypatch.setattr(values.settings, "consumer", lambda *_, **__: {})
    return LogValues({}, None, "test.values")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "told",
    [
        TopicFacts("orders", ID, 6, 1),
        TopicFacts("orders", ID, 3, 1),  # topics only grow: who says so lags behind
        Unreachable("no broker answers"),
        ConfigError("the role has no right to describe topics"),
    ],
    ids=["there", "lags", "away", "refused"],
)
def test_what_a_client_has_not_heard_of_is_asked_for_again_later(
    told: TopicFacts | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreAway):
        reading(told, monkeypatch).read([PLACE])


@pytest.mark.parametrize("told", [None, TopicFacts("orders", OTHER, 3, 1)], ids=["deleted", "made anew"])
def test_what_was_deleted_has_left_the_log(told: TopicFacts | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reading(told, monkeypatch).read([PLACE]) == {}


@pytest.mark.parametrize(
    "told",
    [
        TopicFacts("orders", ID, 6, 1),
        Unreachable("no broker answers"),
        ConfigError("the role has no right to describe topics"),
    ],
    ids=["there", "away", "refused"],
)
def test_what_lies_beyond_the_high_watermark_is_asked_for_again_of_whoever_leads_then(
    told: TopicFacts | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = reading(told, monkeypatch, Behind)
    for asked in ([PLACE], [PLACE, PLACE._replace(topic_id=OTHER.hex(), offset=8)]):
        with pytest.raises(StoreAway):
            behind.read(asked)
    if isinstance(told, TopicFacts):
        assert behind._reader.renewed == 2, "the handle goes on asking the leader that it knows"  # type: ignore[attr-defined]


@pytest.mark.parametrize("told", [None, TopicFacts("orders", OTHER, 6, 1)], ids=["deleted", "made anew"])
def test_what_lies_beyond_the_end_of_another_topic_has_left_the_log(
    told: TopicFacts | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reading(told, monkeypatch, Behind).read([PLACE]) == {}


class One(Behind):
    """A reader of a partition that has one record."""

    def watermarks(self, place: object) -> tuple[int, int]:
        return PLACE.offset, PLACE.offset + 1

    def read(self, ranges: dict[object, tuple[int, int]]) -> list[list[object]]:
        assert list(ranges.values()) == [(PLACE.offset, PLACE.offset + 1)]
        return [[Record()]]


class Record:
    """A record at the place."""

    def topic(self) -> str:
        return PLACE.topic

    def partition(self) -> int:
        return PLACE.partition

    def offset(self) -> int:
        return PLACE.offset

    def value(self) -> bytes:
        return b"v"


def test_a_place_in_a_former_topic_does_not_hide_the_same_one_in_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    former = PLACE._replace(topic_id=OTHER.hex())
    for asked in ([PLACE, former], [former, PLACE]):
        assert reading(None, monkeypatch, One).read(asked) == {PLACE: b"v", former: b"v"}, "the digest tells whose it is"

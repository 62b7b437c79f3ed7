"""A worker whose password is refused for a while ends, and the next one reads it again; one that is refused once goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import relay.kafka.group
from relay.kafka import reading
from relay.kafka.group import GroupConsumer
from relay.kafka.reading import PartitionReader
from relay.message.errors import LockedOut, Stopped, Unreachable
from relay.message.record import LogPartition
from relay.world import clock
from tests.unit.test_worker_events import Event

REFUSED = KafkaError(KafkaError._AUTHENTICATION, "invalid credentials")


class Client:
    is_lost = False

    def __init__(self, settings: Any, **_: Any) -> None:
        self.error_cb = settings["error_cb"]
        self.news: list[Any] = []

    def subscribe(self, *_: Any, **__: Any) -> None:
        pass

    def consume(self, _count: int, _timeout_s: float) -> list[Any]:
        found, self.news = self.news, []
        return found


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: at[0])
    monkeypatch.setattr(relay.kafka.group, "Consumer", Client)
    return at


def refused(member: GroupConsumer, now: list[float], after_s: float) -> None:
    now[0] += after_s
    member._consumer.error_cb(REFUSED)
    member.consume(1, 0)


def test_it_ends_when_brokers_go_on_to_refuse_it(now: list[float]) -> None:
    member = GroupConsumer({}, ["orders"], lambda: None)
    refused(member, now, 0)
    refused(member, now, 10)
    with pytest.raises(LockedOut, match="another one reads them again"):
        refused(member, now, 30)


def test_it_goes_on_with_what_it_reads_meanwhile_and_when_the_refusals_lie_far_apart(now: list[float]) -> None:
    member = GroupConsumer({}, ["orders"], lambda: None)
    for _ in range(5):
        refused(member, now, 70)
    for _ in range(5):
        member._consumer.news = [Event(KafkaError._PARTITION_EOF)]  # type: ignore[attr-defined]
        refused(member, now, 30)


@pytest.mark.parametrize("code", [KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED])
@pytest.mark.parametrize(
    "ask", [lambda one, place: one.watermarks(place), lambda one, place: one.ends([place])], ids=["watermarks", "ends"]
)
def test_what_was_asked_as_the_password_was_refused_stops_no_worker_for_a_person(
    code: int, ask: Callable[[PartitionReader, LogPartition], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process reads the password again; of one that has stopped there is no next."""

    class Handle:
        def __init__(self, _: Any) -> None:
            pass

        def get_watermark_offsets(self, *_: Any, **__: Any) -> None:
            raise KafkaException(KafkaError(code))

        offsets_for_times = get_watermark_offsets

        def hear(self) -> None:
            pass

    monkeypatch.setattr(reading, "Consumer", Handle)
    reader = PartitionReader({}, committed=True, clock=clock.monotonic, deadline_s=0, denied=Stopped)
    with pytest.raises(Unreachable, match="cannot be read"):
        ask(reader, LogPartition("orders", 0))

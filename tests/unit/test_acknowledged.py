"""What is appended outside transactions counts once every record of it is acknowledged, whatever is said of the others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from relay.kafka import appending, bulk
from relay.kafka.appender import Receipt
from relay.kafka.appending import Appending
from relay.kafka.bulk import BulkAppender
from relay.kafka.settings import DefaultTiming
from relay.message.errors import CaptureError, ConfigError, InDoubt, Stopped, Unreachable
from relay.message.record import LogPartition

PLACE = LogPartition("log", 0)
TIMED_OUT, TOO_LARGE, UNKNOWN = map(KafkaError, (KafkaError._MSG_TIMED_OUT, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.UNKNOWN))


class Client:
    """Reports, when it is polled or flushed, on as many records as ``answered`` says; ``errors`` are by number."""

    answered: ClassVar[int] = 100
    errors: ClassVar[dict[int, KafkaError]] = {}

    def __init__(self, _settings: dict[str, Any]) -> None:
        self._waiting: list[Callable[..., object]] = []
        self._told = 0
        self.end: KafkaError | None = None

    def produce(self, *_: object, on_delivery: Callable[..., object], **__: object) -> None:
        self._waiting.append(on_delivery)

    def poll(self, _timeout: float) -> None:
        if self.end is not None:
            end, self.end = self.end, None
            raise KafkaException(end)
        while self._told < min(self.answered, len(self._waiting)):
            self._waiting[self._told](self.errors.get(self._told), SimpleNamespace(topic=lambda: "log"))
            self._told += 1

    def flush(self, _timeout: float) -> int:
        self.poll(0)
        return len(self._waiting) - self._told


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "Producer", Client)
    monkeypatch.setattr(bulk, "Producer", Client)


def two_bundles() -> Appending:
    """The first one of two records, the second of one, which is left open."""
    made = Appending({})
    for token, count in (("first", 2), ("second", 1)):
        bundle = made.bundle(token)
        for _ in range(count):
            made.append(bundle, PLACE, b"k", b"v")
        if token == "first":
            made.close(bundle)
    return made


@pytest.mark.parametrize(("answered", "done"), [(0, []), (1, []), (2, ["first"]), (3, ["first"])])
def test_a_bundle_counts_once_it_is_closed_and_wholly_acknowledged(
    answered: int, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "answered", answered)
    assert two_bundles().acknowledged() == done


@pytest.mark.parametrize(("error", "raised"), [(TIMED_OUT, Unreachable), (TOO_LARGE, Stopped)])
@pytest.mark.parametrize("number", [0, 1])
def test_one_of_which_a_record_failed_never_counts(
    number: int, error: KafkaError, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "errors", {number: error})
    made = two_bundles()
    for _ in range(2):
        with pytest.raises(raised):
            made.acknowledged()


@pytest.mark.parametrize(("answered", "errors"), [(2, {}), (3, {2: TIMED_OUT})], ids=["silent", "failed"])
def test_who_waits_for_all_is_told_that_some_are_in_doubt(
    answered: int, errors: dict[int, KafkaError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "answered", answered)
    monkeypatch.setattr(Client, "errors", errors)
    with pytest.raises(InDoubt):
        two_bundles().flush(0.1)


@pytest.mark.parametrize(
    ("answered", "errors", "raised"),
    [(2, {}, Unreachable), (3, {1: TIMED_OUT}, Unreachable), (3, {1: UNKNOWN}, Unreachable), (3, {2: TOO_LARGE}, CaptureError)],
    ids=["silent", "failed", "unknown", "refused"],
)
def test_a_task_whose_rows_are_not_all_acknowledged_has_failed(
    answered: int, errors: dict[int, KafkaError], raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attempt would else be listed by the decision of its batch, without some of its rows."""
    made = BulkAppender({"bootstrap.servers": "127.0.0.1:1"}, DefaultTiming(), 0.0)
    monkeypatch.setattr(Client, "answered", 0)
    made.append([("log", 0, b"k", b"v", [])] * 3)
    monkeypatch.setattr(Client, "answered", answered)
    monkeypatch.setattr(Client, "errors", errors)
    with pytest.raises(raised):
        made.flush()


ENDS = [
    (KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "a record is missing", fatal=True), Unreachable),
    (KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "not allowed", fatal=True), ConfigError),
]


@pytest.mark.parametrize(("end", "raised"), ENDS, ids=["broken", "denied"])
@pytest.mark.parametrize("calls", ["append", "flush"])
def test_a_task_whose_client_ends_says_why(calls: str, end: KafkaError, raised: type[Exception]) -> None:
    """A driver that only writes what is decided already goes on behind a failure of the relay's, and behind no other."""
    made = BulkAppender({"bootstrap.servers": "127.0.0.1:1"}, DefaultTiming(), 1.0)
    made._producer.end = end  # type: ignore[attr-defined]
    with pytest.raises(raised, match=f"the client can append no more: {end.name()}: {end.str()}"):
        made.flush() if calls == "flush" else made.append([("log", 0, b"k", b"v", [])])


@pytest.mark.parametrize(("end", "raised"), [(ENDS[0][0], InDoubt), (ENDS[1][0], Stopped)], ids=["broken", "denied"])
def test_who_waits_for_all_is_told_that_the_client_has_ended(end: KafkaError, raised: type[Exception]) -> None:
    """It is waited for as a worker leaves, where nobody sorts what the client raises."""
    made = two_bundles()
    made._producer.end = end  # type: ignore[attr-defined]
    with pytest.raises(raised, match=end.str()):
        made.flush(0.1)


def test_a_receipt_is_complete_with_its_last_report_and_keeps_a_failure_among_them() -> None:
    receipt = Receipt(3)
    for error in (None, TIMED_OUT):
        receipt.told(error, None)
        assert not receipt.wait(0.0)
    receipt.told(None, None)
    assert receipt.wait(0.0)
    assert receipt.failure is TIMED_OUT

"""A transaction goes on only when every record of it is known to be in the log: what else is said, or is not said, ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from relay.kafka import transactions
from relay.kafka.transactions import TransactionalInstance
from relay.message.errors import InDoubt, RecordRefused
from relay.message.record import LogPartition

OUT = LogPartition("out", 0)
COUNT = 5


class Client:
    """Reports on each record when it is flushed; ``errors`` are those of records by number, ``silent`` is never reported on."""

    errors: ClassVar[dict[int, int]] = {}
    silent: ClassVar[int | None] = None

    def __init__(self, _settings: dict[str, Any]) -> None:
        self._waiting: list[Callable[..., object]] = []

    def produce(self, _topic: str, *, on_delivery: Callable[..., object], **_: Any) -> None:
        self._waiting.append(on_delivery)

    def begin_transaction(self) -> None:
        pass

    def flush(self, _timeout: float) -> int:
        for number, report in enumerate(self._waiting):
            code = self.errors.get(number)
            if number != self.silent:
                report(KafkaError(code) if code else None, SimpleNamespace(topic=lambda: "out", partition=lambda: 0, offset=lambda: 7))
        self._waiting = []
        return int(self.silent is not None)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> TransactionalInstance:
    monkeypatch.setattr(transactions, "Producer", Client)
    made = TransactionalInstance({}, "w", timeout_s=0.3)
    made.begin()
    made.produce_all(OUT, [(b"k", b"v", [], 0)] * (COUNT - 1))
    made.produce(OUT, b"k", b"v")
    return made


def test_when_every_record_is_reported_it_goes_on(instance: TransactionalInstance) -> None:
    instance.flush()
    assert instance.acked == {OUT: 7}


@pytest.mark.parametrize("code", [KafkaError._MSG_TIMED_OUT, KafkaError.UNKNOWN])
@pytest.mark.parametrize("number", range(COUNT))
def test_a_record_that_failed_ends_it_wherever_it_lay(
    instance: TransactionalInstance, number: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for what brokers call unknown: the client's error of that has no hash."""
    monkeypatch.setattr(Client, "errors", {number: code})
    with pytest.raises(KafkaException) as raised:
        instance.flush()
    assert raised.value.args[0].code() == code


@pytest.mark.parametrize("number", range(COUNT))
def test_a_record_that_the_broker_refused_is_told_from_one_that_failed(
    instance: TransactionalInstance, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "errors", {number: KafkaError.MSG_SIZE_TOO_LARGE})
    with pytest.raises(RecordRefused):
        instance.flush()


def test_a_report_that_does_not_come_leaves_it_in_doubt(instance: TransactionalInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "silent", COUNT - 1)
    with pytest.raises(InDoubt):
        instance.flush()


def test_a_client_that_blocks_past_its_own_timeout_is_left_at_the_deadline(
    instance: TransactionalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As librdkafka may after a reset (#5456)."""
    let_go = threading.Event()
    monkeypatch.setattr(transactions, "DEADLINE_MARGIN_S", 0.1)
    try:
        for name, call in (
            ("send_offsets_to_transaction", lambda: instance.send_offsets({OUT: 1}, {}, b"member")),
            ("commit_transaction", instance.commit),
        ):
            monkeypatch.setattr(Client, name, lambda *_: let_go.wait(30), raising=False)
            with pytest.raises(InDoubt):
                call()
    finally:
        let_go.set()

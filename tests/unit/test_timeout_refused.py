"""Brokers that refuse a transaction's timeout refuse it every time: a person must choose another."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from relay.kafka import transactions
from relay.kafka.transactions import TransactionalInstance
from relay.message.errors import Stopped


class Refused:
    """A client whose brokers have a lower ``transaction.max.timeout.ms``, or that is fenced."""

    code = KafkaError.INVALID_TRANSACTION_TIMEOUT

    def __init__(self, _settings: Any) -> None:
        self.produce = None

    def init_transactions(self, _timeout_s: float) -> None:
        raise KafkaException(KafkaError(self.code, "refused", fatal=True))


def test_a_timeout_that_brokers_refuse_stops_with_its_name_and_what_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "Producer", Refused)

    with pytest.raises(Stopped, match=r"timing\.transaction_timeout = 10 s .* transaction\.max\.timeout\.ms .* lower it"):
        TransactionalInstance({}, "shop.main.one.0", 10.0).init()


def test_what_else_fails_there_is_for_a_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "Producer", Refused)
    monkeypatch.setattr(Refused, "code", KafkaError._FENCED)

    with pytest.raises(KafkaException):
        TransactionalInstance({}, "shop.main.one.0", 10.0).init()

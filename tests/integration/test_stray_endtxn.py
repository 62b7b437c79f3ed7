"""The finding that sealing answers, on plain clients: a late EndTxn ends the next transaction (KAFKA-17754).

Control runs. They show that the fault really bites the client and the broker in use, and by which means it does
not. Should one of them turn green for the wrong reason - a client that bumps the epoch at every EndTxn - sealing
could go.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from relay.chaos.frame_proxy import Caught, end_txn
from tests.contracts.kafka_contract import FENCED
from tests.integration.conftest import Proxied
from tests.routes import read_all

SOCKET_TIMEOUT_MS = 1500


@dataclass
class App:
    """A plain transactional application with one output topic of two partitions."""

    at: Proxied
    topic: str
    transactional_id: str

    def __post_init__(self) -> None:
        self.producer = self.fresh()

    def fresh(self) -> Producer:
        """Make a new instance under the same transactional id."""
        self.producer = Producer(
            {
                "bootstrap.servers": self.at.kafka,
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": 20_000,
                "socket.timeout.ms": SOCKET_TIMEOUT_MS,
                "linger.ms": 0,
            }
        )
        self.producer.init_transactions(15)
        return self.producer

    def write(self, value: str, partition: int = 0, topic: str = "") -> list[KafkaError | None]:
        """Append and wait for the delivery report."""
        reports: list[KafkaError | None] = []
        self.producer.produce(
            topic or self.topic, value.encode(), partition=partition, on_delivery=lambda e, _: reports.append(e)
        )
        assert self.producer.flush(15) == 0
        return reports

    def hold(self, *, committed: bool, reset: bool = False) -> Caught:
        """Keep this application's next EndTxn back."""
        match = end_txn(committed=committed, transactional_id=self.transactional_id)
        return self.at.proxy.hold(match, reset=reset)

    def first(self, *, commit: bool, reset: bool = False) -> Caught:
        """Run transaction 1 whose EndTxn is kept back; the client repeats it without a word, and it returns OK."""
        held = self.hold(committed=commit, reset=reset)
        self.producer.begin_transaction()
        assert self.write("txn1") == [None]
        if commit:
            self.producer.commit_transaction(15)
        else:
            self.producer.abort_transaction(15)
        assert held.is_caught
        self.at.wait_for_markers(self.topic, 2)
        return held

    def arrive(self, held: Caught) -> int:
        """Let the kept EndTxn reach the broker and do its work."""
        code = held.release_end_txn()
        self.at.wait_for_markers(self.topic, 2)
        return code

    def visible(self, topic: str = "") -> list[str]:
        """What a read_committed reader finds."""
        partitions = 1 if topic else 2
        return [m.value().decode() for m in read_all(self.at.kafka, topic or self.topic, partitions)]


@pytest.fixture
def app(proxied: Proxied) -> App:
    return App(proxied, proxied.topic("out", 2), f"plain-{uuid4().hex[:8]}")


def test_a_late_commit_publishes_what_is_aborted(app: App) -> None:
    """Scenario A."""
    held = app.first(commit=True)
    app.producer.begin_transaction()
    assert app.write("txn2 must abort") == [None]
    assert app.arrive(held) == 0
    with pytest.raises(KafkaException) as refused:
        app.producer.abort_transaction(15)
    assert refused.value.args[0].code() == KafkaError.INVALID_TXN_STATE
    assert app.visible() == ["txn1", "txn2 must abort"]


@pytest.mark.parametrize("reset", [False, True], ids=["B: timed out", "H: connection reset"])
def test_b_h_late_abort_takes_half_of_a_committed_transaction(app: App, reset: bool) -> None:
    """Scenarios B and H: every call returns OK."""
    started = time.monotonic()
    held = app.first(commit=False, reset=reset)
    if reset:
        assert time.monotonic() - started < SOCKET_TIMEOUT_MS / 1000, "a reset is repeated at once"
    app.producer.begin_transaction()
    assert app.write("txn2 first", 0) == [None]
    assert app.arrive(held) == 0
    assert app.write("txn2 second", 1) == [None]
    app.producer.commit_transaction(15)
    assert app.visible() == ["txn2 second"]


def test_e_relay_pattern_loses_a_message_in_silence(app: App, proxied: Proxied) -> None:
    """Scenario E: every call OK, the output empty, the monitor says delivered, the input's offset is committed."""
    log, monitor = proxied.topic("log"), proxied.topic("monitor")
    consumer = Consumer({"bootstrap.servers": proxied.kafka, "group.id": log, "enable.auto.commit": False})
    consumer.assign([TopicPartition(log, 0, 0)])
    held = app.first(commit=False)
    app.producer.begin_transaction()
    assert app.write("output") == [None]
    assert app.arrive(held) == 0
    assert app.write("delivered", topic=monitor) == [None]
    app.producer.send_offsets_to_transaction([TopicPartition(log, 0, 1)], consumer.consumer_group_metadata(), 15)
    app.producer.commit_transaction(15)
    proxied.wait_for_markers(monitor)
    (committed,) = consumer.committed([TopicPartition(log, 0)], timeout=15)
    consumer.close()
    assert (app.visible(), app.visible(monitor), committed.offset) == ([], ["delivered"], 1)


@pytest.mark.parametrize("commit", [True, False], ids=["C: commit", "D: abort"])
def test_c_d_fresh_instance_fences_the_late_copy(app: App, commit: bool) -> None:
    """Scenarios C and D: what discarding an instance after every doubt is for."""
    held = app.first(commit=commit)
    app.fresh()
    app.producer.begin_transaction()
    assert app.write("txn2 first", 0) == [None]
    assert held.release_end_txn() in FENCED
    assert app.write("txn2 second", 1) == [None]
    app.producer.commit_transaction(15)
    assert sorted(app.visible()) == ["txn1"] * commit + ["txn2 first", "txn2 second"]


@pytest.mark.parametrize("commit", [True, False], ids=["S2: commit", "S1: abort"])
def test_s_partition_verification_refuses_the_second_record(app: App, commit: bool) -> None:
    """Scenarios S1 and S2, on which the seal rests: begun in this partition, ended from outside, refused here."""
    held = app.first(commit=commit)
    app.producer.begin_transaction()
    assert app.write("txn2 first") == [None]
    assert app.arrive(held) == 0
    (report,) = app.write("txn2 second")
    assert report is not None
    assert report.code() == KafkaError.INVALID_TXN_STATE
    with pytest.raises(KafkaException) as refused:
        app.producer.commit_transaction(15)
    assert refused.value.args[0].txn_requires_abort()
    assert app.visible() == (["txn1", "txn2 first"] if commit else [])

"""A closed appender leaves no client that goes on looking for its brokers, and takes nothing any more."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from relay.capture.publisher import DefaultTiming
from relay.kafka import appender
from relay.kafka.appender import Appender, Receipt, Record
from relay.message.errors import CaptureError

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": "60000"}
RECORD = Record("orders", 0, None, b"x", [])


def test_what_never_arrived_is_told_as_failed_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "_CLOSE_S", 0.2)
    publisher = Appender(NOBODY, DefaultTiming())
    receipt = Receipt(1)
    publisher.append([RECORD], receipt, float("inf"))

    publisher.close()

    assert receipt.wait(0), "told, or its capture would wait for nothing"
    assert receipt.failure is not None
    assert receipt.failure.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


def test_a_closed_one_refuses_what_comes_late() -> None:
    publisher = Appender(NOBODY, DefaultTiming())
    publisher.close()

    with pytest.raises(CaptureError, match="was closed"):
        publisher.append([RECORD], Receipt(1), float("inf"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs the names of this process's threads")
def test_its_client_ends_although_the_appender_is_still_held() -> None:
    before = threads()
    publisher = Appender(NOBODY, DefaultTiming())
    began = len(threads() - before)

    publisher.close()

    assert began > 0
    assert len(threads() - before) < began, "the producer's threads; the administrative client's may stay"


def threads() -> set[str]:
    """Return the numbers of the Kafka client's threads in this process."""
    tasks = Path("/proc/self/task").iterdir()
    return {task.name for task in tasks if (task / "comm").read_text().startswith("rdk:")}

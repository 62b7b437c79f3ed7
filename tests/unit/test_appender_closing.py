"""A closed appender leaves no client that goes on looking for its brokers, and takes nothing any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from relay.kafka import appender
from relay.kafka.appender import Appender, Receipt, Record
from relay.kafka.settings import DefaultTiming
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


# In an interpreter of its own: what other tests left behind begins and ends threads of the same names at any time.
COUNT_THREADS = f"""
import os
import time

from relay.kafka.settings import DefaultTiming
from relay.kafka.appender import Appender

def threads():
    return set(os.listdir("/proc/self/task"))

before = threads()
publisher = Appender({NOBODY!r}, DefaultTiming())
own = threads() - before
publisher.close()
deadline = time.monotonic() + 5  # the kernel lists a thread a moment longer than its join waits
while 2 * len(own & threads()) >= len(own) and time.monotonic() < deadline:
    time.sleep(0.01)
print(len(own), len(own & threads()))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs the names of this process's threads")
def test_its_client_ends_although_the_appender_is_still_held() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", COUNT_THREADS], check=True, capture_output=True, text=True, timeout=60
    )

    own, left = map(int, ran.stdout.split())
    assert own > 0
    assert left < own / 2, "the producer's threads end; the administrative client's as many may stay"

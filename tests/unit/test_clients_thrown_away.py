"""Clients that a recovery throws away end at once: no collector of cycles comes by for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}

# In an interpreter of its own: what other tests left behind begins and ends threads of the same names at any time.
COUNT_THREADS = f"""
import gc
import os
import time

from confluent_kafka import KafkaException

from relay.kafka.appending import Appending
from relay.kafka.transactions import TransactionalInstance
from relay.message.record import LogPartition

def threads():
    return set(os.listdir("/proc/self/task"))

def after(throw_away):
    before = threads()
    made = throw_away()
    own = threads() - before
    del made
    deadline = time.monotonic() + 5  # the kernel lists a thread a moment longer than its join waits
    while own & threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    print(len(own), len(own & threads()))

def instance():
    made = TransactionalInstance({NOBODY!r}, "shop.to-ledger.one.0", 0.2)
    try:
        made.init()
    except KafkaException:
        made.discard()
    return made

def appending():
    made = Appending({NOBODY!r})
    bundle = made.bundle("entries")
    made.append(bundle, LogPartition("monitor", 0), b"k", b"v")
    made.close(bundle)
    return made

gc.disable()  # workers have thresholds that hardly any of them reaches
after(instance)
after(appending)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs the names of this process's threads")
def test_no_client_outlives_what_it_was_made_for() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", COUNT_THREADS], check=True, capture_output=True, text=True, timeout=60
    )

    for kind, line in zip(("transactional instance", "appending"), ran.stdout.splitlines(), strict=True):
        own, left = map(int, line.split())
        assert own > 0, kind
        assert left == 0, f"{kind}: {left} of {own} threads are left, and its connections with them"

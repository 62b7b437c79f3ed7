"""Clients that a recovery, or a look at the relay, throws away end at once: no collector of cycles comes by for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
CONFIGURATION = """
[relay]
name = "shop"
instance = "one"
state = "state"

[kafka]
"bootstrap.servers" = "127.0.0.1:1"

[routes.to-ledger]
from = ["orders"]
to = { topic = "ledger" }
"""

# In an interpreter of its own: what other tests left behind begins and ends threads of the same names at any time.
COUNT_THREADS = f"""
import gc
import os
import sys
import time
from pathlib import Path

from confluent_kafka import KafkaException

from relay.config.loading import load
from relay.control.in_doubt_reading import InDoubtReader
from relay.control.status_reading import StatusReader
from relay.kafka.appending import Appending
from relay.kafka.topics import Topics
from relay.kafka.transactions import TransactionalInstance
from relay.message.errors import Unreachable
from relay.message.record import LogPartition

def threads():
    return set(os.listdir("/proc/self/task"))

def after(make, end=lambda made: None):
    before = threads()
    made = make()
    own = threads() - before
    end(made)
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

def topics():
    made = Topics({NOBODY!r}, config.timing, 0.2)
    try:
        made.names()
    except Unreachable:
        return made

def leave(reader):
    kept.append(reader)  # only what is closed ends, then
    reader.__exit__(None, None, None)

kept = []
config = load(Path(sys.argv[1]))
gc.disable()  # workers have thresholds that hardly any of them reaches
after(instance)
after(appending)
after(topics)
after(lambda: StatusReader(config), leave)
after(lambda: InDoubtReader(config), leave)
"""
KINDS = ("transactional instance", "appending", "topics", "status reader", "reader of what is in doubt")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs the names of this process's threads")
def test_no_client_outlives_what_it_was_made_for(tmp_path: Path) -> None:
    configuration = tmp_path / "relay.toml"
    configuration.write_text(CONFIGURATION)
    ran = subprocess.run(
        [sys.executable, "-c", COUNT_THREADS, str(configuration)], check=True, capture_output=True, text=True, timeout=60
    )

    for kind, line in zip(KINDS, ran.stdout.splitlines(), strict=True):
        own, left = map(int, line.split())
        assert own > 0, kind
        assert left == 0, f"{kind}: {left} of {own} threads are left, and its connections with them"

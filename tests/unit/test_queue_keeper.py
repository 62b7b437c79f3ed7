"""The thread that keeps a queue's journal: the store that it was lent is not taken away under it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from relay.config.loading import load
from relay.queue.journal import Archived
from relay.queue.port import StoreAway
from relay.run import queue_keeper
from relay.run.following import DesiredFollower
from relay.run.queues import open_at
from relay.work.assembly import Assembled, Job
from relay.work.message import Message
from relay.work.subscriber import subscriber
from relay.work.worker import Limits
from tests.recorded_queue import RecordedQueue

CONFIG = """
[relay]
name = "shop"
instance = "one"
state = "./state"

[kafka]
"bootstrap.servers" = "127.0.0.1:9"

[queues.credit]
store = "files:///credit"
subscribers = { approval = {} }
retain = "7d"
"""
WAIT_S = 60.0


@subscriber("credit")
def handled(message: Message) -> None:
    """Is never called."""


@pytest.mark.parametrize("is_slow", [True, False])
def test_files_that_a_slow_keeper_still_uses_go_to_nobody_else(is_slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG)
    config = load(tmp_path / "relay.toml")
    store = open_at(config, config.queues["credit"], config.queues["credit"].store)
    uuid = store.uuid
    store.close()
    begun, go_on, outcome = threading.Event(), threading.Event(), list[Any]()

    def step(lent: Any, *_: Any) -> Archived:
        begun.set()
        if is_slow:
            go_on.wait(WAIT_S)
        outcome.append(lent.counts())
        return Archived()

    monkeypatch.setattr(queue_keeper, "archive", step)
    if is_slow:
        monkeypatch.setattr(queue_keeper, "PERIOD_S", 0.5)
    assembled = Assembled(config, Job(handled, "credit", "approval"), Limits(), DesiredFollower(RecordedQueue("credit", uuid)))
    assert begun.wait(WAIT_S)

    assembled.close()

    if is_slow:
        with pytest.raises(StoreAway):
            open_at(config, config.queues["credit"], config.queues["credit"].store)
        go_on.set()
        thread = assembled._journal._thread
        assert thread is not None
        thread.join(WAIT_S)
        assembled.stores.close()
    assert outcome, "the step came to its end"
    open_at(config, config.queues["credit"], config.queues["credit"].store).close()

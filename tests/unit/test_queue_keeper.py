"""The thread that keeps a queue's journal: the store that it was lent is not taken away under it."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from relay.config.loading import load
from relay.message.errors import CheckFailed, Unreachable
from relay.queue.desired import Desired
from relay.queue.journal import Archived
from relay.queue.port import StoreAway
from relay.run import queue_keeper, queue_upkeep
from relay.run.following import DesiredFollower
from relay.run.queue_keeper import JournalKeeper
from relay.run.queues import open_at
from relay.work.assembly import Assembled, Job
from relay.work.message import Message
from relay.work.subscriber import subscriber
from relay.work.worker import Limits
from tests.recorded_queue import RecordedQueue
from tests.routes import wait_for

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


def test_an_archive_that_cannot_be_written_is_said_with_what_to_do_and_not_at_each_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG.replace('"7d"', '"7d"\narchive = "day"'))
    config = load(tmp_path / "relay.toml")
    store = open_at(config, config.queues["credit"], config.queues["credit"].store)
    folder = queue_upkeep.archive_folder(config)
    folder.parent.mkdir()
    folder.write_bytes(b"")
    said = f"{folder} cannot be written (File exists): make room there, or let the relay write there; nothing unwritten was trimmed"
    with pytest.raises(CheckFailed) as refused:
        queue_upkeep.archive(store, config, 0)
    assert str(refused.value) == said

    looks = list[None]()
    monkeypatch.setattr(queue_keeper, "PERIOD_S", 0.01)
    monkeypatch.setattr(queue_keeper, "archive", lambda *given: looks.append(None) or queue_upkeep.archive(*given))
    keeper = JournalKeeper(config, "credit", Desired(), lent=store)
    with capture_logs() as logs:
        keeper.start()
        wait_for(lambda: len(looks) > 3)
        keeper._ended.set()
        assert keeper._thread is not None
        keeper._thread.join(WAIT_S)

    assert [(one["event"], one["reason"]) for one in logs] == [("journal kept later", said)]
    store.close()


def test_a_limit_of_the_process_is_no_folders_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG.replace('"7d"', '"7d"\narchive = "day"'))
    config = load(tmp_path / "relay.toml")
    store = open_at(config, config.queues["credit"], config.queues["credit"].store)

    def no_file(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(queue_upkeep.journal, "let_go", no_file)
    with pytest.raises(Unreachable, match="Too many open files; this process"):
        queue_upkeep.archive(store, config, 0)
    store.close()

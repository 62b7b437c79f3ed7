"""Commands about all queues: one whose store is away is named and keeps the others from nothing, and is waited for once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from relay.cli.main import app
from relay.config.loading import load
from relay.control import queue_desk
from relay.message.errors import Unreachable
from relay.queue.desired import Desired
from relay.queue.message import Parent
from relay.queue.port import StoreAway
from relay.world import clock
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import message

CONFIG = """\
[relay]
name = "shop"
instance = "one"
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[resources.shop]
url = "postgresql://db/shop"
[queues.alpha]
store = "shop"
subscribers = { ann = {} }
[queues.beta]
store = "sqlite:///beta.db"
subscribers = { ann = {} }
[queues.gamma]
store = "shop"
subscribers = { ann = {} }
"""
Run = Callable[[str], tuple[int, dict[str, Any]]]


@pytest.fixture
def opened() -> list[str]:
    """Return the queues that were opened."""
    return []


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[str]) -> Run:
    """Return how a command ends, and what it prints, while the database does not answer."""
    path = tmp_path / "relay.toml"
    path.write_text(CONFIG)
    now = [0.0]

    def open_queue(config: Any, name: str, _: Desired) -> Any:
        opened.append(name)
        if name != "beta":
            now[0] += 50.0
            raise StoreAway("the queue's database does not answer")
        book = QueueBook(config.queues[name].settings())
        book.put([message("a", parents=(Parent("alpha", 7, "ann"),))], 0)
        return book

    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(queue_desk, "require_topics", lambda *_: None)
    monkeypatch.setattr(queue_desk, "follow", lambda *_: SimpleNamespace(now=Desired, close=lambda: None))
    monkeypatch.setattr(queue_desk, "open_queue", open_queue)
    assert sorted(load(path).queues) == ["alpha", "beta", "gamma"]

    def invoke(command: str) -> tuple[int, dict[str, Any]]:
        done = CliRunner().invoke(app, [*command.split(), str(path), "--json"])
        return done.exit_code, orjson.loads(done.output)

    return invoke


@pytest.mark.parametrize("command", ["queue list", "subscriber list", "publisher list", "journal show", "journal archive"])
def test_a_database_that_is_away_is_named_for_each_queue_and_waited_for_once(command: str, run: Run, opened: list[str]) -> None:
    code, said = run(command)

    assert code == Unreachable.exit_code
    assert said["notes"] == [f"queue {name}: the queue's database does not answer" for name in ("alpha", "gamma")]
    if command in ("queue list", "journal show", "journal archive"):
        assert [row["queue"] for row in said["queues"]] == ["beta"]
    assert opened == ["alpha", "beta"]


def test_a_trace_names_the_queues_that_it_did_not_see(run: Run, tmp_path: Path, opened: list[str]) -> None:
    done = CliRunner().invoke(app, ["message", "trace", str(tmp_path / "relay.toml"), "beta", "1", "--json"])

    assert done.exit_code == Unreachable.exit_code
    assert [(one["queue"], one["handle"], one["gone"]) for one in orjson.loads(done.stdout)] == [("beta", 1, False)]
    assert [line.split(";")[0] for line in done.stderr.splitlines()] == [
        f"queue {name}: the queue's database does not answer" for name in ("alpha", "gamma")
    ]
    assert opened == ["beta", "alpha"], "the database is waited for once"

"""A subscriber's name that was misspelt is said to be unknown, and not that nothing was found of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.config.loading import load
from relay.control.queue_desk import QueueDesk
from relay.message.errors import ConfigError

CONFIG = """\
[relay]
name = "shop"
instance = "one"
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[queues.credit]
store = "sqlite:///credit.db"
subscribers = { approval = {}, clerks = { pool = ["ann", "bob"] } }
"""


def test_a_misspelt_subscriber_is_named_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG)
    desk = QueueDesk.__new__(QueueDesk)
    desk.config = load(tmp_path / "relay.toml")

    desk.check_subscriber("credit", None)
    desk.check_subscriber("credit", "ann")
    with pytest.raises(ConfigError, match="no such subscriber; it has approval, ann, bob"):
        desk.check_subscriber("credit", "approvl")

"""A worker that is started on another host than its embedded store's leaves no store behind there."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.config.loading import load
from relay.message.errors import Stopped
from relay.run.following import DesiredFollower
from relay.work.assembly import Assembled, Job
from relay.work.message import Message
from relay.work.subscriber import subscriber
from relay.work.worker import Limits

CONFIG = """
[relay]
name = "shop"
instance = "one"
state = "./state"

[kafka]
"bootstrap.servers" = "127.0.0.1:9"

[queues.credit]
store = "{store}"
subscribers = {{ approval = {{}} }}
"""


class Nothing:
    """A control topic that says nothing."""

    def records(self) -> list[tuple[bytes, bytes | None]]:
        return []

    to_end = records

    def close(self) -> None:
        pass


@subscriber("credit")
def handled(message: Message) -> None:
    """Is never called."""


@pytest.mark.parametrize("store", ["sqlite:///credit.db", "log+sqlite:///credit.db", "files:///credit.db"])
def test_looking_for_a_store_that_is_elsewhere_makes_none(store: str, tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG.format(store=store))
    config = load(tmp_path / "relay.toml")

    with pytest.raises(Stopped, match="which is not there"):
        Assembled(config, Job(handled, "credit", "approval"), Limits(), DesiredFollower(Nothing()))

    assert not (tmp_path / "credit.db").exists()

"""Upkeep of decision rows in a database that several services share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from relay.capture.marking import Ended
from relay.capture.upkeep import Upkeep
from relay.kafka.topics import TopicFacts
from relay.message.errors import ConfigError
from relay.message.identity import capture_id
from relay.resources import open_resource
from relay.resources.port import Resource
from relay.run import schedule

OWN, FOREIGN = b"o" * 16, b"f" * 16


class Marking:
    """Takes what would be marked."""

    backlog = 0

    def __init__(self) -> None:
        self.submitted: list[Ended] = []

    def submit(self, ended: Ended) -> None:
        self.submitted.append(ended)


class Appender:
    """Has the right to see one topic."""

    def known_topics(self) -> list[TopicFacts]:
        return []

    def describe(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        if "payroll" in names:
            raise ConfigError("cannot describe topic payroll: the broker does not allow it")
        return {name: TopicFacts(name, b"i" * 16, 1, 1, {"retention.ms": "0", "segment.ms": "0"}) for name in names}


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resource:
    monkeypatch.setattr(schedule, "start_thread", lambda *_: None)
    resource = open_resource("shop", f"sqlite:///{tmp_path}/shop.db", 0.2)
    resource.create_tables()
    session = resource.session()
    for nonce, topic in ((FOREIGN, "payroll"), (OWN, "orders")):
        session.begin(capture_id(nonce), nonce)
        session.decide(capture_id(nonce), orjson.dumps([[topic, 0, 1, 1]]))
    session.execute("update relay_capture set created_at = created_at - 1000000")
    session.close()
    return resource


def test_anothers_topic_that_may_not_be_seen_does_not_end_the_upkeep_of_the_own_ones(shared: Resource) -> None:
    marking = Marking()
    upkeep = Upkeep(cast("Any", Appender()), shared.decisions, cast("Any", marking))

    upkeep.mark_again()

    assert [ended.nonce for ended in marking.submitted] == [OWN]

    decisions = shared.decisions()
    decisions.mark([capture_id(OWN), capture_id(FOREIGN)])
    upkeep.trim()

    assert list(decisions.read([capture_id(OWN), capture_id(FOREIGN)])) == [capture_id(FOREIGN)]
    decisions.close()

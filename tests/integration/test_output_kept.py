"""Whether an output keeps older values of a key is asked of the broker; who may not ask, or gets no answer, takes it that it does not."""

from __future__ import annotations

import pytest

from relay.config.timing import Timing
from relay.kafka.topics import Topics
from relay.message.errors import ConfigError
from relay.run.topic_watch import keeps_all, kept
from tests.conftest import MakeTopic


def test_only_a_topic_that_is_not_compacted_keeps_all(
    kafka: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_topic(1)
    compacted = [make_topic(1, {"cleanup.policy": policy}) for policy in ("compact", "compact,delete")]
    with Topics({"bootstrap.servers": kafka}, Timing()) as topics:
        assert keeps_all(topics, whole)
        assert [keeps_all(topics, name) for name in [*compacted, "nowhere"]] == [False] * 3

        def refused(*_: object) -> dict[str, dict[str, str]]:
            raise ConfigError("no right to read settings")

        monkeypatch.setattr(topics, "_settings", refused)
        assert not keeps_all(topics, whole)


def test_a_topic_that_is_compacted_keeps_older_values_for_its_lag(
    kafka: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, at_once = make_topic(1), make_topic(1, {"cleanup.policy": "compact"})
    later = make_topic(1, {"cleanup.policy": "compact,delete", "min.compaction.lag.ms": "60000"})
    with Topics({"bootstrap.servers": kafka}, Timing()) as topics:
        assert [kept(topics, name) for name in (whole, at_once, later, "nowhere")] == [{}, {at_once: 0.0}, {later: 60000.0}, {}]

        def refused(*_: object) -> dict[str, dict[str, str]]:
            raise ConfigError("no right to read settings")

        monkeypatch.setattr(topics, "_settings", refused)
        assert kept(topics, at_once) == {}, "taken as it was judged by whoever may see it"

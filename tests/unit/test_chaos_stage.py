"""The stage waits for news of its topics to reach every broker, and not for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from relay.chaos import stage
from relay.message.errors import ConfigError


def migrating(outcomes: Iterator[Exception | None]) -> Any:
    def migrate(_config: Any) -> None:
        if (outcome := next(outcomes)) is not None:
            raise outcome

    return migrate


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "NEWS_PAUSE_S", 0.0)


def test_a_broker_that_has_not_heard_of_a_topic_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = iter([ConfigError("it does not exist"), ConfigError("it does not exist"), None])
    monkeypatch.setattr(stage, "migrate", migrating(outcomes))

    stage._migrate(None)  # type: ignore[arg-type]

    assert list(outcomes) == []


def test_what_stays_wrong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "NEWS_S", 0.0)
    monkeypatch.setattr(stage, "migrate", migrating(iter([ConfigError("wrong")] * 1000)))

    with pytest.raises(ConfigError, match="wrong"):
        stage._migrate(None)  # type: ignore[arg-type]

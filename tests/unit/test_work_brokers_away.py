"""`relay work` says at once that no broker answers: its processes find out after half a minute only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from relay.message.errors import RelayError, Unreachable
from relay.setup import required

CONFIG: Any = SimpleNamespace(control_topic="shop.control", kafka={}, timing=None, path="relay.toml")


@pytest.mark.parametrize(("found", "words"), [(Unreachable("no broker answers"), "no broker answers"), ({}, "run `relay migrate relay.toml`")])
def test_brokers_that_are_away_or_have_no_control_topic_are_told_of_and_keep_nobody_from_starting(
    monkeypatch: pytest.MonkeyPatch, found: RelayError | dict[str, object], words: str
) -> None:
    class Asked:
        def __init__(self, *_: object) -> None:
            pass

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def describe(self, names: tuple[str, ...], **_: object) -> dict[str, object]:
            assert names == ("shop.control",)
            if isinstance(found, RelayError):
                raise found
            return found

    monkeypatch.setattr(required, "Topics", Asked)
    with capture_logs() as told:
        required.look_for_control(CONFIG)

    (said,) = told
    assert (said["log_level"], said["event"]) == ("warning", "control topic not seen")
    assert words in said["reason"]

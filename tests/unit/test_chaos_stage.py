"""The stage waits for news of its topics to reach every broker, and not for ever; what does not come up leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.chaos import stage
from relay.chaos.disks import Disk, Disks, mount
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


class Ends:
    """A disk, a proxy or services; a name in ``closed`` says that it was let go of."""

    closed: list[str]

    def __init__(self, name: str, failure: BaseException | None = None) -> None:
        self.name, self.failure, self.failures = name, failure, [ValueError("told elsewhere")]

    def close(self) -> None:
        assert not (self.name.startswith("proxy") and self.failures)
        self.closed.append(self.name)
        if self.failure is not None:
            raise self.failure

    down = close


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(Ends, "closed", found, raising=False)
    return found


def test_a_port_that_somebody_takes_in_between_leaves_no_disk_mounted(
    closed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxies: Iterator[Any] = iter([Ends("proxy-1"), OSError("Address already in use")])

    def proxy(*_: object) -> Any:
        if isinstance(made := next(proxies), OSError):
            raise made
        return made

    monkeypatch.setattr(stage, "mount", lambda *_: Disks({"state": Ends("disk")}, ""))  # type: ignore[dict-item]
    monkeypatch.setattr(stage, "FrameProxy", proxy)

    with pytest.raises(OSError, match="in use"):
        stage.build(tmp_path, 3, lambda _: None)

    assert closed == ["proxy-1", "disk"]


def test_interrupted_while_disks_are_mounted_none_stays(closed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks: Iterator[Any] = iter([Ends("disk"), SystemExit(143)])

    def mounted(*_: object) -> Any:
        if isinstance(made := next(disks), SystemExit):
            raise made
        return made

    monkeypatch.setattr(Disk, "mounted", mounted)

    with pytest.raises(SystemExit):
        mount(tmp_path, dict.fromkeys(("one", "two"), (tmp_path, 1)))

    assert closed == ["disk"]


def test_interrupted_again_while_it_ends_it_still_lets_go_of_the_rest(
    closed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.LocalServices, "find", lambda _: Ends("services", SystemExit(143)))
    proxies: Any = [Ends("proxy-1"), Ends("proxy-2", ConnectionError())]

    with pytest.raises(ConnectionError):
        stage.shut(tmp_path, proxies, Disks({"state": Ends("disk")}, ""))  # type: ignore[dict-item]

    assert sorted(closed) == ["disk", "proxy-1", "proxy-2", "services"]

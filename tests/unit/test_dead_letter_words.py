"""What `relay deadletter list` says to people: when a letter was written, how many there are of which cause, and that there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.cli import deadletter

ROW: dict[str, Any] = {
    "digest": "87f2", "route": "to-table", "code": "23502", "topic": "orders", "partition": 1, "offset": 0, "source": "/till",
    "message_id": "m-1", "last_failed_at": "2026-11-27T07:22:43.881+00:00",
}  # fmt: skip


def listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *rows: dict[str, Any]) -> str:
    monkeypatch.setattr(deadletter, "load", lambda _: None)
    monkeypatch.setattr(deadletter, "dead_letters", lambda *_, **__: (list(rows), True))
    deadletter.list_command(str(Path("relay.toml")))
    return capsys.readouterr().out


def test_letters_are_listed_with_their_time_and_counted_by_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = listed(monkeypatch, capsys, ROW, ROW, {**ROW, "code": "not_json"})

    assert "2026-11-27T07:22:43.881+00:00" in out
    assert out.endswith("\n3 dead letters: 23502 (2), not_json (1)\n")


def test_that_there_is_none_is_all_that_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(monkeypatch, capsys) == "no dead letter\n"

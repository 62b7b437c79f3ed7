"""A queue is paused or drained: whoever says the one of a queue of which the other was said is told what that lifts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from relay.cli import queue as command
from relay.cli.main import app
from relay.queue.desired import Desired, Kind, Subject, Wanted, Wish
from tests.contracts.queue_media import NOW
from tests.unit.test_queue_desk_names import CONFIG

Say = Callable[..., str]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    (tmp_path / "relay.toml").write_text(CONFIG)
    desired = Desired()

    @contextmanager
    def desk(config: object, who: str) -> Iterator[SimpleNamespace]:
        def wish(kind: Kind, queue: str, name: str, wanted: Wanted, reason: str) -> Wish:
            wish = Wish(Subject(kind, queue, name), wanted, who, reason, NOW)
            desired.add(*wish.encode())
            return wish

        yield SimpleNamespace(desired=desired, wish=wish, names=lambda queue: [queue])

    monkeypatch.setattr(command, "QueueDesk", desk)

    def said(word: str, *more: str) -> str:
        done = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["queue", word, str(tmp_path / "relay.toml"), "credit", *more])
        assert done.exit_code == 0, done.output
        return done.stdout

    return said


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (("drain", "pause"), "routes put into it again"),
        (("pause", "drain"), "subscribers take from it again"),
        (("pause", "pause"), None),
        (("drain", "drain"), None),
        (("drain", "resume"), None),
        (("drain", "resume", "pause"), None),
        (("pause",), None),
    ],
)
def test_what_the_last_word_lifts_is_said(say: Say, words: tuple[str, ...], note: str | None) -> None:
    said = [say(word) for word in words][-1]

    assert ("note:" in said) is (note is not None)
    assert note is None or note in said


def test_a_program_is_told_what_was_wanted_before(say: Say) -> None:
    assert json.loads(say("drain", "--json"))["before"] == "RUN"
    assert json.loads(say("pause", "--json"))["before"] == "DRAIN"

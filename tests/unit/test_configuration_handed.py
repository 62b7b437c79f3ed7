"""A process that is started again goes by the configuration that its command was started with, whatever the file says by then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relay.cli import run, work
from relay.cli.main import app
from relay.config.loading import load
from relay.message.errors import ConfigError
from relay.run import handed
from tests.unit.configurations import BASE, ROUTES

QUEUE = '[queues.credit]\nstore = "shop"\nsubscribers = { approval = {} }\n'
READS = """
import sys
from relay.{part} import process
options = process._options(sys.argv[1:])
print(process._config(options).routes["to-ledger"].to.topic)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "relay.toml").write_text(BASE + ROUTES + QUEUE)
    (tmp_path / "app.py").write_text('import relay\n\n\n@relay.subscriber("credit")\ndef approve(message): ...\n')
    return tmp_path / "relay.toml"


class Editing:
    """Starts each worker twice; somebody edits the file in between."""

    path: Path
    read: list[str]

    def __init__(self, routes: list[str], _workers: int, command: Any, **given: Any) -> None:
        self._words = command(routes[0], 0)
        self._fds = tuple(given.get("fds", ()))

    def run(self) -> int:
        part = self._words[2].split(".")[1]
        for _ in range(2):
            said = subprocess.run(
                [sys.executable, "-c", READS.format(part=part), *self._words[3:]],
                capture_output=True, pass_fds=self._fds, check=False, text=True,
            )  # fmt: skip
            Editing.read.append(said.stdout.strip() or said.stderr)
            Editing.path.write_text(BASE + ROUTES.replace("ledger", "another") + QUEUE)
        return 0


@pytest.mark.parametrize("words", [["run"], ["work", "app.py", "--queue", "credit", "--subscriber", "approval", "--config"]])
def test_an_edited_file_waits_for_the_next_start(words: list[str], path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one worker that fails takes up by itself what somebody is still writing, beside others that go on as before."""
    Editing.path, Editing.read = path, []
    monkeypatch.chdir(path.parent)
    for command in (run, work):
        monkeypatch.setattr(command, "Supervisor", Editing)
    monkeypatch.setattr(run, "require_at_start", lambda *_: None)
    monkeypatch.setattr(work, "look_for_control", lambda _: None)

    done = CliRunner().invoke(app, [*words, str(path)])

    assert done.exit_code == 0, done.output
    assert Editing.read == ["ledger", "ledger"]


def test_what_is_handed_over_is_read_by_each_and_the_file_by_none(path: Path) -> None:
    given = handed.Handed(path.read_text())
    path.unlink()

    for _ in range(2):
        assert load(path, handed.taken(os.dup(given.fd))).routes["to-ledger"].name == "to-ledger"


def test_a_number_that_nobody_handed_over_is_refused() -> None:
    with pytest.raises(ConfigError, match="file number 99999: no command has handed"):
        handed.taken(99999)

"""The command ``relay`` before its modules are loaded, which takes a while on a busy machine or a cold disk."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relay import __main__
from relay.cli.main import app

ROOT = Path(__main__.__file__).parents[1]


def test_ctrl_c_while_modules_are_loaded_ends_quietly_with_its_code(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])

    done = subprocess.run(
        [sys.executable, "-m", "relay", "--version"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_installed_command_is_the_one_that_expects_it() -> None:
    (script,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].items()

    assert EntryPoint(*script, group="console_scripts").load() is __main__.main


@pytest.mark.parametrize(
    ("words", "times"), [("check none.toml", 1), ("check none.toml --json", 0), ("run none.toml", 0), ("queue list none.toml", 1)]
)
def test_persons_alone_are_told_what_is_waited_for(monkeypatch: pytest.MonkeyPatch, words: str, times: int) -> None:
    told: list[str] = []
    monkeypatch.setattr("relay.cli.main.tell_of_waiting", lambda: told.append(words))

    assert CliRunner().invoke(app, words.split()).exit_code == 2
    assert len(told) == times


def test_a_present_directory_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "relay.toml").write_text("")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    ended = CliRunner().invoke(app, ["check", "../relay.toml"])

    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr == "relay check: the present directory is not there any more; go to one that is\n"

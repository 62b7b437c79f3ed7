"""Where the demonstrations put what they make: what cannot be used is said in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relay.cli.main import app
from relay.local.folders import empty_folder
from relay.message.errors import ConfigError, Unreachable


def test_a_named_folder_is_made_and_must_be_empty(tmp_path: Path) -> None:
    assert list(empty_folder(tmp_path / "a" / "b", "x-").iterdir()) == []
    assert empty_folder(None, "x-").name.startswith("x-")
    with pytest.raises(ConfigError, match="not an empty directory"):
        empty_folder(tmp_path, "x-")


@pytest.mark.parametrize("words", [["demo"], ["chaos", "--demo"]])
def test_one_that_cannot_be_made_is_named(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result = CliRunner().invoke(app, [*words, "--dir", str(tmp_path / "file" / "new")])

    assert result.exit_code == 2
    assert "file/new cannot be used (Not a directory); name a directory that you may write" in " ".join(result.stderr.split())


def test_a_pipelines_folder_that_cannot_be_used_is_named_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    job = Path(__file__).parents[2] / "spark" / "pipeline.py"
    environment = {**os.environ, "PYTHONPATH": str(job.parents[1])}

    for folder, said in ((tmp_path / "file", "not an empty directory"), (tmp_path / "file" / "new", "cannot be used (Not a directory)")):
        words = [sys.executable, str(job), "--work", str(folder)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert f"--work {folder}" in done.stderr
        assert said in done.stderr


def test_without_any_temporary_directory_it_says_which_setting_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose file system only reads."""

    def refused(**_: str) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    for words in (["demo"], ["demo", "credit"], ["chaos", "--demo"], ["bench", "topic"]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2
        assert "set TMPDIR to one that you may write" in " ".join(result.stderr.split())


def test_a_limit_of_the_machine_is_no_fault_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_path: Path, **_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(Unreachable, match="at one of its limits"):
        empty_folder(tmp_path / "new", "x-")

"""A program that prepares a local service, and does not end in its time, is named in a sentence and stops no later start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relay.cli.main import app
from relay.local import kafka, postgres
from relay.local.account import Account
from relay.local.java import Java
from relay.local.kafka import KafkaCluster


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return script


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[int, str]]:
    """``relay dev up`` with programs that take a minute."""
    slow = program(tmp_path / "bin", "java", "exec sleep 60")
    program(tmp_path / "bin", "initdb", 'touch "$2/PG_VERSION"; exec sleep 60')
    monkeypatch.setattr(kafka, "find_java", lambda: Java(slow, 17))
    monkeypatch.setattr(kafka, "kafka_jars", lambda *_: [])
    monkeypatch.setattr(kafka, "FORMAT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(postgres, "_programs", lambda: tmp_path / "bin")
    monkeypatch.setattr(postgres, "INITDB_TIMEOUT_S", 0.3)
    monkeypatch.setattr(Account, "for_servers", classmethod(lambda cls: cls(None, None)))

    def _start() -> tuple[int, str]:
        result = CliRunner().invoke(app, ["dev", "up", "--dir", str(tmp_path / "services")])
        return result.exit_code, result.stderr

    return _start


def test_a_format_that_does_not_end_is_told_in_a_sentence(tmp_path: Path, start: Callable[[], tuple[int, str]]) -> None:
    code, said = start()

    assert code == 3
    assert said.startswith(f"relay dev: Formatting {tmp_path / 'services'}/kafka/1/data did not end in 0.3 s: ")


def test_an_initdb_that_does_not_end_is_told_in_a_sentence_and_leaves_nothing_behind(
    start: Callable[[], tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaCluster, "launch", lambda *_: None)

    answers = [start(), start()]

    for code, said in answers:
        assert code == 3
        assert "/postgres/data did not end in 0.3 s: " in said, "the second start is not asked to delete what the first left"

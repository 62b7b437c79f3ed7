"""A program that prepares a local service, and does not end in its time, is named in a sentence and stops no later start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from relay.cli.main import app
from relay.local import kafka, postgres
from relay.local.account import Account
from relay.local.java import Java
from relay.local.kafka import KafkaCluster
from relay.local.postgres import PostgresServer
from relay.message.errors import Unreachable


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
    monkeypatch.setattr(KafkaCluster, "launch", lambda *_: [])

    answers = [start(), start()]

    for code, said in answers:
        assert code == 3
        assert "/postgres/data did not end in 0.3 s: " in said, "the second start is not asked to delete what the first left"


class TestRecovery:
    """A server that was killed has its log to go through, which takes long on a busy machine."""

    @pytest.fixture
    def server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PostgresServer:
        """A server whose process lives; the time goes on as it is waited for."""
        (tmp_path / "access.json").write_text("{}")
        now = [0.0]
        time = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _s: now.__setitem__(0, now[0] + 1.0))
        monkeypatch.setattr(postgres, "clock", time)
        monkeypatch.setattr(postgres, "_programs", lambda: tmp_path)
        monkeypatch.setattr(Account, "for_servers", classmethod(lambda cls: cls(None, None)))
        monkeypatch.setattr(PostgresServer, "process", lambda _: object())
        monkeypatch.setattr(PostgresServer, "_silence", lambda _: self.says(now[0]))
        return PostgresServer(tmp_path)

    def says(self, now: float) -> str | None:
        if now > self.recovers_s:
            return self.then
        return "FATAL:  the database system is not yet accepting connections\nDETAIL:  Consistent recovery state has not been yet reached."

    recovers_s = 0.0
    then: str | None = None

    def test_a_server_that_says_that_it_recovers_is_waited_for(self, server: PostgresServer) -> None:
        self.recovers_s = 290.0

        server.start()

    def test_but_not_for_ever(self, server: PostgresServer) -> None:
        self.recovers_s = 1000.0

        with pytest.raises(Unreachable, match=r"did not answer in 300 s .DETAIL:  Consistent recovery state has not been yet reached"):
            server.start()

    def test_one_that_says_nothing_is_given_up_soon(self, server: PostgresServer) -> None:
        self.then = "connection refused"

        with pytest.raises(Unreachable, match=r"did not answer in 30 s .connection refused"):
            server.start()

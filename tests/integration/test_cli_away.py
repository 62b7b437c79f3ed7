"""Commands say within seconds, in one sentence, that no broker answers or that nothing was migrated yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Services

CONFIG = """\
[relay]
name = "unmade"
instance = "one"
state = "state"

[kafka]
"bootstrap.servers" = "{kafka}"

[resources.shop]
url = "postgresql://clerk:{password}@127.0.0.1:1/shop"

[routes.to-credit]
from = ["orders"]
to = {{ queue = "credit" }}

[queues.credit]
store = "sqlite:///credit.db"
subscribers = {{ approval = {{}} }}
"""
QUEUES = ("queue", "list", "relay.toml")
UNIT = ("unit", "close", "relay.toml", "u", "r", "--reason", "gone")
COMMANDS = (
    ("status", "relay.toml"),
    QUEUES,
    ("publisher", "list", "relay.toml", "--json"),
    ("deadletter", "list", "relay.toml"),
    UNIT,
)
"""Each way of asking the brokers once: all commands about queues go through one desk."""
CANARY = "CANARY-7f3a"


def said(place: Path, kafka: str, commands: tuple[tuple[str, ...], ...]) -> dict[str, tuple[int, str, str]]:
    """Run all of the commands at the same time; return how each ended and what it said."""
    (place / "relay.toml").write_text(CONFIG.format(kafka=kafka, password=CANARY))
    env = {**os.environ, "COLUMNS": "300"}
    running = {
        " ".join(words): subprocess.Popen(
            [sys.executable, "-m", "relay.cli.main", *words],
            cwd=place, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for words in commands
    }  # fmt: skip
    ended = {}
    for words, process in running.items():
        out, error = process.communicate(timeout=150)
        ended[words] = (process.returncode, out, error)
    return ended


def assert_one_sentence(words: str, out: str, error: str) -> None:
    assert out == "", f"relay {words}"
    assert len(error.splitlines()) == 1, f"relay {words}: {error}"
    assert CANARY not in error


@pytest.mark.slow
def test_where_no_broker_answers_every_command_says_so_and_ends(tmp_path: Path) -> None:
    for words, (code, out, error) in said(tmp_path, "127.0.0.1:1", COMMANDS).items():
        assert (code, "no broker answers" in error) == (3, True), f"relay {words}: {error}"
        assert_one_sentence(words, out, error)


def test_before_the_first_migrate_a_command_says_that_it_is_missing(services: Services, tmp_path: Path) -> None:
    for words, (code, out, error) in said(tmp_path, services.kafka, (QUEUES, UNIT)).items():
        assert (code, "run `relay migrate" in error) == (2, True), f"relay {words}: {error}"
        assert_one_sentence(words, out, error)

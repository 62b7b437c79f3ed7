"""`relay deadletter list` on a dead-letter topic that has seen much, and that strangers have written to."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from relay.cli.main import app
from relay.control import dead_letters
from tests.cluster_changes import make_topics

MANY = 100_001


class Letters:
    """A relay's dead-letter topic of one partition, with records written by hand."""

    def __init__(self, folder: Path, kafka: str) -> None:
        self.name = f"d{secrets.token_hex(4)}"
        self.topic = f"{self.name}.deadletter"
        self.path = folder / "relay.toml"
        self.path.write_text(
            f'[relay]\nname = "{self.name}"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "{kafka}"\n'
            '[routes.main]\nfrom = ["orders"]\nto = { topic = "ledger" }\n'
        )
        self.producer = Producer({"bootstrap.servers": kafka, "queue.buffering.max.messages": 2 * MANY})

    def write(self, number: int, code: str, **more: str) -> None:
        facts = {"route": "main", "code": code, "topic": "orders", "partition": "0", "offset": str(number), **more}
        headers = [(f"__relay.errors.{name}", fact.encode()) for name, fact in facts.items()]
        self.producer.produce(self.topic, b"v", number.to_bytes(16, "big").hex(), headers=headers)

    def listed(self, *words: str) -> list[dict[str, Any]]:
        assert self.producer.flush(60) == 0
        result = CliRunner().invoke(app, ["deadletter", "list", str(self.path), "--json", *words])
        assert result.exit_code == 0, result.output or repr(result.exception)
        found: list[dict[str, Any]] = json.loads(result.stdout)["dead_letters"]
        return found


@pytest.fixture
def letters(tmp_path: Path, kafka: str, kafka_admin: AdminClient) -> Iterator[Letters]:
    made = Letters(tmp_path, kafka)
    make_topics(kafka_admin, NewTopic(made.topic, 1))
    yield made
    kafka_admin.delete_topics([made.topic])[made.topic].result(30)


@pytest.mark.slow
def test_a_letter_is_listed_however_many_were_taken_back_after_it(letters: Letters) -> None:
    letters.write(0, "json")
    for number in range(1, MANY):
        letters.write(number, "redriven", replay_count="1")

    assert [one["offset"] for one in letters.listed()] == [0]


def test_a_letter_says_when_it_was_written(letters: Letters) -> None:
    before = datetime.now(UTC)
    letters.write(1, "json")

    (letter,) = letters.listed()

    assert before - timedelta(seconds=1) < datetime.fromisoformat(letter["last_failed_at"]) < before + timedelta(minutes=1)


def test_a_slip_in_a_routes_name_is_told_before_anything_is_redriven(letters: Letters) -> None:
    letters.write(1, "json")
    assert len(letters.listed()) == 1

    result = CliRunner().invoke(app, ["deadletter", "redrive", str(letters.path), "--route", "mian"])

    assert result.exit_code == 2
    assert "--route mian: there is no such route; there are: main" in result.stderr


def test_a_record_whose_numbers_are_none_hides_nothing(letters: Letters) -> None:
    letters.write(1, "json")
    letters.write(2, "forged", partition="²", offset="9" * 400, replay_count="٣")

    assert {(one["code"], one["partition"], one["offset"], one["replay_count"]) for one in letters.listed()} == {
        ("json", 0, 1, 0), ("forged", 0, 0, 0),
    }  # fmt: skip


def test_a_redrive_takes_back_what_died_before_it_only(letters: Letters) -> None:
    letters.write(1, "json")
    letters.write(1, "redriven", replay_count="1")
    letters.write(2, "json", replay_count="1")
    letters.write(2, "redriven", replay_count="1")  # and the destination was restored: it died in that redrive again

    assert [one["offset"] for one in letters.listed()] == [2]


def test_a_letter_keeps_its_cause_when_a_recovery_repeats_it_without(letters: Letters) -> None:
    letters.write(1, "22P02")
    letters.write(1, "cause_lost")
    letters.write(1, "payload_lost")
    letters.write(2, "cause_lost")  # the repeat's partition may be read first
    letters.write(2, "22P02")
    letters.write(3, "payload_lost")
    letters.write(3, "cause_lost")
    letters.write(4, "22P02")
    letters.write(4, "cause_lost", replay_count="1")  # of a redrive: why it died before says nothing

    assert [one["code"] for one in letters.listed()] == ["22P02", "22P02", "cause_lost", "cause_lost"]
    assert len(letters.listed("--code", "22P02")) == 2


def test_more_letters_than_are_kept_come_when_those_before_them_are_redriven(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_MAX", 2)
    for number in (1, 2, 3):
        letters.write(number, "json")
    assert [one["offset"] for one in letters.listed()] == [1, 2]
    assert "there are more" in CliRunner().invoke(app, ["deadletter", "list", str(letters.path)]).stdout

    letters.write(1, "redriven", replay_count="1")
    letters.write(2, "redriven", replay_count="1")

    assert [one["offset"] for one in letters.listed()] == [3]

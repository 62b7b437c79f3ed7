"""A token in a file: how long a client goes by it, and what it does when nobody renews it."""

from __future__ import annotations

import base64
import json
import logging
import time
from pathlib import Path

import pytest

from relay.kafka import bearer
from relay.kafka.bearer import Bearer
from relay.kafka.clients import Producer
from relay.message.errors import Unreachable

NOW_S = 1_700_000_000.0


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bearer.clock, "wall_ms", lambda: round(NOW_S * 1000))


def jwt(claims: object) -> str:
    parts = ({"alg": "none"}, claims)
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts), "sig"])


@pytest.mark.parametrize(
    ("token", "life_s"),
    [
        (jwt({"exp": NOW_S + 60}), 60.0),
        (jwt({"exp": int(NOW_S) + 3600}), 300.0),
        (jwt({"exp": NOW_S - 60}), 10.0),
        (jwt({"sub": "ann"}), 300.0),
        (jwt([1]), 300.0),
        (jwt({"exp": "tomorrow"}), 300.0),
        ("opaque-token~1=", 300.0),
        ("a.!.c".replace("!", "_"), 300.0),
    ],
)
def test_a_client_reads_again_before_the_token_ends(tmp_path: Path, token: str, life_s: float) -> None:
    (tmp_path / "token").write_text(token + "\n")

    assert Bearer(tmp_path / "token")("") == (token, NOW_S + life_s)


def test_what_was_written_since_is_read(tmp_path: Path) -> None:
    place = tmp_path / "token"
    place.write_text("one")
    tokens = Bearer(place)
    place.write_text("two")

    assert tokens("")[0] == "two"


@pytest.mark.parametrize("left", [None, "", "two words", "tök", "x" * (64 * 1024 + 1)], ids=["gone", "empty", "words", "ä", "long"])
def test_a_file_without_a_token_is_said_at_once_and_later_leaves_the_old_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, left: str | None
) -> None:
    place = tmp_path / "token"
    place.write_text("one")
    tokens = Bearer(place)
    place.unlink() if left is None else place.write_text(left)

    with pytest.raises(Unreachable, match="token_file") as failure:
        Bearer(place)
    with caplog.at_level(logging.WARNING):
        assert [tokens("") for _ in range(3)] == [("one", NOW_S + 10)] * 3
    assert caplog.messages == [str(failure.value)]
    assert "two words" not in str(failure.value)


def test_a_token_that_ended_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "token"
    place.write_text(jwt({"exp": NOW_S - 7}))

    Bearer(place)("")

    assert [message.split(": ", 1)[1] for message in caplog.messages] == ["its token ended 7 s ago; see to what renews it"]


def test_a_client_that_does_not_ask_in_time_is_overdue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes by the wall clock: put back by an hour, that has it keep for an hour a token that ends in minutes."""
    now = [100.0]
    monkeypatch.setattr(bearer.clock, "monotonic", lambda: now[0])
    (tmp_path / "token").write_text(jwt({"exp": NOW_S + 60}))
    tokens = Bearer(tmp_path / "token")
    found = [tokens.is_overdue]
    tokens("")
    for passed_s in (60, 31):
        now[0] += passed_s
        found.append(tokens.is_overdue)
    monkeypatch.setattr(bearer.clock, "wall_ms", lambda: round(NOW_S * 1000) - 3_600_000)
    tokens("")
    found.append(tokens.is_overdue)

    assert found == [False, False, True, False]


def test_a_client_knows_by_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bearer.clock, "wall_ms", lambda: time.time_ns() // 1_000_000)
    (tmp_path / "token").write_text("opaque")
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
                         "oauth_cb": (tokens := Bearer(tmp_path / "token")), "log_level": 0})  # fmt: skip
    found = [producer.is_overdue]
    monkeypatch.setattr(Bearer, "is_overdue", property(lambda one: one is tokens))

    assert [*found, producer.is_overdue] == [False, True]

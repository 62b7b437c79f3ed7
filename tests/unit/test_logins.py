"""Whoever is refused with a name and a password from files goes on with what these say by then, and says which files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.kafka import clients, logins, settings
from relay.kafka.appender import Appender
from relay.kafka.clients import Consumer, Producer
from relay.kafka.logins import Credentials, login_of, refusal_of
from relay.message.errors import ConfigError
from relay.world import clock

REFUSED = KafkaError(KafkaError._AUTHENTICATION, "invalid credentials")
TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT)
CONFIG = """
[relay]
name = "shop"
instance = "test"
[kafka]
"bootstrap.servers" = "127.0.0.1:9"
"security.protocol" = "sasl_plaintext"
"sasl.mechanism" = "SCRAM-SHA-512"
"sasl.username" = "ann"
"sasl.password" = "{password}"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    written = tmp_path / "password"
    written.write_text("canary-one\n")
    return written


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: at[0])
    return at


def loaded(folder: Path, password: str = "${file:password}") -> RelayConfig:
    path = folder / "relay.toml"
    path.write_text(CONFIG.format(password=password))
    return load(path)


def test_the_file_is_read_once_a_second_at_most_and_what_it_said_holds_while_it_cannot_be_read(
    file: Path, tmp_path: Path, now: list[float]
) -> None:
    login = login_of(loaded(tmp_path).kafka)
    assert login is not None
    assert login.look() == Credentials("ann", "canary-one")
    file.write_text("canary-two")
    assert login.look().password == "canary-one"
    now[0] += logins.LOOK_S
    assert login.look().password == "canary-two"
    file.unlink()
    now[0] += logins.LOOK_S
    assert login.look().password == "canary-two"
    assert login.where == f"kafka.sasl.password from {file} (the file cannot be read (No such file or directory))"
    assert "canary" not in f"{login.where} {login.in_force}"


def test_nothing_is_followed_that_lies_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "canary-of-env")
    kafka = loaded(tmp_path, "${env:KAFKA_PASSWORD}").kafka
    assert login_of(kafka) is None
    assert refusal_of(kafka) == "the brokers refuse the name and the password"


def test_who_shows_a_token_is_not_told_of_a_password(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("opaque")
    kafka = {"bootstrap.servers": "127.0.0.1:1", "sasl.mechanism": "OAUTHBEARER", "token_file": f"{tmp_path}/token"}
    for given in (kafka, settings.consumer(kafka, settings.DefaultTiming(), "g")):
        assert refusal_of(given) == "the brokers refuse the token of kafka.token_file"


@pytest.mark.parametrize(
    ("make", "serve", "base"),
    [
        (lambda kafka, config: Consumer(settings.consumer(kafka, config.timing, "g", log_level=0)), lambda one: one.consume(1, 0), clients.Consumer),
        (lambda kafka, config: Producer(settings.producer(kafka, config.timing, log_level=0)), lambda one: one.poll(0), clients.Producer),
    ],
    ids=["consumer", "producer"],
)
def test_a_refused_client_shows_what_the_file_says_by_then(
    make: Callable[..., Any], serve: Callable[..., object], base: Any, file: Path, tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, str]] = []
    monkeypatch.setattr(base, "set_sasl_credentials", lambda _self, *given: shown.append(given), raising=False)
    config = loaded(tmp_path)
    client = make(config.kafka, config)
    file.write_text("canary-two")
    serve(client)
    assert shown == [], "nobody refused it"
    client._shown._noticed(REFUSED)
    assert shown == [], "not inside the callback, where the client ends the process"
    serve(client)
    assert shown == [("ann", "canary-two")]
    client._shown._noticed(REFUSED)
    serve(client)
    file.write_text("canary-three")
    now[0] += logins.LOOK_S
    serve(client)
    assert shown[1:] == [("ann", "canary-three")], "what was refused is looked at again without another refusal"
    now[0] += clients.REFUSED_S
    assert make(config.kafka, config)._shown.settings()["sasl.password"] == "canary-three", "a new one begins with it"


def test_a_publisher_says_by_which_key_and_file_it_is_refused(file: Path, tmp_path: Path, now: list[float]) -> None:
    config = loaded(tmp_path)
    appender = Appender(config.kafka, config.timing)
    assert appender.silence() == "no delivery report came"
    assert appender.reason(TIMED_OUT, "; again") == "Local: Message timed out; again"
    appender._noticed(REFUSED)
    said = f"the brokers refuse the name and the password of kafka.sasl.password from {file}"
    assert appender.silence() == said
    assert appender.reason(TIMED_OUT, "; again") == f"{said}; again"
    now[0] += 60
    assert appender.silence() == "no delivery report came"
    appender.close()


def test_a_file_that_holds_no_text_is_said(file: Path, tmp_path: Path) -> None:
    login = login_of(loaded(tmp_path).kafka)
    assert login is not None
    file.write_bytes(b"a\0b")
    with pytest.raises(ConfigError, match="NUL"):
        login._again()

"""Clients that Kafka's library does not make: of whom that is, and whether it passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, admin
from typer.testing import CliRunner

from relay.cli.main import app
from relay.config.model import Timing
from relay.kafka.clients import AdminClient, Consumer, Producer
from relay.kafka.topics import Topics
from relay.message.errors import ConfigError, Unreachable
from tests.integration.tls_site import Authority

OVER_TLS = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl", "group.id": "shop", "log_level": 0}
ROUTES = """
[relay]
name = "shop"
instance = "one"
state = "state"

[kafka]
"bootstrap.servers" = "127.0.0.1:1"
"security.protocol" = "SSL"
"ssl.key.location" = "key"

[routes.to-ledger]
from = ["orders"]
to = { topic = "ledger" }
"""


@pytest.mark.parametrize("client", [AdminClient, Consumer, Producer])
def test_a_key_that_is_none_is_the_configurations_and_one_that_was_right_before_passes(
    client: Callable[[Mapping[str, Any]], Any], tmp_path: Path
) -> None:
    """An authority may write the certificate and the key anew just now."""
    key = tmp_path / "key"
    pair = Authority("shop", tmp_path).issue("shop")
    settings = {**OVER_TLS, "ssl.certificate.pem": pair.certificate.decode(), "ssl.key.location": str(key)}
    if client is not Consumer:
        del settings["group.id"]
    key.write_text("no key")
    with pytest.raises(ConfigError, match=r"\[kafka\]: .*ssl\.key\.location failed.*correct the setting, its file, or the password"):
        client(settings)
    key.write_bytes(pair.key)
    client(settings)
    key.write_text("half of a k")

    with pytest.raises(Unreachable, match=r"ssl\.key\.location failed"):
        client(settings)


def test_a_setting_that_one_kind_of_client_refuses_is_the_configurations_whatever_others_took() -> None:
    """Whoever waited for it would wait for ever."""
    given = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "fetch.max.bytes": 1000, "message.max.bytes": 2000}
    AdminClient(given)

    with pytest.raises(ConfigError, match=r"\[kafka\]: .*fetch\.max\.bytes.*; correct the setting$"):
        Consumer({**given, "group.id": "shop"})


def test_a_process_without_threads_has_no_wrong_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that was told so stopped for good."""

    def at_the_limit(*_: object, **_settings: object) -> None:
        raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "Failed to create thread"))

    monkeypatch.setattr(admin.AdminClient, "__init__", at_the_limit)

    with pytest.raises(KafkaException, match="Failed to create thread"):
        Topics({"bootstrap.servers": "127.0.0.1:1"}, Timing())


def test_a_command_that_only_reads_says_what_is_wrong_with_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relay.toml").write_text(ROUTES)
    (tmp_path / "key").write_text("no key")

    done = CliRunner().invoke(app, ["indoubt", "list", "relay.toml"])

    assert (done.exit_code, done.exception.__class__) == (2, SystemExit), done.output
    assert "ssl.key.location failed" in done.output

"""`relay serve` looks with the secrets that files hold when it looks anew: the brokers' password may have changed since it began."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import relay.cli.serve
from relay.cli.main import app
from relay.config.model import RelayConfig


class Watching:
    """Looks with the first password, then, when that was changed, anew."""

    def __init__(self, open_eyes: Callable[[], RelayConfig], secret: Path, config: Path) -> None:
        self.passwords = [open_eyes().kafka["sasl.password"]]
        secret.write_text("two\n")
        config.unlink()  # what it said when the command was started is what holds
        self.passwords.append(open_eyes().kafka["sasl.password"])

    def close(self) -> None:
        pass


def test_a_look_after_one_that_failed_has_the_password_of_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, secret, watching = tmp_path / "relay.toml", tmp_path / "secret", list[Watching]()
    secret.write_text("one\n")
    secret.chmod(0o600)
    config.write_text(
        '[relay]\nname = "shop"\ninstance = "a"\nallow_plaintext = true\n[kafka]\n"bootstrap.servers" = "127.0.0.1:9"\n'
        '"security.protocol" = "sasl_plaintext"\n"sasl.mechanism" = "PLAIN"\n"sasl.username" = "u"\n"sasl.password" = "${file:secret}"\n'
    )

    def watch(open_eyes: Callable[[], RelayConfig]) -> Watching:
        watching.append(Watching(open_eyes, secret, config))
        return watching[0]

    monkeypatch.setattr(relay.cli.serve, "RelayEyes", lambda found: found)
    monkeypatch.setattr(relay.cli.serve, "Watching", watch)
    monkeypatch.setattr(relay.cli.serve, "serve", lambda *_: None)
    monkeypatch.setattr(relay.cli.serve, "setup", lambda **_: None)
    monkeypatch.setattr(relay.cli.serve.signal, "signal", lambda *_: None)

    result = CliRunner().invoke(app, ["serve", str(config), "--port", "0"])

    assert result.exit_code == 0, result.output
    assert watching[0].passwords == ["one", "two"]

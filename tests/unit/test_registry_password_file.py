"""A registry's password that changes in its file is read again at a refusal, and stops nobody for a person."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relay.config.loading import load
from relay.kafka import logins
from relay.kafka.registry import Registry
from relay.message.errors import Unreachable
from relay.world import clock
from tests.registry_server import RegistryServer

CONFIG = """
[relay]
name = "shop"
instance = "test"
[kafka]
"bootstrap.servers" = "127.0.0.1:9"
[registry]
url = "{url}"
user = "bob"
password = "${{file:registry}}"
"""


def test_a_registry_that_refuses_a_password_is_asked_again_with_what_its_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    server = RegistryServer()
    server.start()
    (tmp_path / "registry").write_text("canary-one")
    path = tmp_path / "relay.toml"
    path.write_text(CONFIG.format(url=server.url))
    config = load(path)
    assert config.registry is not None
    registry = Registry(config.registry)
    try:
        server.user = ("bob", "canary-one")
        registry.check()
        server.user = ("bob", "canary-two")
        said = f"refuses registry.password from {tmp_path / 'registry'}"
        with pytest.raises(Unreachable, match=re.escape(said)) as caught:
            registry.check()
        assert "canary" not in str(caught.value)
        (tmp_path / "registry").write_text("canary-two")
        now[0] += logins.LOOK_S
        registry.check()
        beginning = Registry(config.registry)
        beginning.check()
        beginning.close()
    finally:
        registry.close()
        server.stop()

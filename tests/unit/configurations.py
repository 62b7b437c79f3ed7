"""A small configuration that is right, and what reading its text finds."""

from __future__ import annotations

import tomllib
from pathlib import Path

from relay.config.faults import Fault
from relay.config.model import RelayConfig
from relay.config.reading import read

BASE = """
[relay]
name = "shop"
instance = "a"

[kafka]
"bootstrap.servers" = "127.0.0.1:9092"

[resources.shop]
url = "sqlite:///shop.db"
"""

ROUTES = """
[routes.to-ledger]
from = ["orders"]
to = { topic = "ledger" }

[routes.to-table]
from = ["orders"]
to = { table = "ledger", resource = "shop", mode = "insert", columns = { id = "ce:id", total = "json:/total" } }
"""


def faults_of(text: str, tmp_path: Path, **env: str) -> list[Fault]:
    _, faults = read(tomllib.loads(text), tmp_path / "relay.toml", env)
    return faults


def good(text: str, tmp_path: Path, **env: str) -> RelayConfig:
    config, faults = read(tomllib.loads(text), tmp_path / "relay.toml", env)
    assert faults == []
    assert config is not None
    return config


def route_with(lines: str, to: str = '{ topic = "ledger" }') -> str:
    return f'{BASE}\n[routes.r]\nfrom = ["orders"]\nto = {to}\n{lines}\n'


def table_with(words: str) -> str:
    return route_with("", f'{{ table = "ledger", resource = "shop", columns = {{ id = "ce:id" }}, {words} }}')

"""From a file to a configuration, or to every fault of it at once."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from relay.config.faults import Fault, raise_if_any
from relay.config.followed import follow_logins
from relay.config.model import RelayConfig
from relay.config.reading import read
from relay.message.errors import ConfigError, RelayError
from relay.message.limits import raise_limit

_FILE: Final = "${file:"


def load(path: Path, text: str | None = None) -> RelayConfig:
    """Read a configuration file; ConfigError names every fault, or why the file cannot be read.

    ``text`` is what the file said when somebody else read it. Who is refused by a database, a broker or a registry goes on with what
    the files of its secrets say then (`relay.resources.addresses`, `relay.kafka.logins`).
    """
    said = text_of(path) if text is None else text
    config, faults = examine(path, text=said)
    raise_if_any(faults, str(path))
    assert config is not None, "no fault, no configuration"
    if _FILE in said:
        _follow_addresses(config, said)
        follow_logins(config, said)
    return config


def _follow_addresses(config: RelayConfig, text: str) -> None:
    for name, resource in config.resources.items():
        if resource.kind == "postgresql":
            from relay.resources import addresses  # noqa: PLC0415 - load the driver in use only

            addresses.follow(resource.url.get_secret_value(), partial(_address_now, config.path.absolute(), text, name))


def _address_now(path: Path, text: str, resource: str) -> str | None:
    """Return a database's address with the secrets that its files hold now; None while one of them cannot be read."""
    try:
        config, _ = examine(path, text=text)
    except RelayError:
        return None
    return None if config is None else config.resources[resource].url.get_secret_value()


def text_of(path: Path) -> str:
    """Read a configuration file's text; ConfigError says why it cannot be read."""
    remedy = "give the path of a configuration, such as relay.toml"
    try:
        return path.read_text("utf-8-sig")  # some editors begin a file with a byte order mark, which TOML has no word for
    except OSError as error:
        raise_limit(error)
        raise ConfigError(f"{path}: the file cannot be read ({error.strerror}); {remedy}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: the file is not TOML: not UTF-8; correct it there") from None
    except ValueError:
        # The system takes no NUL in a path.
        raise ConfigError(f"{str(path)!r}: not a path; {remedy}") from None


def examine(
    path: Path, env: Mapping[str, str] | None = None, text: str | None = None
) -> tuple[RelayConfig | None, list[Fault]]:
    """Return the configuration, or every fault of it; ConfigError only if the file cannot be read as TOML."""
    try:
        return read(_document(path, text), path, os.environ if env is None else env)
    except RecursionError:
        raise ConfigError(f"{path}: something in it is nested hundreds deep, and no key is; correct it there") from None


def _document(path: Path, text: str | None) -> dict[str, Any]:
    try:
        return tomllib.loads(text_of(path) if text is None else text)
    except ValueError as reason:  # also a number of more digits than Python reads
        raise ConfigError(f"{path}: the file is not TOML: {reason}; correct it there") from None

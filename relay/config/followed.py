"""Which names and passwords of a configuration lie in files, and how these are read again while processes go on."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from relay.config.model import RelayConfig
from relay.config.reading import flat
from relay.config.substitution import Substitution, files_of
from relay.kafka import logins
from relay.kafka.logins import Credentials
from relay.message.errors import ConfigError

_KAFKA: Final = ("kafka.sasl.username", "kafka.sasl.password")
_REGISTRY: Final = ("registry.user", "registry.password")


def follow_logins(config: RelayConfig, text: str) -> None:
    """Let whoever is refused by the brokers, or by the registry, find what the files say by then; ``text`` has the references."""
    document = tomllib.loads(text)
    folder = config.path.absolute().parent
    place = config.kafka["bootstrap.servers"]
    _follow(place, [config.kafka.get(key.removeprefix("kafka.")) for key in _KAFKA], _references(document, "kafka", _KAFKA), folder)
    registry = config.registry
    if registry is not None and registry.password is not None:
        shown = [registry.user, registry.password.get_secret_value()]
        _follow(registry.url, shown, _references(document, "registry", _REGISTRY), folder)


def _references(document: Mapping[str, object], section: str, keys: tuple[str, str]) -> dict[str, str]:
    """Return what stands in the file for these keys, with its references."""
    given = flat({section: document.get(section, {})})
    return {key: given[key] for key in keys if key in given}


def _follow(place: str, shown: list[str | None], references: Mapping[str, str], folder: Path) -> None:
    files = [f"{key} from {folder / name}" for key, text in references.items() for name in files_of(text)]
    user, password = shown
    if files and user is not None and password is not None:
        logins.follow(place, Credentials(user, password), partial(_read, references, folder), " and ".join(files))


def _read(references: Mapping[str, str], folder: Path) -> Credentials:
    substitution = Substitution(os.environ, folder)
    user, password = (substitution.resolve(text, key) for key, text in references.items())
    for fault in substitution.faults:
        raise ConfigError(fault.problem)
    return Credentials(user, password)

"""A fault of the configuration names its key, its value and its remedy, and never shows a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from relay.message.errors import ConfigError

HIDDEN: Final = "(hidden)"
_SECRET_KEY: Final = re.compile(
    r"(^|[._])(url|migrate_url|password|secret|pem|token)$|client\.secret|key\.pem"
)
_URL_USER: Final = re.compile(r"(://)\S*@")
"""Up to the last @: a password may hold a slash or another @ that should have been escaped."""
_VALUE_CHARACTERS: Final = 100


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong: ``key = value: problem; remedy``. ``value`` is shown already redacted."""

    key: str
    value: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        shown = f"{self.key} = {self.value}" if self.value else self.key
        return f"{shown}: {self.problem}; {self.remedy}"


class Wrong(ValueError):
    """What a field's rule raises; the key and the value are added where the fault is collected."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


def shown(key: str, value: Any) -> str:
    """Return the value as a fault may show it: cut, on one line, and hidden if the key holds secrets."""
    if value is None:
        return ""
    if _SECRET_KEY.search(key):
        return HIDDEN
    if isinstance(value, dict):
        return "{" + ", ".join(str(name) for name in value) + "}"
    text = _URL_USER.sub(r"\1" + HIDDEN + "@", repr(value))
    return text if len(text) <= _VALUE_CHARACTERS else text[:_VALUE_CHARACTERS] + "..."


def raise_if_any(faults: Iterable[Fault], where: str) -> None:
    """Raise ConfigError listing every fault, one a line."""
    lines = [str(fault) for fault in faults]
    if lines:
        count = f"{len(lines)} fault" + ("s" if len(lines) > 1 else "")
        raise ConfigError("\n  ".join([f"{where}: {count}", *lines]))

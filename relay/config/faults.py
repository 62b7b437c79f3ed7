"""A fault of the configuration names its key, its value and its remedy, and never shows a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from relay.message.errors import ConfigError

HIDDEN: Final = "(hidden)"
_SECRET_KEY: Final = re.compile(
    r"(^|[._])(url|migrate_url|user|username|password|secret|pem|token)$|client\.secret|key\.pem"
)
"""Users as well: who writes ``user:password`` there has given both."""
_USER: Final = re.compile(r"(://|:).*@", re.DOTALL)
"""Up to the last @: a password may hold a space, a slash or another @ that should have been escaped."""
_PARAMETER: Final = re.compile(
    r"""((?:password|passwd|pwd|secret|token)\s*=\s*)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s&;'"]+)""", re.IGNORECASE
)
"""As in the addresses of databases and the words of other clients: ``?password=...``, ``password = '...'``."""
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
        super().__init__(hiding(problem))
        self.problem = str(self)
        self.remedy = remedy


def shown(key: str, value: Any) -> str:
    """Return the value as a fault may show it: cut, on one line, and hidden if the key holds secrets."""
    if value is None:
        return ""
    if _SECRET_KEY.search(key):
        return HIDDEN
    if isinstance(value, dict):
        return "{" + ", ".join(str(name) for name in value) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr([hiding(str(item)) for item in value] if isinstance(value, list) else hiding(value))
    return text if len(text) <= _VALUE_CHARACTERS else text[:_VALUE_CHARACTERS] + "..."


def hiding(value: Any) -> Any:
    """Return a value as it is, a text without the passwords in it."""
    if not isinstance(value, str):
        return value
    return _PARAMETER.sub(r"\1" + HIDDEN, _USER.sub(r"\1" + HIDDEN + "@", value))


def secrets_of(value: Any) -> Iterator[tuple[str, str]]:
    """Yield each secret in the texts and names of a document, with what surrounds it, and how that may be shown.

    Rules quote the values they refuse, whole, one of several between commas, or as a path, so what is secret is looked
    for in the document and not in their sentences.
    """
    if isinstance(value, dict):
        for name, item in value.items():
            yield from secrets_of(name)
            yield from secrets_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from secrets_of(item)
    elif isinstance(value, str):
        for text in dict.fromkeys([value, *value.split(","), str(PurePath(value))]):
            for match in (*_USER.finditer(text), *_PARAMETER.finditer(text)):
                yield match[0], hiding(match[0])


def spellings(text: str) -> tuple[str, ...]:
    """Return a text and how it stands inside the quotes of a longer one."""
    quoted = repr("\"'" + text)[4:-1]
    return tuple(dict.fromkeys((text, quoted, quoted.replace("\\'", "'"))))


def raise_if_any(faults: Iterable[Fault], where: str) -> None:
    """Raise ConfigError listing every fault, one a line."""
    lines = [str(fault) for fault in faults]
    if lines:
        count = f"{len(lines)} fault" + ("s" if len(lines) > 1 else "")
        raise ConfigError("\n  ".join([f"{where}: {count}", *lines]))

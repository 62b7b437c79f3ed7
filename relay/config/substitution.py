"""References in a configuration: ``${env:NAME}``, ``${env:NAME:-default}``, ``${file:path}`` and ``${NAME}``.

``$${`` stands for a literal ``${``. What a reference stands for is never shown in a fault: only the reference is.
"""

from __future__ import annotations

import re
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from relay.config.faults import Fault, hiding, shown, spellings
from relay.message.limits import raise_limit

_REFERENCE: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_OF_FILE: Final = "file:"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE_BYTES_MAX: Final = 1 << 20
_MASKED_CHARACTERS_MIN: Final = 4
"""Shorter values are no secrets, and masking them would make sentences unreadable."""


def files_of(text: str) -> list[str]:
    """Return the files that the references of a value name."""
    return [found[1].removeprefix(_OF_FILE) for found in _REFERENCE.finditer(text) if (found[1] or "").startswith(_OF_FILE)]


def unending(mode: int) -> str | None:
    """Return why a file of this mode (``st_mode``) cannot be read as one that each process reads for itself; None for files and folders."""
    if stat.S_ISFIFO(mode):
        return "it is a pipe, which is read once, and whoever opens it may wait for ever"
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return "it is a device or a socket, which may have no end"
    return None


@dataclass(slots=True)
class Substitution:
    """Resolves every string of a document; collects faults and notes instead of stopping at the first."""

    env: Mapping[str, str]
    folder: Path
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _found: dict[str, str] = field(default_factory=dict)

    def masked(self, text: str) -> str:
        """Return a sentence with what references stand for replaced by the references."""
        # The longest first: one value may be the beginning of another.
        for value in sorted(self._found, key=len, reverse=True):
            for spelling in spellings(value):
                text = text.replace(spelling, self._found[value])
        return text

    def resolve(self, value: Any, key: str = "") -> Any:
        """Return ``value`` with the references of all its strings replaced; ``key`` is where it stands."""
        if isinstance(value, dict):
            return {
                name: self.resolve(item, f"{key}.{name}" if key else name) for name, item in value.items()
            }
        if isinstance(value, list):
            return [self.resolve(item, f"{key}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, str):
            return self._plain(_REFERENCE.sub(lambda match: self._remembered(match, key, value), value), key, value)
        return value

    def _plain(self, found: str, key: str, text: str) -> str:
        """Refuse what no path, address or name takes: whoever uses one of these would raise, far from here."""
        if "\0" in found:
            self._wrong(key, text, "it holds a NUL character", "leave that out")
            return found.replace("\0", "")
        if not found.isascii() and any("\ud800" <= one <= "\udfff" for one in found):
            self._wrong(key, text, "what it stands for is not UTF-8", "set that variable to a text in UTF-8")
            return ""
        return found

    def _remembered(self, match: re.Match[str], key: str, text: str) -> str:
        found = self._one(match, key, text)
        # A rule may quote one of several values between commas.
        for part in (found, *found.split(",")):
            if len(part.strip()) >= _MASKED_CHARACTERS_MIN:
                self._found[part.strip()] = hiding(match[0])
        return found

    def _one(self, match: re.Match[str], key: str, text: str) -> str:
        reference = match[1]
        if reference is None:
            return "${"
        kind, colon, rest = reference.partition(":")
        if colon and kind == "file":
            return self._file(rest, key, text)
        if colon and kind == "env":
            name, has_default, default = rest.partition(":-")
            return self._variable(name, default if has_default else None, key, text)
        return self._variable(reference, None, key, text)

    def _variable(self, name: str, default: str | None, key: str, text: str) -> str:
        if not _NAME.fullmatch(name):
            self._wrong(key, text, "the reference is not understood", "write ${env:NAME} or ${file:path}")
            return ""
        found = self.env.get(name)
        if found is None and name == "HOSTNAME":
            # A shell sets HOSTNAME but rarely exports it; the machine's own name is what is meant.
            found = socket.gethostname()
        if found is None and default is None:
            self._wrong(
                key, text, f"the environment has no {name}", f"set {name} or give ${{env:{name}:-default}}"
            )
        return found if found is not None else default or ""

    def _file(self, name: str, key: str, text: str) -> str:
        path = self.folder / name
        try:
            facts = path.stat()
            if (problem := unending(facts.st_mode)) is not None:
                self._wrong(key, text, problem, "name a file, which each process reads for itself")
                return ""
            if facts.st_size > _FILE_BYTES_MAX:
                self._wrong(
                    key, text, "the file is larger than 1 MiB", "name the file that holds the value only"
                )
                return ""
            # An editor's byte order mark is no part of a password, and nobody would see it there.
            content = path.read_text("utf-8-sig").rstrip("\r\n")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise_limit(error)
            reason = getattr(error, "strerror", None) or "not a readable text file"
            self._wrong(
                key, text, f"the file cannot be read ({reason})", "correct the path or its permissions"
            )
            return ""
        if facts.st_mode & stat.S_IROTH and path.suffix != ".sql":
            self.notes.append(
                f"{key} is read from {name}, which every user of this machine can read; chmod o-r it"
            )
        return content

    def _wrong(self, key: str, text: str, problem: str, remedy: str) -> None:
        # The text still holds its references, so nothing behind them is shown.
        self.faults.append(Fault(key, shown(key, text), problem, remedy))

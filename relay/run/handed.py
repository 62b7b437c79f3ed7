"""The configuration as a command read it, handed to every process that it starts: an edited file waits for its next start.

Without it a worker that is started again would take up what somebody writes at that moment, beside others that go on as
before: with another identity or destination, or ending all of them for a fault that is being corrected.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO

from relay.message.errors import ConfigError


class Handed:
    """Keeps the text for as long as it lives; children inherit ``fd`` (``pass_fds``) and are called with ``words``."""

    def __init__(self, text: str) -> None:
        self._file = _unnamed_file()  # children read it until the command ends
        self._file.write(text.encode())
        self._file.flush()

    @property
    def fd(self) -> int:
        """The number under which a child finds the text."""
        return self._file.fileno()

    @property
    def words(self) -> list[str]:
        """What a child's command line needs to find it."""
        return ["--text", str(self.fd)]


def _unnamed_file() -> IO[bytes]:
    """Make a file without a name: in memory, where the system has such, since a container may have no place to write to."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("relay"), "w+b")
    return tempfile.TemporaryFile()


def taken(fd: int | None) -> str | None:
    """Return the text that was handed over under this number, and let go of it; None if none was. Raises ConfigError."""
    if fd is None:
        return None
    try:
        # Others read the same open file: where one of them stands is not where this one does.
        text = os.pread(fd, os.fstat(fd).st_size, 0).decode()
        os.close(fd)
    except (OSError, OverflowError, UnicodeDecodeError):
        raise ConfigError(
            f"file number {fd}: no command has handed a configuration over there; start workers with `relay run` or `relay work`"
        ) from None
    return text

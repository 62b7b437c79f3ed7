"""One worker process as its supervisor sees it: started, told to end, and heard line by line, each line bounded."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

LINE_BYTES_MAX: Final = 16_384
_READ_BYTES: Final = 65_536
_REST_BYTES_MAX: Final = 1 << 20


class Child:
    """A running process in a process group of its own: a terminal's Ctrl-C reaches it only through the supervisor."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int]) -> None:
        """Start it; raises OSError if the system refuses."""
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            pass_fds=tuple(pass_fds),
            process_group=0,
        )
        assert self._process.stdout is not None, "asked for above"
        self.output = self._process.stdout.fileno()
        os.set_blocking(self.output, False)
        self._lines = LineBuffer()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ended(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has ended."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of a process that was killed; raises subprocess.TimeoutExpired."""
        self._process.wait(timeout_s)

    def heard(self) -> tuple[list[bytes], bool]:
        """Return the complete lines that one read brings, and whether more may come."""
        try:
            data = os.read(self.output, _READ_BYTES)
        except BlockingIOError:
            return [], True
        return self._lines.feed(data), bool(data)

    def last_words(self) -> list[bytes]:
        """Return what an ended process had still written, its last line even without a line end, and let go of it."""
        lines: list[bytes] = []
        read = 0
        # Not up to end of file: a grandchild may hold the pipe open, and may write for ever.
        while read < _REST_BYTES_MAX:
            try:
                data = os.read(self.output, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            read += len(data)
            lines.extend(self._lines.feed(data))
        lines.extend(self._lines.rest())
        assert self._process.stdout is not None, "asked for at the start"
        self._process.stdout.close()
        return lines


class LineBuffer:
    """Cuts bytes into lines without keeping more than one bounded line; what is over the bound is dropped."""

    def __init__(self, most: int = LINE_BYTES_MAX) -> None:
        self._most = most
        self._open = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes, return the non-empty lines they complete."""
        *complete, tail = data.split(b"\n")
        lines = []
        for piece in complete:
            line = (self._open + piece)[: self._most].rstrip()
            self._open = b""
            if line:
                lines.append(line)
        self._open = (self._open + tail)[: self._most]
        return lines

    def rest(self) -> Iterator[bytes]:
        """Yield the line that was begun and never ended, if any."""
        line, self._open = self._open.rstrip(), b""
        if line:
            yield line


def log_fields(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a JSON log line, None if the line is anything else."""
    if not line.startswith(b"{"):
        return None
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("event"), str) else None

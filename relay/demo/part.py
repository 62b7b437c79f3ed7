"""A part of the demonstration is a process with a log of its own; what it said last is in every complaint about it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from relay.local.kafka import tail
from relay.message.errors import CheckFailed
from relay.run.child import LineBuffer, log_fields

TAIL_LINES: Final = 12
_READ_BYTES: Final = 1 << 20


class Part:
    """A running process in a group of its own, so that a terminal's Ctrl-C reaches it only through the demo.

    It stays in our session: of a group with a stopped process, which cannot notice that we are gone, the system ends (SIGHUP) or
    wakes (SIGCONT) all once nobody outside of it in its session is a parent of any.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str], pass_fds: Sequence[int] = ()
    ) -> None:
        """Start it; both its outputs are appended to ``log``."""
        self.name = name
        self.log = log
        self._lines = LineBuffer()
        with log.open("ab") as out:
            self._read_to = out.tell()
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                process_group=0,
                pass_fds=tuple(pass_fds),
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ended(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def heard(self) -> list[str]:
        """Return the complete lines it wrote since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._read_to)
            data = log.read(_READ_BYTES)
        self._read_to += len(data)
        return [line.decode("utf-8", "replace") for line in self._lines.feed(data)]

    def end(self, grace_s: float) -> int:
        """Ask it to end, insist after ``grace_s`` seconds, and return its exit code."""
        self.send(signal.SIGTERM)
        try:
            return self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            return self._process.wait()

    def complaint(self, sentence: str) -> CheckFailed:
        """Return an error that says what is wrong and how the log ends."""
        return CheckFailed(f"{sentence}\nThe end of the log of {self.name}:\n{tail(self.log, TAIL_LINES)}")

    def send(self, number: signal.Signals) -> None:
        """Signal the whole group: Spark is a shell's grandchild."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """SIGSTOP the whole group, and see the process stand: an orphaned group is woken only if one of it does."""
        self.send(signal.SIGSTOP)
        with contextlib.suppress(ChildProcessError):  # it has ended
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def events(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Return the JSON log lines among ``lines``."""
    found = (log_fields(line.encode()) for line in lines)
    return [fields for fields in found if fields is not None]

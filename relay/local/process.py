"""A recorded process is its pid together with the moment it started, so that a reused pid is never touched."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from relay.world import clock

_POLL_S = 0.02


@dataclass(frozen=True)
class RecordedProcess:
    """A process we started: alive only while a process of this pid has this very start mark."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> RecordedProcess:
        """Record the process that has ``pid`` now; ProcessLookupError if there is none."""
        _, started = _end_and_start(pid)
        if started is None:
            raise ProcessLookupError(pid)
        return cls(pid, started)

    @classmethod
    def read(cls, path: Path) -> RecordedProcess | None:
        """Return what is kept at ``path``; None if nothing is, or a crash of the machine left it without content."""
        kept = read_kept(path)
        return None if kept is None else cls(**kept)

    @classmethod
    def start(cls, command: Sequence[str], record: Path, log: Path, cwd: Path, **arguments: Any) -> None:
        """Start a process that outlives us, and keep its record; one that could not be recorded is ended, for nobody would find it.

        It has a session of its own: neither our end nor a Ctrl-C in our terminal reaches it. ``arguments`` are more of ``subprocess``.
        """
        with log.open("ab") as out:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, start_new_session=True, **arguments
            )
        try:
            cls.of(child.pid).keep(record)
        except BaseException:
            child.kill()
            child.wait()
            raise
        child.returncode = 0  # its end is observed through the record, also by other processes

    def keep(self, path: Path) -> None:
        """Keep the record at ``path``."""
        keep(path, asdict(self))

    def is_alive(self) -> bool:
        """Tell whether this very process still runs (a zombie does not, and a stranger with its pid is not it)."""
        ended, mark = _end_and_start(self.pid)
        if mark == self.started and ended:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)  # our own child that ended: let its pid go
        return mark == self.started and not ended

    def send(self, signum: signal.Signals) -> bool:
        """Signal the process if it is still the one recorded; False when it is gone."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, signum)
        except ProcessLookupError:
            return False
        return True

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait until the process is gone; False when it still runs after ``timeout_s`` seconds."""
        deadline = clock.monotonic() + timeout_s
        while self.is_alive():
            if clock.monotonic() > deadline:
                return False
            clock.sleep(_POLL_S)
        return True

    def end(self, grace_s: float) -> None:
        """Wait for a process that was asked to end, and after ``grace_s`` seconds insist with SIGKILL."""
        if not self.wait_for_end(grace_s):
            self.kill()

    def kill(self) -> None:
        """SIGKILL, as a crash would; returns when the process is gone."""
        if self.send(signal.SIGKILL):
            self.wait_for_end(10.0)


def keep(path: Path, value: Any) -> None:
    """Keep a value at ``path``, whole or not at all, for this user only."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)  # it may hold a password
    fresh.write_text(json.dumps(value))
    fresh.replace(path)


def read_kept(path: Path) -> Any:
    """Return the value kept at ``path``; None if there is none, or none that is whole."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _end_and_start(pid: int) -> tuple[bool, str | None]:
    """Tell whether ``pid`` has ended and is a zombie, and what the system knows of its start; None: no such process.

    Linux: field 22 of /proc/PID/stat, in clock ticks since boot (proc(5)), with the boot's own id.
    Elsewhere: the start time that ``ps`` prints.
    """
    return _from_proc(pid) if Path("/proc/self/stat").exists() else _from_ps(pid)


def _from_proc(pid: int) -> tuple[bool, str | None]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a name is cut off after 15 bytes, also inside a character
    except (FileNotFoundError, ProcessLookupError):
        return True, None
    # The command in field 2 may hold spaces and brackets: split after its last bracket.
    state, *fields = text.rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id")
    # A zombie whose other threads (field 20 counts them all) have not ended yet still has its sockets and locks.
    ended = state == "Z" and int(fields[16]) <= 1
    return ended, f"{boot.read_text().strip() if boot.exists() else ''}:{fields[18]}"


def _from_ps(pid: int) -> tuple[bool, str | None]:
    ps = shutil.which("ps")
    assert ps is not None, "a system without /proc has ps"
    command = [ps, "-o", "stat=,lstart=", "-p", str(pid)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    state, _, started = answer.stdout.strip().partition(" ")
    return state.startswith("Z"), started.strip() or None


def children(pid: int) -> list[RecordedProcess]:
    """Return the processes whose parent is ``pid``; empty where the system has no /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(RecordedProcess.of(int(stat.parent.name)))
    return found

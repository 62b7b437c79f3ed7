"""A crew is processes that are started again whenever they end, until they are told to leave or are done.

None outlives the run: each watches the lifeline. Ends that nobody brought about are counted by how they came.
"""

from __future__ import annotations

import contextlib
import resource
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from relay.chaos.history import History
from relay.demo.part import Part
from relay.run.lifeline import ParentEnd
from relay.run.restarts import ExitCode, said
from relay.world import clock, schedule

RESTART_S: Final = 1.0
GRACE_S: Final = 20.0
_FOR_A_PERSON: Final = frozenset({ExitCode.CONFIG, ExitCode.PERSON, ExitCode.TWIN})

Command = Callable[[int], Sequence[str]]
"""Makes a command line from how often the process was started before."""


@dataclass(slots=True)
class _Member:
    command: Command
    part: Part | None = None
    due: float = 0.0
    runs: int = 0
    killed: bool = False
    frozen: bool = False


class Crew:
    """Processes by name; every method may be called from any thread."""

    def __init__(
        self, word: Literal["worker", "source"], log: Callable[[str], Path], history: History, lifeline: ParentEnd
    ) -> None:
        self.complaints: list[str] = []
        self.ends: Counter[str] = Counter()
        self._word = word
        self._log = log
        self._history = history
        self._lifeline = lifeline
        self._members: dict[str, _Member] = {}
        self._lock = schedule.lock()

    def add(self, name: str, command: Command) -> None:
        """Have a process run under a name of its own."""
        with self._lock:
            self._members[name] = member = _Member(command)
            self._start(name, member)

    def tend(self) -> None:
        """Start again what ended; what ended well is done, what stopped for a person is complained of."""
        now = clock.monotonic()
        with self._lock:
            for name, member in list(self._members.items()):
                if member.part is None:
                    if now >= member.due:
                        self._start(name, member)
                    continue
                code = member.part.ended()
                if code is not None:
                    self._follow(name, member, code, now)

    def running(self) -> list[str]:
        """Return the names of those that run, and are not frozen."""
        with self._lock:
            return sorted(
                name
                for name, member in self._members.items()
                if member.part is not None and member.part.ended() is None and not member.frozen
            )

    @property
    def is_empty(self) -> bool:
        """Has everyone left?"""
        with self._lock:
            return not self._members

    def kill(self, name: str) -> int | None:
        """SIGKILL one; return its pid, None if it does not run."""
        with self._lock:
            member = self._members.get(name)
            if member is None or member.part is None or member.part.ended() is not None:
                return None
            member.killed, member.frozen = True, False
            member.part.send(signal.SIGKILL)
            return member.part.pid

    def freeze(self, name: str) -> int | None:
        """SIGSTOP one; return its pid, None if it does not run."""
        with self._lock:
            member = self._members.get(name)
            if member is None or member.part is None or member.part.ended() is not None:
                return None
            member.frozen = True
            member.part.stop()
            return member.part.pid

    def thaw(self, name: str | None = None) -> None:
        """SIGCONT one, or all that are frozen."""
        with self._lock:
            for key, member in self._members.items():
                if member.frozen and member.part is not None and name in (None, key):
                    member.frozen = False
                    member.part.send(signal.SIGCONT)

    def let_write(self, name: str, *, may: bool) -> int | None:
        """Refuse one every write to a file (EFBIG) or allow it again; return its pid, None if it does not run."""
        with self._lock:
            member = self._members.get(name)
            if member is None or member.part is None or member.part.ended() is not None:
                return None
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and its limit with it
                _, most = resource.prlimit(member.part.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(member.part.pid, resource.RLIMIT_FSIZE, (most if may else 0, most))
            return member.part.pid

    def heard(self, words: bytes) -> int:
        """Count how often the logs of those that are here hold these words."""
        with self._lock:
            logs = [self._log(name) for name in self._members]
        return sum(log.read_bytes().count(words) for log in logs if log.exists())

    def leave(self, name: str, grace_s: float = GRACE_S) -> None:
        """Let one end for good: SIGTERM, and SIGKILL after so many seconds."""
        self.thaw(name)
        with self._lock:
            member = self._members.pop(name, None)
        if member is None or member.part is None:
            return
        asked = member.part.ended() is None
        code = member.part.end(grace_s)
        self._history.tell(self._word, name=name, event="left", how=said(code))
        if asked and code == -signal.SIGKILL:
            self.ends[f"{name.partition('.')[0]}: did not end within {grace_s:g} s"] += 1

    def end(self, grace_s: float = GRACE_S) -> None:
        """Let all end for good, at the same time."""
        self.thaw()
        with self._lock:
            for member in self._members.values():
                if member.part is not None:
                    member.part.send(signal.SIGTERM)
            names = list(self._members)
        for name in names:
            self.leave(name, grace_s)

    def _start(self, name: str, member: _Member) -> None:
        command = member.command(member.runs)
        member.part = Part(name, command, self._log(name), self._lifeline.env, (self._lifeline.fd,))
        member.runs += 1
        member.killed = member.frozen = False
        self._history.tell(self._word, name=name, event="started", pid=member.part.pid)

    def _follow(self, name: str, member: _Member, code: int, now: float) -> None:
        """Note an end and decide what follows it."""
        self._history.tell(self._word, name=name, event="ended", how=said(code), ours=member.killed)
        part, member.part = member.part, None
        member.due = now + RESTART_S
        if code == 0:
            del self._members[name]
        elif code in _FOR_A_PERSON and part is not None:
            del self._members[name]
            self.complaints.append(str(part.complaint(f"{name} stopped for a person ({said(code)}).")))
        elif not member.killed:
            self.ends[f"{name.partition('.')[0]}: {said(code)}"] += 1

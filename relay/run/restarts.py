"""A worker process that fails is started again, later each time, and only as often as its budget allows."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum, IntEnum
from typing import Final, Self

import orjson


class ExitCode(IntEnum):
    """How a worker process tells its supervisor why it ended; every other code is a failure."""

    DONE = 0
    CONFIG = 2
    UNREACHABLE = 3
    PERSON = 10
    TWIN = 11
    MOVED = 12


class Next(Enum):
    """What follows the end of a worker process."""

    DONE = "done"
    STOPPED = "stopped"
    STOP_ALL = "stop all"
    RESTART = "restart"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class Decision:
    """``pause_s`` is how long to wait before a restart; ``reason`` says in a few words how the process ended."""

    next: Next
    reason: str
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    """At most ``restarts`` after failures within ``window_s`` seconds; pauses double from ``first_s`` to ``most_s``.

    The pauses of a whole default budget (0.5 + 1 + 2 + 4 + 8 s, a quarter more with jitter) fit into the window,
    so a worker that fails at once does use it up.
    """

    restarts: int = 5
    window_s: float = 60.0
    first_s: float = 0.5
    most_s: float = 15.0


LATELY_S: Final = 3600.0
PAST: Final = "RELAY_WORKER_PAST"
"""Names the environment's variable by which a supervisor tells it."""


@dataclass(frozen=True, slots=True)
class Past:
    """How a worker's earlier processes failed: how many under this supervisor, how many of them within the last hour, how the last one ended.

    A route whose worker dies less often than its budget allows goes on, and nothing but this tells of it.
    """

    restarts: int = 0
    restarts_lately: int = 0
    ended_by: str | None = None

    @classmethod
    def told(cls, environment: Mapping[str, str]) -> Self:
        """Return what a supervisor told the process that it started; nothing if there was none. It may be of another version."""
        told = orjson.loads(environment.get(PAST, "{}"))
        return cls(**{one.name: told[one.name] for one in fields(cls) if one.name in told})

    def environment(self) -> dict[str, str]:
        """Return what tells it."""
        return {PAST: orjson.dumps(asdict(self)).decode()}


JITTER: Final = 0.25
"""A pause is stretched by up to this share, so that workers which failed together do not come back together."""
_DRAINED: Final = frozenset({0, -signal.SIGTERM, 128 + signal.SIGTERM})
_FINAL: Final = {
    ExitCode.DONE: Decision(Next.DONE, "done"),
    ExitCode.CONFIG: Decision(Next.STOP_ALL, "the configuration is wrong"),
    ExitCode.PERSON: Decision(Next.STOPPED, "stopped for a person"),
    ExitCode.TWIN: Decision(Next.STOPPED, "another process runs under the same instance name"),
}


_AGAIN: Final = {
    ExitCode.UNREACHABLE: "a broker, a database or a resource of this machine is unreachable",
    ExitCode.MOVED: "its queue goes on in another store",
}


class Restarts:
    """Decides for one worker. Times are seconds on a monotonic clock; ``chance`` returns numbers in [0, 1).

    A worker that ran for the window without failing has its whole budget back: its failures are then too old to
    count. Unreachable brokers and databases, and limits of the machine, use nothing up, since a worker that gave up would not come back with
    them, nor does a queue that has moved; its pauses grow all the same.
    """

    def __init__(self, budget: Budget, chance: Callable[[], float]) -> None:
        self._budget = budget
        self._chance = chance
        self._failures: deque[float] = deque()
        self._lately: deque[float] = deque()
        self._restarts = 0
        self._ended_by: str | None = None
        self._unreachable = 0
        self._started_at = 0.0

    def started(self, now: float) -> None:
        """Note that a process began."""
        self._started_at = now

    def past(self, now: float) -> Past:
        """Return what is to be told of earlier failures."""
        _drop(self._lately, now - LATELY_S)
        return Past(self._restarts, len(self._lately), self._ended_by)

    def ended(self, now: float, code: int) -> Decision:
        """Decide after an end with ``code``, negative for the number of the signal that killed it."""
        if code in _FINAL:
            return _FINAL[ExitCode(code)]
        if now - self._started_at >= self._budget.window_s:
            self._unreachable = 0
        if code in _AGAIN:
            self._unreachable += 1
            return Decision(Next.RESTART, _AGAIN[ExitCode(code)], self._pause(self._unreachable))
        self._unreachable = 0
        return self._failed(now, said(code))

    def _failed(self, now: float, reason: str) -> Decision:
        _drop(self._failures, now - self._budget.window_s)
        if len(self._failures) >= self._budget.restarts:
            return Decision(Next.GIVE_UP, reason)
        self._failures.append(now)
        self._lately.append(now)
        self._restarts += 1
        self._ended_by = reason
        return Decision(Next.RESTART, reason, self._pause(len(self._failures)))

    def _pause(self, times: int) -> float:
        # The exponent is bounded, so that a long outage does not compute 2 ** thousands.
        plain = min(self._budget.most_s, self._budget.first_s * 2.0 ** min(times - 1, 16))
        return plain * (1 + JITTER * self._chance())


def _drop(times: deque[float], until: float) -> None:
    while times and times[0] <= until:
        times.popleft()


def drained(code: int) -> bool:
    """Tell whether a process that was asked to end did so; one that was asked before it could listen did, too."""
    return code in _DRAINED


def said(code: int) -> str:
    """Return how a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"

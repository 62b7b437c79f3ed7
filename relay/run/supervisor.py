"""A process per route and worker, restarted within a budget, and none of them outlives the supervisor."""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import structlog

from relay.kafka.client_log import client_line
from relay.message.limits import limit_met
from relay.run.child import Child, log_fields
from relay.run.lifeline import parent_end
from relay.run.logging import LEVELS
from relay.run.restarts import Budget, Decision, ExitCode, Next, Restarts, drained, said
from relay.world import clock
from relay.world.seldom import Repeats

Command = Callable[[str, int], Sequence[str]]
"""Makes the command line of one worker from its route and number."""

_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WAKE_S: Final = 1.0
"""The loop looks around at least this often; signals and output wake it earlier."""
_TOGETHER_S: Final = 0.5
"""Signals within so long are one: a shell, `timeout` and other wrappers pass on what the terminal, or they, send to everybody as well."""
_KILL_WAIT_S: Final = 5.0
_RESERVED: Final = frozenset({"self", "event", "level", "method_name", "exc_info", "stack_info"})


@dataclass(slots=True)
class _Worker:
    """``child`` runs, or ``due`` says when the next one starts, or neither: the worker has ended for good.

    ``leaving``: it was asked to end, so that its end is no failure.
    """

    route: str
    number: int
    restarts: Restarts
    child: Child | None = None
    due: float | None = None
    leaving: bool = False
    last_line: str = ""
    repeats: Repeats = field(default_factory=Repeats)


class Supervisor:
    """Runs until every worker has ended for good. Use from the main thread: it listens to signals.

    ``fds`` are open files that every worker inherits. The first SIGTERM, SIGINT or SIGHUP is passed on as SIGTERM
    (workers drain); the second kills them at once. A SIGHUP that is ignored from the start, as by nohup, stays so.
    """

    def __init__(
        self,
        routes: Sequence[str],
        workers: int,
        command: Command,
        *,
        fds: Sequence[int] = (),
        budget: Budget | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        limits = budget if budget is not None else Budget()
        self._workers = [
            _Worker(route, number, Restarts(limits, chance), due=0.0)
            for route in routes
            for number in range(workers)
        ]
        self._command = command
        self._lifeline = parent_end()
        self._fds = (self._lifeline.fd, *fds)
        self._selector = selectors.DefaultSelector()
        self._signals: list[tuple[int, float]] = []
        self._draining_since: float | None = None
        self._code = 0
        self._log: Any = structlog.get_logger()

    def run(self) -> int:
        """Supervise; return the exit code: 0 done or drained, 1 a worker is stopped or given up, 2 configuration.

        After a second signal it is 128 plus that signal's number.
        """
        try:
            with self._listening():
                while any(worker.child or worker.due is not None for worker in self._workers):
                    forced = self._once()
                    if forced is not None:
                        return 128 + forced
            return self._code
        finally:
            # Children that still run, after a failure of the supervisor's own, drain when they notice.
            self._lifeline.close()
            self._selector.close()

    def _once(self) -> int | None:
        """Go round once; return a signal's number if it is the second one."""
        self._start_due()
        self._hear()
        forced = self._take_signals()
        if forced is None:
            self._reap()
        return forced

    def _start_due(self) -> None:
        now = clock.monotonic()
        for worker in self._workers:
            if worker.due is not None and worker.due <= now:
                worker.due = None
                self._start(worker, now)

    def _start(self, worker: _Worker, now: float) -> None:
        worker.restarts.started(now)
        worker.last_line = ""
        command = self._command(worker.route, worker.number)
        try:
            told = worker.restarts.past(now).environment()
            worker.child = Child(command, {**self._lifeline.env, **told}, self._fds)
        except OSError as error:
            # Retry; for as long as it takes where only a limit is met, such as a full process table: that is no worker's failure.
            limit = limit_met(error)
            worker.last_line = f"the process cannot be started: {limit or error.strerror}"
            self._follow(worker, worker.restarts.ended(now, ExitCode.UNREACHABLE if limit else 1))
            return
        self._selector.register(worker.child.output, selectors.EVENT_READ, worker)
        self._tell("info", "started", worker, pid=worker.child.pid)

    def _hear(self) -> None:
        """Wait for output, a signal or the next start; pass on what children say."""
        waits = [worker.due for worker in self._workers if worker.due is not None]
        pause = min([_WAKE_S, *(max(0.0, due - clock.monotonic()) for due in waits)])
        for ready, _ in self._selector.select(pause):
            if ready.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(ready.fd, 4096)
                continue
            worker: _Worker = ready.data
            assert worker.child is not None, "unregistered when it ended"
            lines, open_ = worker.child.heard()
            self._pass_on(worker, lines)
            if not open_:
                self._selector.unregister(ready.fd)

    def _take_signals(self) -> int | None:
        while self._signals:
            number, at = self._signals.pop(0)
            if self._draining_since is not None:
                if at - self._draining_since < _TOGETHER_S:
                    continue
                self._kill()
                return number
            self._tell(
                "info",
                "draining: the workers finish what they have begun; once more to leave at once",
                signal=signal.Signals(number).name,
            )
            self._drain(self._workers)
            self._draining_since = at
        return None

    def _drain(self, workers: Sequence[_Worker]) -> None:
        for worker in workers:
            worker.due, worker.leaving = None, True
            if worker.child is not None:
                worker.child.send(signal.SIGTERM)

    def _kill(self) -> None:
        alive = [worker for worker in self._workers if worker.child is not None]
        for worker in alive:
            assert worker.child is not None, "chosen above"
            worker.child.send(signal.SIGKILL)
        for worker in alive:
            assert worker.child is not None, "chosen above"
            # One in an uninterruptible wait dies when that ends; waiting longer here helps nobody.
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.child.wait(_KILL_WAIT_S)
            self._tell("warning", "killed", worker, pid=worker.child.pid)

    def _reap(self) -> None:
        for worker in self._workers:
            code = worker.child.ended() if worker.child is not None else None
            if worker.child is None or code is None:
                continue
            if worker.child.output in self._selector.get_map():
                self._selector.unregister(worker.child.output)
            self._pass_on(worker, worker.child.last_words())
            worker.child = None
            self._follow(worker, worker.restarts.ended(clock.monotonic(), code), code)

    def _follow(self, worker: _Worker, decision: Decision, code: int = 1) -> None:
        """Do what was decided about a worker that ended, or note the end of one that was asked to."""
        if decision.next is Next.STOP_ALL:
            self._code = ExitCode.CONFIG
            self._tell(
                "error", "stopped: all workers end", worker, reason=worker.last_line or decision.reason
            )
            self._drain(self._workers)
        elif decision.next is Next.STOPPED:
            self._code = self._code or 1
            self._tell("error", "stopped", worker, reason=worker.last_line or decision.reason, code=code)
        elif worker.leaving:
            self._left(worker, code)
        elif decision.next is Next.DONE:
            self._tell("info", "done", worker)
        elif decision.next is Next.RESTART:
            worker.due = clock.monotonic() + decision.pause_s
            self._tell(
                "warning",
                "restarting",
                worker,
                reason=decision.reason,
                last=worker.last_line,
                in_s=round(decision.pause_s, 1),
            )
        else:
            self._give_up(worker, decision)

    def _left(self, worker: _Worker, code: int) -> None:
        if drained(code):
            self._tell("info", "drained", worker)
            return
        self._code = self._code or 1
        self._tell("error", "failed while draining", worker, reason=said(code), last=worker.last_line)

    def _give_up(self, worker: _Worker, decision: Decision) -> None:
        self._code = self._code or 1
        sentence = (
            f"route {worker.route} is given up: worker {worker.number} failed again and again; "
            "mend what its last lines name, then start it again"
        )
        self._tell("error", sentence, worker, reason=decision.reason, last=worker.last_line)
        self._drain([other for other in self._workers if other.route == worker.route])

    def _pass_on(self, worker: _Worker, lines: Sequence[bytes]) -> None:
        for line in lines:
            fields = log_fields(line)
            if fields is None:
                self._pass_on_text(worker, line.decode("utf-8", "replace"))
                continue
            event, level = str(fields["event"]), str(fields.get("level", "info"))
            worker.last_line = event
            others = {name: value for name, value in fields.items() if name not in _RESERVED}
            self._tell(level if level in LEVELS else "error", event, worker, **others)

    def _pass_on_text(self, worker: _Worker, line: str) -> None:
        said = client_line(line)
        worker.last_line = line if said is None else said.sentence
        if said is None:
            self._tell("info", line, worker)
        elif not worker.repeats.is_one(said.sentence, clock.monotonic()):
            self._tell(said.level, "kafka client", worker, said=said.sentence)

    def _tell(self, level: str, event: str, worker: _Worker | None = None, /, **fields: Any) -> None:
        # By place: what an application logs may have a field of any name.
        if worker is not None:
            fields = {**fields, "route": worker.route, "worker": worker.number}
        self._log.log(LEVELS[level], event, **fields)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Note signals, and let each of them wake the loop through a pipe; restore what was there before."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        self._selector.register(reading, selectors.EVENT_READ, None)
        heard = [number for number in _ENDING if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._note) for number in heard}
        # Without a handler of Python's, SIGCHLD would not wake anybody.
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.unregister(reading)
            os.close(reading)
            os.close(writing)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append((number, clock.monotonic()))

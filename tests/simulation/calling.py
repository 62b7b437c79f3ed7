"""A world driven from outside: whenever the caller blocks, everything else goes on until it is woken.

For contract suites, whose tests are plain synchronous code that also runs against the real thing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import contextmanager

from tests.simulation.scheduler import STEPS_MAX, BusyLoop, Process, Task, World


class CallingWorld(World):
    """The code that made it is one of its tasks; ``process`` of the caller may be changed for a while."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._caller = Task(self.process("caller"), "caller", 0)
        self._woken = False
        self.current = self._caller

    @contextmanager
    def acting_as(self, process: Process) -> Iterator[None]:
        """Make the caller's calls, and the clients it makes, those of another process."""
        before, self._caller.process = self._caller.process, process
        try:
            yield
        finally:
            self._caller.process = before

    def block(self, timeout: float | None) -> bool:
        """Let everything else happen meanwhile."""
        caller = self._caller
        if self.current is not caller:
            return super().block(timeout)
        caller.process.step()
        caller.turn += 1
        turn = caller.turn
        if timeout is not None:
            self._push(self.now + timeout, self._resume, (caller, turn, False))
        while caller.turn == turn:
            self._happen()
        self.current = caller
        caller.process.step()
        return self._woken

    def _happen(self) -> None:
        self.current = None
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise BusyLoop(f"more than {STEPS_MAX} events at {self.now:.1f} s")
        self.now, _noise, _number, action, args = heapq.heappop(self._events)
        action(*args)

    def _resume(self, task: Task, turn: int, woken: bool) -> None:
        if task is not self._caller:
            super()._resume(task, turn, woken)
        elif task.turn == turn:
            task.turn += 1
            self._woken = woken

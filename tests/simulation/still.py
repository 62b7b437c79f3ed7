"""A world in which nothing else happens: every request is served at once, and waiting only makes time pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.scheduler import Process, Task, World


class StillWorld(World):
    """For contract suites, which call synchronously: one caller, no faults, a clock of its own."""

    def __init__(self) -> None:
        super().__init__(0)
        self._caller = Task(self.process("caller"), "caller", 0)
        self.current = self._caller

    def block(self, timeout: float | None) -> bool:
        """Nobody else can wake the caller: the time passes."""
        assert timeout is not None, "this would wait for ever"
        self.now += timeout
        return False

    def at(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        """Do it now."""
        action(*args)

    def spawn(self, process: Process, name: str, target: Callable[[], None]) -> Task:
        """Do it now."""
        target()
        return self._caller

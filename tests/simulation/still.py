"""A world in which nothing else happens: every request is served at once, and waiting only makes time pass."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any


class StillWorld:
    """What a simulated database needs, for contract suites: one caller, no faults, a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rng = Random(0)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        """Nobody else can make it true: either it is, or the time is over."""
        if not ready():
            self.now += timeout
        return ready()

    def spawn(self, process: Any, name: str, target: Callable[[], None]) -> None:
        """Do it now."""
        target()

    def trace(self, text: str) -> None:
        """Nobody reads it."""

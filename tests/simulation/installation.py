"""While a world is installed, production takes time, threads, randomness and crash points from it.

Production reads all of these from the modules ``relay.world.clock``, ``schedule``, ``randomness`` and ``crash``, so
these are the only places that are replaced; adapters are replaced by whoever composes a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from relay.world import clock, crash, randomness, schedule
from tests.simulation.scheduler import Process, SimEvent, SimLock, SimQueue, Task, World

WALL_START_MS: Final = 1_800_000_000_000

StandIn = tuple[Any, str, Any]
"""An object, the name of an attribute, and what stands there instead."""


class CrashPoints:
    """Compares like the armed name of ``relay.world.crash`` and so learns of every crash point that is passed."""

    def __init__(self, world: World, passed: Callable[[Process, str], None]) -> None:
        self._world = world
        self._passed = passed

    def __eq__(self, name: object) -> bool:
        task = self._world.current
        if task is not None:
            self._passed(task.process, str(name))
        return False

    def __hash__(self) -> int:
        return id(self)


@contextmanager
def replaced(stand_ins: Iterable[StandIn]) -> Iterator[None]:
    """Put other values in the place of attributes for as long as the block lasts."""
    stand_ins = list(stand_ins)
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in stand_ins]
    for owner, name, value in stand_ins:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in saved:
            setattr(owner, name, value)


@contextmanager
def installed(
    world: World,
    *,
    crash_points: Callable[[Process, str], None] | None = None,
    also: list[StandIn] | None = None,
) -> Iterator[None]:
    """Put the world in the place of time, threads and randomness, and ``also`` what is given."""

    def offset() -> float:
        return world.current.process.clock_offset_s if world.current is not None else 0.0

    def wall_ms() -> int:
        return WALL_START_MS + round((world.now + offset()) * 1000)

    def start_thread(name: str, target: Callable[[], None]) -> Task:
        assert world.current is not None
        return world.spawn(world.current.process, name, target)

    draw = world.rng.randbytes
    stand_ins: list[StandIn] = [
        (clock, "monotonic", lambda: world.now),
        (clock, "sleep", world.sleep),
        (clock, "wall_ms", wall_ms),
        (clock, "wall_iso", lambda: f"simulated {wall_ms()}"),
        (schedule, "start_thread", start_thread),
        (schedule, "lock", lambda: SimLock(world)),
        (schedule, "event", lambda: SimEvent(world)),
        (schedule, "fifo", lambda maxsize=0: SimQueue(world, maxsize)),
        (randomness, "uuid_bytes", lambda: draw(16)),
        (randomness, "random_bytes", draw),
        (randomness, "jitter", world.jitter),
        *(also or []),
    ]
    if crash_points is not None:
        stand_ins.append((crash, "_name", CrashPoints(world, crash_points)))
    with replaced(stand_ins):
        try:
            yield
        finally:
            world.close()

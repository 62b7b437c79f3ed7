"""While a world is installed, production takes time, threads, randomness and crash points from it.

Production reads all of these from the modules ``relay.run.clock``, ``schedule``, ``randomness`` and ``crash``, so
these are the only places that are replaced; adapters are replaced by whoever composes a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from relay.run import clock, crash, randomness, schedule
from tests.simulation.scheduler import Process, SimEvent, SimLock, SimQueue, Task, World

WALL_START_MS: Final = 1_800_000_000_000


class CrashPoints:
    """Compares like the armed name of ``relay.run.crash`` and so learns of every crash point that is passed."""

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
def installed(
    world: World,
    *,
    crash_points: Callable[[Process, str], None] | None = None,
    also: list[tuple[Any, str, Any]] | None = None,
) -> Iterator[None]:
    """Put the world in the place of time, threads and randomness; ``also`` are (module, name, stand-in)."""

    def offset() -> float:
        return world.current.process.clock_offset_s if world.current is not None else 0.0

    def wall_ms() -> int:
        return WALL_START_MS + round((world.now + offset()) * 1000)

    def start_thread(name: str, target: Callable[[], None], *, daemon: bool = True) -> Task:
        assert world.current is not None
        return world.spawn(world.current.process, name, target)

    def thread_id() -> int:
        return world.current.number if world.current is not None else 0

    draw = world.rng.randbytes
    replaced: list[tuple[Any, str, Any]] = [
        (clock, "monotonic", lambda: world.now),
        (clock, "sleep", world.sleep),
        (clock, "wall_ms", wall_ms),
        (clock, "wall_iso", lambda: f"simulated {wall_ms()}"),
        (schedule, "start_thread", start_thread),
        (schedule, "thread_id", thread_id),
        (schedule, "lock", lambda: SimLock(world)),
        (schedule, "event", lambda: SimEvent(world)),
        (schedule, "fifo", lambda maxsize=0: SimQueue(world, maxsize)),
        (randomness, "uuid_bytes", lambda: draw(16)),
        (randomness, "random_bytes", draw),
        (randomness, "jitter", world.jitter),
        *(also or []),
    ]
    if crash_points is not None:
        replaced.append((crash, "_name", CrashPoints(world, crash_points)))
    saved = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        world.close()
        for module, name, value in saved:
            setattr(module, name, value)

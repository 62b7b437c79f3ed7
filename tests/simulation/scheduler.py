"""One world: virtual time, a seeded order of everything that happens at the same time, and processes that can die.

Every simulated process is a set of greenlets that run production's own synchronous code. Whatever blocks gives
control to the world, which takes the next event by time and, at equal times, by the seed. A dead process has no
effect: each of its calls raises ``Crashed``. A frozen one is not scheduled until it thaws; what it sent arrives.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from queue import Empty, Full
from random import Random
from typing import Any, Final

from greenlet import getcurrent, greenlet

STEPS_MAX: Final = 300_000
"""More events than this in one run mean that something is busy without getting anywhere (invariant I18)."""

_NEVER: Final = float("inf")


class Crashed(BaseException):
    """The process is dead: nothing it still does may have an effect."""


class BusyLoop(BaseException):
    """Events follow each other without end."""


class Task:
    """One thread of a simulated process."""

    __slots__ = ("done", "greenlet", "name", "number", "process", "turn")

    def __init__(self, process: Process, name: str, number: int) -> None:
        self.process = process
        self.name = name
        self.number = number
        self.turn = 0
        self.done = False
        self.greenlet: greenlet

    def is_alive(self) -> bool:
        """As a thread's."""
        return not self.done

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the task."""
        world = self.process.world
        limit = _NEVER if timeout is None else world.now + timeout
        while not self.done and world.now < limit:
            world.sleep(min(0.05, max(limit - world.now, 0.0001)))


class Process:
    """A simulated operating-system process; what it keeps in memory dies with it, ``disk`` stays with its name."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.thawed_at = 0.0
        self.clock_offset_s = 0.0
        self.kill_in: int | None = None
        self.freeze_in: tuple[int, float] | None = None
        self.tasks: list[Task] = []
        self.on_death: list[Callable[[], None]] = []
        self.failure: BaseException | None = None

    def kill(self) -> None:
        """End the process at once, wherever it stands."""
        if not self.alive:
            return
        self.alive = False
        self.world.trace(self.name, "killed")
        self.world.at(0.0, self._bury)
        for told in self.on_death:
            told()

    def freeze(self, seconds: float) -> None:
        """Stop scheduling the process; its sessions expire meanwhile, its requests under way still arrive."""
        self.world.trace(self.name, "frozen", round(seconds, 3))
        self.thawed_at = max(self.thawed_at, self.world.now + seconds)

    def kill_at(self, point: str, *args: object) -> None:
        """Die at this very step of one's own code: raises Crashed."""
        self.world.trace(self.name, "dies at", point, *args)
        self.kill()
        raise Crashed

    def step(self) -> None:
        """Pass one call of an adapter: the place where armed kills and freezes strike."""
        if not self.alive:
            raise Crashed
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in <= 0:
                self.kill_in = None
                self.kill_at("a call")
        if self.freeze_in is not None:
            left, seconds = self.freeze_in
            self.freeze_in = (left - 1, seconds)
            if left <= 0:
                self.freeze_in = None
                self.freeze(seconds)

    def at(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        """Run ``action`` as the process's own background work: never once it is dead, later while it is frozen."""
        self.world.at(delay, self._act, action, args)

    def _act(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.thawed_at > self.world.now:
            self.world.at(self.thawed_at - self.world.now, self._act, action, args)
            return
        action(*args)

    def _bury(self) -> None:
        for task in self.tasks:
            if not task.done:
                if task.greenlet:  # started and not ended: its ``finally`` blocks run now, without effect
                    self.world.current = task
                    task.greenlet.throw(Crashed)
                    self.world.current = None
                task.done = True


class World:
    """The hub of one run; ``current`` is the task that runs, None in the world's own events."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now = 0.0
        self.steps = 0
        self.tracing = tracing
        self.lines: list[tuple[Any, ...]] = []
        self.current: Task | None = None
        self.processes: list[Process] = []
        self._noise = Random(seed ^ 0x5EED).random
        self._events: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._hub = getcurrent()
        self._stopped = False

    def jitter(self) -> float:
        """Draw what production's waits are spread by."""
        return self.rng.random()

    def trace(self, *what: object) -> None:
        """Note what happens, if anybody wants to know."""
        if self.tracing:
            self.lines.append((round(self.now, 6), *what))

    def process(self, name: str) -> Process:
        """Start an empty process."""
        made = Process(self, name)
        self.processes.append(made)
        return made

    def spawn(self, process: Process, name: str, target: Callable[[], None]) -> Task:
        """Start ``target`` as a thread of ``process``; what it raises becomes the process's ``failure``."""
        if not process.alive:
            raise Crashed
        self._number += 1
        task = Task(process, name, self._number)

        def run(_started: bool) -> None:
            try:
                target()
            except Crashed:
                pass
            except BaseException as failure:  # noqa: BLE001 - the run's checks look at it
                process.failure = failure
                self.trace(process.name, name, "ended by", type(failure).__name__, str(failure)[:200])
            finally:
                task.done = True

        task.greenlet = greenlet(run, self._hub)
        process.tasks.append(task)
        self._push(self.now, self._resume, (task, task.turn, True))
        return task

    def at(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        """Run ``action`` in the world itself after ``delay`` seconds; it must not block."""
        self._push(self.now + delay, action, args)

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass for the running task."""
        self.block(seconds)

    def wait(self, predicate: Callable[[], bool], timeout: float, period: float = 0.01) -> bool:
        """Look again and again until ``predicate`` holds; False when ``timeout`` is over."""
        limit = self.now + timeout
        while not predicate():
            if self.now >= limit:
                return False
            self.sleep(period)
        return True

    def block(self, timeout: float | None) -> bool:
        """Give control away until ``wake`` (True) or until ``timeout`` seconds have passed (False)."""
        task = self.current
        assert task is not None, "only a task may block"
        task.process.step()
        task.turn += 1
        if timeout is not None:
            self._push(self.now + timeout, self._resume, (task, task.turn, False))
        woken: bool = self._hub.switch()
        if not task.process.alive:
            raise Crashed
        return woken

    def call(self) -> None:
        """Pass a call that does not block: armed kills and freezes strike here as well."""
        task = self.current
        assert task is not None, "only a task calls adapters"
        task.process.step()
        if task.process.thawed_at > self.now:
            self.block(0.0)

    def wake(self, task: Task) -> None:
        """Let a blocked task go on, soon."""
        self._push(self.now, self._resume, (task, task.turn, True))

    def check(self) -> None:
        """Raise Crashed if the running task's process is dead: for calls that do not block."""
        task = self.current
        if task is not None and not task.process.alive:
            raise Crashed

    def run(self, until: float) -> None:
        """Let everything happen up to a time; ends sooner if nothing is left or ``stop`` was called."""
        events = self._events
        while events and not self._stopped:
            if events[0][0] > until:
                break
            at, _noise, _number, action, args = heapq.heappop(events)
            self.now = at
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise BusyLoop(f"more than {STEPS_MAX} events at {self.now:.1f} s")
            action(*args)
        if not self._stopped:
            self.now = max(self.now, until)

    def stop(self) -> None:
        """End the run after this event."""
        self._stopped = True

    def close(self) -> None:
        """Kill what still lives, so that no greenlet outlives its world."""
        for process in self.processes:
            process.on_death.clear()
            process.kill()
            process._bury()
        self._events.clear()

    def _push(self, at: float, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._number += 1
        heapq.heappush(self._events, (at, self._noise(), self._number, action, args))

    def _resume(self, task: Task, turn: int, woken: bool) -> None:
        process = task.process
        if task.turn != turn or task.done or not process.alive:
            return
        if process.thawed_at > self.now:
            self._push(process.thawed_at, self._resume, (task, turn, woken))
            return
        task.turn += 1
        self.current = task
        try:
            task.greenlet.switch(woken)
        finally:
            self.current = None


class Waiters:
    """Tasks that wait for something, woken in the order in which they came."""

    __slots__ = ("tasks", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self.tasks: deque[Task] = deque()

    def wait(self, timeout: float | None) -> bool:
        """Block the running task until woken (True) or the time is over (False)."""
        task = self.world.current
        assert task is not None
        self.tasks.append(task)
        try:
            return self.world.block(timeout)
        finally:
            if task in self.tasks:
                self.tasks.remove(task)

    def wake_one(self) -> None:
        """Wake the first that waits."""
        if self.tasks:
            self.world.wake(self.tasks.popleft())

    def wake_all(self) -> None:
        """Wake all."""
        while self.tasks:
            self.wake_one()


class SimLock:
    """As ``threading.Lock``."""

    def __init__(self, world: World) -> None:
        self._waiters = Waiters(world)
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = self._waiters.world
        world.check()
        limit = _NEVER if timeout < 0 else world.now + timeout
        while self._held:
            if not blocking or world.now >= limit:
                return False
            woken = self._waiters.wait(None if limit == _NEVER else limit - world.now)
            # Rounding may end the wait a little before the limit: asking again would go on for ever.
            if not woken and self._held:
                return False
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        self._waiters.wake_one()

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimEvent:
    """As ``threading.Event``."""

    def __init__(self, world: World) -> None:
        self._waiters = Waiters(world)
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._waiters.world.check()
        self._set = True
        self._waiters.wake_all()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._waiters.wait(timeout)
        return self._set


class SimQueue:
    """As ``queue.Queue``."""

    def __init__(self, world: World, maxsize: int = 0) -> None:
        self._items: deque[Any] = deque()
        self._maxsize = maxsize
        self._getters = Waiters(world)
        self._putters = Waiters(world)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        world = self._getters.world
        world.check()
        limit = _NEVER if timeout is None else world.now + timeout
        while 0 < self._maxsize <= len(self._items):
            if not block or world.now >= limit:
                raise Full
            self._putters.wait(None if limit == _NEVER else limit - world.now)
        self._items.append(item)
        self._getters.wake_one()

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        world = self._getters.world
        world.check()
        limit = _NEVER if timeout is None else world.now + timeout
        while not self._items:
            if not block or world.now >= limit:
                raise Empty
            self._getters.wait(None if limit == _NEVER else limit - world.now)
        self._putters.wake_one()
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items

"""A client's connection to a simulated database: requests and answers travel, get lost, or arrive late.

A request once sent may take effect whatever the client believes; so an unanswered COMMIT is unknown, here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from tests.simulation.databases import Backend, ConnectionLost, Database, StatementRefused
from tests.simulation.scheduler import Crashed, Waiters

T = TypeVar("T")

ANSWER_TIMEOUT_S: Final = 10.0
"""How long a client waits for an answer before it takes the connection for dead."""


class _Answer:
    __slots__ = ("came", "error", "lost", "value")

    def __init__(self) -> None:
        self.came = False
        self.lost = False
        self.value: Any = None
        self.error: BaseException | None = None


class Connection:
    """One connection; raises ConnectionLost if none can be had. Used by one thread, but for ``break_off``.

    It belongs to the simulated process that opens it: a dead one does nothing more with it.
    """

    def __init__(
        self, database: Database, label: str, *, lock_timeout_s: float = float("inf"), idle_limit_s: float = 30.0
    ) -> None:
        world = database.world
        world.sleep(self._latency(database))
        if world.now < database.up_at:
            raise ConnectionLost
        assert world.current is not None
        self.database = database
        self.broken = False
        self.in_transaction = False
        self.committing = False
        self._owner = world.current.process
        self._backend = Backend(database, f"{self._owner.name}#{world.processes.index(self._owner)}/{label}", lock_timeout_s, idle_limit_s)
        self._owner.on_death.append(self._backend.left_by_client)
        self._waiters = Waiters(world)

    def call(self, work: Callable[[Backend], T], *, commits: bool = False, what: str = "statement") -> T:
        """Send a request and wait for its answer.

        Raises StatementRefused for an error answer, ConnectionLost if there is none; then the connection is broken.
        """
        if not self._owner.alive:
            raise Crashed
        self.committing = commits
        if self.broken:
            raise ConnectionLost
        database, backend = self.database, self._backend
        world, weather = database.world, database.weather
        lost = weather.request_lost + (weather.commit_request_lost if commits else 0.0)
        if lost and world.rng.random() < lost:
            world.trace(backend.label, what, "is lost on its way")
            self._give_up()
            raise ConnectionLost
        there, patience = self._latency(database), ANSWER_TIMEOUT_S
        if commits and weather.commit_held and world.rng.random() < weather.commit_held:
            there = world.rng.uniform(*weather.hold_s)
            patience = min(patience, there * world.rng.random())
            world.trace(backend.label, what, "is held for", round(there, 3))
        answer_lost = commits and weather.commit_answer_lost > 0 and world.rng.random() < weather.commit_answer_lost
        answer = _Answer()
        backend.pending += 1
        world.at(there, self._arrived, work, answer, answer_lost)
        limit = world.now + patience
        while not (answer.came or answer.lost or self.broken) and world.now < limit:
            self._waiters.wait(limit - world.now)
        if not answer.came or self.broken:
            world.trace(backend.label, what, "is not answered")
            self._give_up()
            raise ConnectionLost
        if answer.error is not None:
            raise answer.error
        return answer.value  # type: ignore[no-any-return]

    def break_off(self) -> None:
        """Close the connection from another thread: the call under way raises ConnectionLost."""
        self.broken = True
        self._waiters.wake_all()

    def close(self) -> None:
        """Close; the server rolls back what is open, soon."""
        if not self.broken and self._owner.alive:
            self._give_up()

    def _arrived(self, work: Callable[[Backend], Any], answer: _Answer, lose: bool) -> None:
        """Let the server work: a task of its own, since it may wait for locks."""
        self.database.spawn(self._backend.label, lambda: self._serve(work, answer, lose))

    def _serve(self, work: Callable[[Backend], Any], answer: _Answer, lose: bool) -> None:
        backend, world = self._backend, self.database.world
        try:
            answer.value = backend.serve(work)
        except StatementRefused as refused:
            answer.error = refused
        except ConnectionLost:
            lose = True
        if lose:
            world.trace(backend.label, "gets no answer")
            answer.lost = True
            self._waiters.wake_all()
        else:
            world.at(self._latency(self.database), self._answered, answer)
        backend.reap()

    def _answered(self, answer: _Answer) -> None:
        answer.came = True
        self._waiters.wake_all()

    def _give_up(self) -> None:
        self.broken = True
        if self._backend.left_by_client in self._owner.on_death:
            self._owner.on_death.remove(self._backend.left_by_client)
        self._backend.left_by_client()

    @staticmethod
    def _latency(database: Database) -> float:
        found: float = database.world.rng.uniform(*database.weather.latency_s)
        return found

"""A client's connection to a simulated database: requests and answers travel, get lost, or arrive late.

A request once sent may take effect whatever the client believes; so an unanswered COMMIT is unknown, here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from tests.simulation.databases import Backend, ConnectionLost, Database, StatementRefused

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
    """One connection; raises ConnectionLost if none can be had. Used by one thread, but for ``break_off``."""

    def __init__(
        self,
        database: Database,
        label: str,
        *,
        lock_timeout_s: float = float("inf"),
        idle_limit_s: float = 30.0,
        client_alive: Callable[[], bool] | None = None,
    ) -> None:
        world = database.world
        world.sleep(self._latency(database))
        if world.now < database.up_at:
            raise ConnectionLost
        self.database = database
        self.broken = False
        self.in_transaction = False
        self.committing = False
        self._backend = Backend(database, label, lock_timeout_s, idle_limit_s)
        if client_alive is not None:
            self._backend.client_alive = client_alive

    def call(self, work: Callable[[Backend], T], *, commits: bool = False, what: str = "statement") -> T:
        """Send a request and wait for its answer.

        Raises StatementRefused for an error answer, ConnectionLost if there is none; then the connection is broken.
        """
        if self.broken:
            raise ConnectionLost
        self.committing = commits
        database, backend = self.database, self._backend
        world, weather = database.world, database.weather
        lost = weather.request_lost + (weather.commit_request_lost if commits else 0.0)
        if lost and world.rng.random() < lost:
            world.trace(f"{backend.label}: {what} is lost on its way to {database.name}")
            self._give_up()
            raise ConnectionLost
        there, patience = self._latency(database), ANSWER_TIMEOUT_S
        if commits and weather.commit_held and world.rng.random() < weather.commit_held:
            there = world.rng.uniform(*weather.hold_s)
            patience = min(patience, there * world.rng.random())
            world.trace(f"{backend.label}: {what} is held for {there:.3f} s")
        answer_lost = commits and weather.commit_answer_lost > 0 and world.rng.random() < weather.commit_answer_lost
        answer = _Answer()
        backend.pending += 1
        world.spawn(
            database.process, f"{backend.label}:{what}", lambda: self._serve(work, answer, there, lose=answer_lost)
        )
        world.wait(lambda: answer.came or answer.lost or self.broken, patience)
        if not answer.came or self.broken:
            world.trace(f"{backend.label}: no answer to {what}")
            self._give_up()
            raise ConnectionLost
        if answer.error is not None:
            raise answer.error
        return answer.value  # type: ignore[no-any-return]

    def break_off(self) -> None:
        """Close the connection from another thread: the call under way raises ConnectionLost."""
        self.broken = True

    def close(self) -> None:
        """Close; the server rolls back what is open, soon."""
        if not self.broken:
            self._give_up()

    def _serve(self, work: Callable[[Backend], Any], answer: _Answer, there: float, *, lose: bool) -> None:
        backend, database = self._backend, self.database
        database.world.sleep(there)
        try:
            answer.value = backend.serve(work)
        except StatementRefused as refused:
            answer.error = refused
        except ConnectionLost:
            answer.lost = True
            return
        if lose:
            database.world.trace(f"{backend.label}: the answer is lost")
            answer.lost = True
            return
        database.world.sleep(self._latency(database))
        answer.came = True

    def _give_up(self) -> None:
        self.broken = True
        weather, rng = self.database.weather, self.database.world.rng
        quick = not weather.unnoticed or rng.random() >= weather.unnoticed
        self._backend.left_by_client(rng.uniform(0.0, 0.02) if quick else rng.uniform(*weather.unnoticed_s))

    @staticmethod
    def _latency(database: Database) -> float:
        found: float = database.world.rng.uniform(*database.weather.latency_s)
        return found

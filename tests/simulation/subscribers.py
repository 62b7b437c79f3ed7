"""Subscribers of a queue in a simulated database: they take in its order, and are done at once, in one transaction.

Slow ones are done later, one by one, and some of it fails for a while, or they die in between. Now and then all of them do
what production's upkeep does about what is due, delayed or expired, and for those that died.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from relay.message.errors import InDoubt
from relay.queue.desired import Desired, Kind, Wish
from relay.queue.port import Holder, Refused, StoreAway
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores.sql_queue import SqlQueue
from relay.queue.stores.sql_schema import Phase
from relay.work.backoff import Backoff
from relay.work.upkeep import Upkeep
from relay.world import clock
from tests.simulation.database_connection import Connection
from tests.simulation.database_queue import DELIVERIES, OPENED, bind_simulated
from tests.simulation.databases import ConnectionLost, Database, StatementRefused
from tests.simulation.scheduler import Process, World

LOCK_TIMEOUT_S: Final = 2.0
LOOK_S: Final = 0.7
LEASE_S: Final = 10.0
RETRY_MS: Final = 700
FAILS: Final = 0.15

Heard = Callable[[], Desired]
"""What a process has heard of what persons want."""


class _Current:
    """The queue over whichever connection there is."""

    queue: SqlQueue

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)


class Taker:
    """One subscriber's only worker, started again where it dies; what is under test is its upkeep, and what it gets."""

    def __init__(
        self,
        world: World,
        database: Database,
        settings: QueueSettings,
        name: str,
        follow: Callable[[], Heard],
        slow: Random | None = None,
        bind: Callable[[QueueSettings, Connection], SqlQueue] = bind_simulated,
        refuses: float = 0.0,
    ) -> None:
        self._world = world
        self._database = database
        self._settings = settings
        self._name = name
        self._follow = follow
        self._slow = slow
        self._bind = bind
        self._refuses = refuses
        self._count = 0
        self.process: Process
        self._start()

    def _start(self) -> None:
        process = self.process = self._world.process(f"taker {self._name}")
        process.on_death.append(lambda: self._world.at(LOOK_S, self._start))
        self._world.at(0.0, lambda: self._world.spawn(process, "main", self._main))

    def _main(self) -> None:
        current, heard = _Current(), self._follow()
        self._count += 1
        holder = Holder(f"taker {self._name} {self._count}".encode(), self._name, 0, None)
        queue = self._settings.name
        upkeep = Upkeep(
            queue, {queue: current}, lambda _: {}, holder, Path("/nowhere"), LEASE_S, Backoff(),  # type: ignore[dict-item]
            desired=heard,
        )  # fmt: skip
        wanted_before: list[Wish] = []
        while True:
            clock.sleep(LOOK_S)
            wanted = list(heard().of(Kind.PUBLISHER, queue))
            is_due = wanted != wanted_before or self._is_due()
            is_due = is_due or (self._slow is not None and bool(self._database.rows("relay_queue_holder")))
            if not is_due and not self._may_find_any():
                continue
            try:
                connection = Connection(self._database, "taker", lock_timeout_s=LOCK_TIMEOUT_S)
            except ConnectionLost:
                continue
            with suppress(StoreAway, InDoubt, StatementRefused):  # what has become of it is in the queue
                current.queue = self._bind(self._settings, connection)
                if is_due:
                    now = clock.wall_ms()
                    upkeep._reveal_due(now)
                    upkeep._all_due(current.queue.expire, now)
                    wanted_before = wanted
                if self._slow is None:
                    self._take(current.queue, holder)
                else:
                    upkeep.recover(clock.monotonic())
                    try:
                        self._take_slowly(current.queue, holder, self._slow)
                    except Refused:
                        self.process.kill_at("others took it for dead")
            connection.close()

    def _may_find_any(self) -> bool:
        """To ask in vain would cost most of a run's time."""
        numbers = {row["id"] for row in self._database.rows("relay_queue_subscriber") if row["name"] == self._name}
        return any(row["phase"] in {Phase.READY, Phase.RETRY} and row["sub"] in numbers for row in self._database.rows(DELIVERIES))

    def _is_due(self) -> bool:
        now = clock.wall_ms()
        return any(
            row["reveal_at"] is not None and row["reveal_at"] <= now and row["state"] == PublisherState.PUT
            for row in self._database.rows(OPENED)
        ) or any(
            row["expires_at"] is not None and row["expires_at"] <= now and row["state"] == SubscriberState.AVAILABLE
            for row in self._database.rows(DELIVERIES)
        )

    def _take(self, queue: SqlQueue, holder: Holder) -> None:
        queue.enter(holder)
        while True:
            with queue.transaction():
                taken = queue.take(self._name, holder.id, 4, clock.wall_ms())
                queue.finish(self._name, [one.ticket for one in taken], clock.wall_ms())
            if not taken:
                return

    def _take_slowly(self, queue: SqlQueue, holder: Holder, rng: Random) -> None:
        queue.enter(holder)
        # Of what was in doubt the last time: what is held still is not done. As `relay.work.states` has it, once that has ended.
        with queue.transaction():
            queue.beat(holder.id)
            queue.free(self._name, queue.held(holder.id), clock.wall_ms())
        while taken := queue.take(self._name, holder.id, 4, clock.wall_ms()):
            while taken:
                clock.sleep(rng.choice((0.01, 0.1, 0.6)))
                if self._refuses and rng.random() < self._refuses:
                    # As a worker does: another member of its pool may get this one, and nothing of its lane before it.
                    with queue.transaction():
                        queue.free(self._name, [one.ticket for one in taken[1:]], clock.wall_ms())
                        queue.refuse(self._name, [(taken[0].ticket, "it is refused")], clock.wall_ms())
                    break
                if rng.random() < FAILS:
                    # The rest first, so that nobody gets a later one of its lane before it.
                    with queue.transaction():
                        queue.free(self._name, [one.ticket for one in taken[1:]], clock.wall_ms())
                        now = clock.wall_ms()
                        queue.free(self._name, [taken[0].ticket], now, again_at=now + RETRY_MS, failed=True)
                    break
                queue.finish(self._name, [taken[0].ticket], clock.wall_ms())
                taken = taken[1:]
        queue.leave(holder.id)

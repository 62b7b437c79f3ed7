"""Subscribers of a queue in a simulated database: they take in its order, and are done at once, in one transaction."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from relay.message.errors import InDoubt
from relay.queue.port import Holder, StoreAway
from relay.queue.settings import QueueSettings
from relay.queue.stores.sql_queue import SqlQueue
from relay.queue.stores.sql_schema import Phase
from relay.run import clock
from tests.simulation.database_connection import Connection
from tests.simulation.database_queue import DELIVERIES, bind_simulated
from tests.simulation.databases import ConnectionLost, Database, StatementRefused
from tests.simulation.scheduler import World

LOCK_TIMEOUT_S: Final = 2.0
LOOK_S: Final = 0.7


class Taker:
    """One subscriber's only worker; nothing of it is under test but what it gets."""

    def __init__(self, world: World, database: Database, settings: QueueSettings, name: str) -> None:
        self._world = world
        self._database = database
        self._settings = settings
        self._name = name
        self._holder = f"taker {name}".encode()
        self._process = world.process(f"taker {name}")
        world.at(0.0, lambda: world.spawn(self._process, "main", self._main))

    def _main(self) -> None:
        while True:
            clock.sleep(LOOK_S)
            if not self._may_find_any():
                continue
            try:
                connection = Connection(self._database, "taker", lock_timeout_s=LOCK_TIMEOUT_S)
            except ConnectionLost:
                continue
            with suppress(StoreAway, InDoubt, StatementRefused):  # what has become of it is in the queue
                self._take(bind_simulated(self._settings, connection))
            connection.close()

    def _may_find_any(self) -> bool:
        """To ask in vain would cost most of a run's time."""
        numbers = {row["id"] for row in self._database.rows("relay_queue_subscriber") if row["name"] == self._name}
        return any(row["phase"] == Phase.READY and row["sub"] in numbers for row in self._database.rows(DELIVERIES))

    def _take(self, queue: SqlQueue) -> None:
        queue.enter(Holder(self._holder, self._name, 0, None))
        while True:
            with queue.transaction():
                taken = queue.take(self._name, self._holder, 4, clock.wall_ms())
                queue.finish(self._name, [one.ticket for one in taken], clock.wall_ms())
            if not taken:
                return

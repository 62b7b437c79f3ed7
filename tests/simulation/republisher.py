"""The person who gives a queue's subscribers again what they have refused, as `relay message redrive` does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final

from relay.message.errors import InDoubt
from relay.queue.port import Filter, StoreAway
from relay.queue.redriving import chosen, redrive
from relay.queue.stores.sql_queue import SqlQueue
from relay.world import clock
from tests.simulation.database_connection import Connection
from tests.simulation.databases import ConnectionLost, Database, StatementRefused
from tests.simulation.scheduler import World

AGAIN_S: Final = 4.0


class Republisher:
    """Redrives all that is UNUSABLE: now and then, and until the end once nothing fails any more. Several persons may do so at once."""

    def __init__(
        self, world: World, database: Database, bind: Callable[[Connection], SqlQueue], rng: Random, until: float
    ) -> None:
        self._world = world
        self._database = database
        self._bind = bind
        self._rng = rng
        for _ in range(rng.randrange(0, 8)):
            world.at(rng.uniform(0.0, until), self._begin)
        world.at(until, self._go_on)

    def _go_on(self) -> None:
        self._begin()
        self._world.at(AGAIN_S, self._go_on)

    def _begin(self) -> None:
        for _ in range(self._rng.choice((1, 1, 2))):
            at_once = self._rng.choice((1, 3, 100))
            self._world.spawn(self._world.process("republisher"), "main", lambda some=at_once: self._redrive(some))

    def _redrive(self, at_once: int) -> None:
        with suppress(ConnectionLost, StoreAway, InDoubt, StatementRefused):  # asked again
            connection = Connection(self._database, "republisher", lock_timeout_s=2.0)
            queue = self._bind(connection)
            wanted = chosen(queue, Filter(unusable=True))
            for _ in redrive(queue, wanted, None, dry_run=False, pace=lambda: None, now=clock.wall_ms, at_once=at_once):
                pass
            connection.close()

"""What stands in for databases while a world is installed: an address in the configuration names a simulated one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import relay.queue.stores.postgresql
import relay.run.assembly
import relay.run.queue_cursor
from relay.delivery.queue.effects import QueueEffect
from relay.delivery.table.mapping import BatchMapping
from relay.delivery.table.verdicts import Limits, TablePlan
from tests.simulation.database_cursor import SimulatedCursor
from tests.simulation.database_queue import bind_simulated
from tests.simulation.database_queue_cursor import SimulatedQueueCursor
from tests.simulation.database_resource import SimulatedResource
from tests.simulation.databases import Database


def address(name: str) -> str:
    """Return what a configuration says of a simulated database; nothing is ever connected to it."""
    return f"postgresql://simulated/{name}"


def stand_ins(databases: Mapping[str, Database]) -> list[tuple[Any, str, Any]]:
    """Return (module, name, stand-in) for ``installed``; databases by their name."""
    by_address = {address(name): database for name, database in databases.items()}

    def resource(name: str, url: str, lock_timeout_s: float = 1.0) -> SimulatedResource:
        return SimulatedResource(name, by_address[url], lock_timeout_s)

    def cursor(
        url: str, plan: TablePlan, limits: Limits | None = None, mapping: BatchMapping | None = None
    ) -> SimulatedCursor:
        return SimulatedCursor(by_address[url], plan, limits, mapping=mapping)

    def queue_cursor(
        url: str, plan: TablePlan, limits: Limits, *, mapping: BatchMapping, effects: Callable[[Any], QueueEffect]
    ) -> SimulatedQueueCursor:
        return SimulatedQueueCursor(by_address[url], plan, limits, mapping, effects)

    return [
        (relay.run.assembly, "open_resource", resource),
        (relay.run.assembly, "PostgresqlCursor", cursor),
        (relay.run.queue_cursor, "PostgresqlCursor", queue_cursor),
        (relay.queue.stores.postgresql, "bind_postgresql", bind_simulated),
    ]

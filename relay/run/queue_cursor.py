"""The cursor of a queue route: the table route's, with a put as its effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from relay.config.model import RelayConfig
from relay.config.routes import QueueDestination, RouteConfig
from relay.delivery.queue.effects import HeldPublishers, QueueEffect
from relay.delivery.queue.mapping import QueueMapping
from relay.delivery.table.postgresql.cursor import PostgresqlCursor
from relay.delivery.table.sqlite.cursor import SqliteCursor
from relay.delivery.table.verdicts import Limits, TablePlan
from relay.queue.modes import Balance
from relay.run.following import DesiredFollower
from relay.run.queues import address, bind_queue
from relay.transfer.cursor import TableCursor


def cursor_limits(config: RelayConfig) -> Limits:
    """Return after which seconds a database ends what takes too long."""
    timing = config.timing
    return Limits(
        statement_timeout_s=timing.statement_timeout,
        idle_in_transaction_s=min(timing.idle_in_transaction, timing.session_timeout),
    )


def queue_cursor(
    config: RelayConfig,
    route: RouteConfig,
    follower: DesiredFollower,
    publishers: HeldPublishers,
    topic_ids: Callable[[], Mapping[str, bytes]],
) -> TableCursor:
    """Make the cursor where the queue lies now; no connection is made yet."""
    to = route.to
    assert isinstance(to, QueueDestination)
    desired = follower.now()
    queue = config.queues[to.queue].settings()
    plan = TablePlan(
        relay=config.relay.name,
        route=route.name,
        resource=f"queue {to.queue}",
        table="",
        mode="insert",
        columns={},
        stop_on_dead=route.on_dead == "stop",
        queue=to.queue,
    )
    balance = Balance(queue.balancing)

    url = address(config, to.queue, desired)

    def effect(connection: Any) -> QueueEffect:
        return QueueEffect(
            connection, lambda c: bind_queue(config, to.queue, url, c, desired), queue, balance, publishers
        )

    # Topic ids change only when a topic is made anew, which stops the route.
    mapping = QueueMapping(queue, lru_cache(maxsize=1)(topic_ids))
    database = url.removeprefix("log+")
    limits = cursor_limits(config)
    if database.startswith("sqlite:"):
        return SqliteCursor(database, plan, limits, mapping=mapping, effects=effect)
    return PostgresqlCursor(database, plan, limits, mapping=mapping, effects=effect)

"""Rules between a route and the rest of the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from relay.config.faults import Fault
from relay.config.queue_rules import queue_route_faults
from relay.config.queues import QueueConfig
from relay.config.routes import (
    QueueDestination,
    RouteConfig,
    TableDestination,
    TopicDestination,
    sql_faults,
)
from relay.config.timing import Timing
from relay.message.owned_topics import is_owned_topic
from relay.message.record import TOPIC_CHARACTERS_MAX

RESERVED_ROUTES = frozenset({"decide"})
"""``<relay>.decide.<writer>`` are the transactional ids of writers of decisions."""


def route_faults(
    route: RouteConfig,
    relay: str | None,
    resources: set[str],
    timing: Timing,
    queues: Mapping[str, QueueConfig | None],
    *,
    registry: bool = False,
) -> Iterator[Fault]:
    """Yield every broken rule of one route; ``relay`` is None if its name is itself at fault, a queue likewise."""
    key = f"routes.{route.name}"
    if relay is not None:
        yield from _topic_name_faults(route, relay, key)
    yield from _bound_faults(route, timing, key)
    schema = route.to.schema_
    if schema is None and not registry and any(rule.startswith("avro:") for rule in route.identity):
        remedy = 'add schema = "path.avsc" to the route\'s to, or a [registry]'
        yield Fault(f"{key}.identity", repr(route.identity), "an avro: rule needs a schema", remedy)
    if isinstance(route.to, TableDestination):
        yield from _table_faults(route.to, resources, f"{key}.to", registry=registry)
    elif isinstance(route.to, QueueDestination):
        yield from queue_route_faults(route, route.to, queues)
    elif route.dedup == "route":
        remedy = 'use "partition", or a table or queue as destination'
        yield Fault(f"{key}.dedup", "'route'", "only a table or queue can look through all partitions", remedy)


def _topic_name_faults(route: RouteConfig, relay: str, key: str) -> Iterator[Fault]:
    if len(f"{relay}.{route.name}.monitor") > TOPIC_CHARACTERS_MAX:
        yield Fault(key, "", "the monitor's name would be longer than 249 characters", "choose shorter names")
    for topic in route.from_:
        if is_owned_topic(relay, topic):
            yield Fault(
                f"{key}.from", repr(topic), "a topic of the relay's own is not a log", "name a log topic"
            )
    if not isinstance(route.to, TopicDestination):
        return
    if route.to.topic in route.from_:
        problem = "the destination is one of the route's own inputs, so messages would go round for ever"
        yield Fault(f"{key}.to.topic", repr(route.to.topic), problem, "choose another destination")
    if is_owned_topic(relay, route.to.topic):
        problem = "a topic of the relay's own is not a destination"
        yield Fault(f"{key}.to.topic", repr(route.to.topic), problem, "choose another destination")


def _bound_faults(route: RouteConfig, timing: Timing, key: str) -> Iterator[Fault]:
    batch, inflight = route.batch, route.inflight
    if batch.messages > inflight.messages:
        problem = f"one batch would be larger than inflight.messages ({inflight.messages})"
        yield Fault(f"{key}.batch.messages", str(batch.messages), problem, "lower it or raise inflight.messages")
    if batch.linger_s >= timing.transaction_timeout / 2:
        problem = (
            f"a batch must end well inside timing.transaction_timeout ({timing.transaction_timeout:g} s)"
        )
        yield Fault(f"{key}.batch.linger", f"{batch.linger_s:g}s", problem, "use some milliseconds")


def _table_faults(to: TableDestination, resources: set[str], key: str, *, registry: bool) -> Iterator[Fault]:
    if to.resource not in resources:
        remedy = (
            f"add [resources.{to.resource}] or name one of {', '.join(sorted(resources)) or 'those you add'}"
        )
        yield Fault(f"{key}.resource", repr(to.resource), "there is no such resource", remedy)
    if not to.columns:
        yield Fault(f"{key}.columns", "", "no column is mapped", 'write columns = { id = "ce:id", ... }')
    if to.schema_ is None and not registry and any(source.startswith("avro:") for source in to.columns.values()):
        remedy = 'add schema = "path.avsc", or a [registry]'
        yield Fault(f"{key}.columns", "", "an avro: source needs a schema", remedy)
    if to.mode == "sql":
        if to.sql is None:
            yield Fault(f"{key}.sql", "", 'mode = "sql" needs a statement', 'add sql = "..." with %(column)s')
        for problem, remedy in sql_faults(to.sql, to.columns) if to.sql is not None else ():
            yield Fault(f"{key}.sql", "", problem, remedy)
    else:
        if to.sql is not None:
            yield Fault(
                f"{key}.sql",
                "",
                f"mode = {to.mode!r} has no use for it",
                'write mode = "sql" or leave it out',
            )
        if not to.table:
            yield Fault(f"{key}.table", "", "no table is named", 'write table = "..."')
    yield from _key_faults(to, key)


def _key_faults(to: TableDestination, key: str) -> Iterator[Fault]:
    if to.mode == "upsert" and not to.key:
        yield Fault(
            f"{key}.key", "", 'mode = "upsert" needs the columns that identify a row', 'write key = ["..."]'
        )
    if to.mode != "upsert" and to.key:
        yield Fault(f"{key}.key", repr(to.key), f"mode = {to.mode!r} has no use for it", "leave it out")
    missing = [column for column in to.key if column not in to.columns]
    if to.mode == "upsert" and missing:
        yield Fault(f"{key}.key", repr(to.key), f"{missing[0]} is not one of columns", "map it in columns")

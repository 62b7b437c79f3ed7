"""Routes into one table: which of its rows another route has put there."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from relay.audit import readers, tables
from relay.audit.route_topics import ranges_of
from relay.config.model import RelayConfig
from relay.config.routes import RouteConfig, TableDestination
from relay.kafka.scan import Scan
from relay.kafka.topics import Topics
from relay.monitor.entries import DELIVERED


def neighbours(config: RelayConfig, route: RouteConfig) -> list[RouteConfig]:
    """Return the other routes into the table of this one."""
    to = route.to
    return [
        other
        for other in config.routes.values()
        if isinstance(to, TableDestination)
        and isinstance(other.to, TableDestination)
        and other.name != route.name
        and (other.to.table, other.to.resource) == (to.table, to.resource)
    ]


def theirs(
    config: RelayConfig, route: RouteConfig, store: tables.Store, topics: Topics, scan: Scan, wanted: Collection[bytes]
) -> Iterator[bytes]:
    """Yield which of the digests a route says that it has delivered, in its inbox or its monitor."""
    for row in store.inbox(config.relay.name, route.name):
        if row.outcome == DELIVERED and row.digest in wanted:
            yield row.digest
    name = config.monitor_topic(route.name)
    facts = topics.describe([name], settings=False)
    if facts:
        evidence, _broken = readers.monitor(scan.read(ranges_of(topics, facts[name])))
        yield from (entry.digest for entry in evidence.proven(wanted) if entry.outcome == DELIVERED)

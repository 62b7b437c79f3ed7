"""Routes into one destination: which of its effects another route has put there, or one that there was before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from relay.audit import readers, tables
from relay.audit.route_topics import ranges_of
from relay.config.model import RelayConfig, is_owned_topic
from relay.config.routes import QueueDestination, RouteConfig, TableDestination, TopicDestination
from relay.kafka.scan import Scan
from relay.kafka.topics import TopicFacts, Topics
from relay.monitor.entries import DELIVERED


def neighbours(config: RelayConfig, route: RouteConfig) -> list[RouteConfig]:
    """Return the other routes into the table or queue of this one."""
    place = _place(route)
    return [other for other in config.routes.values() if other.name != route.name and place and _place(other) == place]


def _place(route: RouteConfig) -> tuple[str, ...]:
    to = route.to
    if isinstance(to, TableDestination):
        return to.table, to.resource
    return (to.queue,) if isinstance(to, QueueDestination) else ()


def theirs(
    config: RelayConfig, route: RouteConfig, store: tables.Store, topics: Topics, scan: Scan,
    wanted: Collection[bytes] | None,
) -> Iterator[bytes]:  # fmt: skip
    """Yield which of the digests (None: of all) a route says that it has delivered, in its inbox or its monitor."""
    for row in store.inbox(config.relay.name, route.name):
        if row.outcome == DELIVERED and (wanted is None or row.digest in wanted):
            yield row.digest
    name = config.monitor_topic(route.name)
    facts = topics.describe([name], settings=False)
    if facts:
        yield from _delivered(topics, scan, facts[name], wanted)


def in_their_logs(
    routes: Iterable[RouteConfig], match: readers.Match, topics: Topics, scan: Scan, wanted: Collection[bytes]
) -> tuple[set[bytes], bool]:
    """Return which rows are known by the name of a message in the logs of these routes, and whether those are whole."""
    names = {name for route in routes for name in route.from_}
    logs = topics.describe(sorted(names), settings=False)
    found: set[bytes] = set()
    for facts in logs.values():
        found.update(name for name in readers.names(scan.read(ranges_of(topics, facts)), match) if name in wanted)
    lows = [low for facts in logs.values() for low, _high in ranges_of(topics, facts).values()]
    return found, names == logs.keys() and not any(lows)


def remember_all(config: RelayConfig, routes: Iterable[str], topics: Topics) -> bool:
    """Whether none of these routes' monitors is gone, and neither one of them nor a former route's has lost anything."""
    needed = {config.monitor_topic(name) for name in routes}
    found = topics.describe(sorted(needed | set(former_monitors(config, topics))), settings=False)
    return needed <= found.keys() and not any(
        low for facts in found.values() for low, _high in ranges_of(topics, facts).values()
    )


def beside(config: RelayConfig, route: RouteConfig) -> list[str]:
    """Return the other routes into the output topic of this one."""
    to = route.to
    if not isinstance(to, TopicDestination):
        return []
    return [one.name for one in config.routes.values() if one.name != route.name and getattr(one.to, "topic", None) == to.topic]


def foreign(config: RelayConfig, route: RouteConfig, topics: Topics, scan: Scan) -> set[bytes]:
    """Return the producer instances of the other routes into the same output topic."""
    return _instances([config.monitor_topic(name) for name in beside(config, route)], topics, scan)


def known_beside(config: RelayConfig, route: RouteConfig, topics: Topics, scan: Scan) -> set[bytes] | None:
    """Return the producer instances that other routes' monitors still tell of, also of former ones; None if they have forgotten none."""
    others = beside(config, route)
    if remember_all(config, others, topics):
        return None
    return _instances([*map(config.monitor_topic, others), *former_monitors(config, topics)], topics, scan)


def _instances(monitors: list[str], topics: Topics, scan: Scan) -> set[bytes]:
    found: set[bytes] = set()
    for facts in topics.describe(monitors, settings=False).values() if monitors else ():
        found |= readers.monitor(scan.read(ranges_of(topics, facts)))[0].instances
    return found


def former(config: RelayConfig, topics: Topics, scan: Scan, wanted: Collection[bytes]) -> set[bytes]:
    """Return which of the digests routes have delivered that the configuration does not name any more.

    A route gets another name when its log was made again: what it delivered under the old one is no phantom.
    """
    if not wanted:
        return set()
    monitors = topics.describe(former_monitors(config, topics), settings=False)
    return {digest for facts in monitors.values() for digest in _delivered(topics, scan, facts, wanted)}


def former_monitors(config: RelayConfig, topics: Topics) -> list[str]:
    """Return the monitors of routes that the configuration does not name any more."""
    living = {config.monitor_topic(name) for name in config.routes}
    owned = [name for name in topics.names() if is_owned_topic(config.relay.name, name) and name.endswith(".monitor")]
    return [name for name in owned if name not in living]


def _delivered(
    topics: Topics, scan: Scan, monitor: TopicFacts, wanted: Collection[bytes] | None
) -> Iterator[bytes]:
    evidence, _broken = readers.monitor(scan.read(ranges_of(topics, monitor)))
    yield from (entry.digest for entry in evidence.proven(wanted) if entry.outcome == DELIVERED)

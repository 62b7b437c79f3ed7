"""Routes into one destination: which of its effects another route has put there, or one that there was before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

from relay.audit import readers, tables
from relay.audit.evidence import Evidence
from relay.audit.route_topics import ranges_of
from relay.config.model import RelayConfig
from relay.config.routes import QueueDestination, RouteConfig, TableDestination, TopicDestination
from relay.kafka.scan import Scan
from relay.kafka.topics import TopicFacts, Topics
from relay.message.owned_topics import is_owned_topic
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
    monitors = topics.describe([config.monitor_topic(name) for name in beside(config, route)], settings=False)
    return {instance for evidence in _told(monitors, topics, scan) for instance in evidence.instances}


class Untold:
    """Which effects in an output topic may be another route's, whose monitor, or that of a former route, has forgotten them.

    The monitors are read at the first effect that no message of this route has, in the midst of the output: by a scan of its own.
    """

    def __init__(self, config: RelayConfig, route: RouteConfig, topics: Topics, own: Evidence) -> None:
        self._config = config
        self._route = route
        self._topics = topics
        self._own = own

    def may_be(self, key: bytes, writer: bytes) -> bool:
        """Did ``writer``, an instance in hex, write for no route that any monitor tells of, and does none that counts here tell of the effect?"""
        instances, digests = self._known
        return writer not in instances and key not in digests

    @cached_property
    def _known(self) -> tuple[set[bytes], set[bytes]]:
        config, topics = self._config, self._topics
        beside_it = topics.describe([config.monitor_topic(name) for name in beside(config, self._route)], settings=False)
        before = topics.describe(former_monitors(config, topics), settings=False)
        instances, digests = self._own.instances, self._own.digests()
        with Scan(config.kafka, config.timing, f"{config.relay.name}.verify") as scan:
            for evidence in _told(beside_it, topics, scan):
                instances |= evidence.instances
            for evidence in _told(before, topics, scan):
                instances |= evidence.instances
                digests.update(entry.digest for entry in evidence.proven(None) if entry.outcome == DELIVERED)
        return {instance.hex().encode() for instance in instances}, digests


def _told(monitors: Mapping[str, TopicFacts], topics: Topics, scan: Scan) -> Iterator[Evidence]:
    return (readers.monitor(scan.read(ranges_of(topics, facts)))[0] for facts in monitors.values())


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

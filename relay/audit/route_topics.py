"""The topics that an audit of a route reads, and how far each of them goes now."""

from __future__ import annotations

from collections.abc import Mapping

from relay.config.model import RelayConfig, RouteConfig, TopicDestination
from relay.kafka.topics import TopicFacts, Topics
from relay.message.errors import ConfigError
from relay.message.record import LogPartition


def names_of(config: RelayConfig, route: RouteConfig) -> list[str]:
    """Return the names of the log's topics, the relay's own, and the destination's if it is a topic."""
    own = [config.monitor_topic(route.name), config.deadletter_topic, config.control_topic]
    return [*route.from_, *own, *([route.to.topic] if isinstance(route.to, TopicDestination) else [])]


def needed(known: Mapping[str, TopicFacts], route: RouteConfig, name: str, what: str) -> TopicFacts:
    """Return what is known of a topic that is not the relay's own; raises ConfigError if it does not exist."""
    if name not in known:
        raise ConfigError(f"routes.{route.name}: topic {name}, {what}, does not exist; create it, or correct the route")
    return known[name]


def ranges_of(topics: Topics, facts: TopicFacts) -> dict[LogPartition, tuple[int, int]]:
    """Return (low, high) of each partition, by partition."""
    marks = topics.watermarks(facts.name, range(facts.partitions))
    return {LogPartition(facts.name, partition): marks[partition] for partition in sorted(marks)}


def ranges_since(
    topics: Topics, facts: TopicFacts, read: Mapping[LogPartition, tuple[int, int]]
) -> dict[LogPartition, tuple[int, int]]:
    """Return what each partition has beyond the ranges that were read; one that was not is taken whole."""
    now = ranges_of(topics, facts)
    return {place: (max(low, read[place][1]) if place in read else low, high) for place, (low, high) in now.items()}

"""A relay under a new name that would deliver once more what it delivered under its former one: not migrated unless that is meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from relay.config.faults import Fault
from relay.config.model import RelayConfig
from relay.kafka import settings
from relay.kafka.reading import PartitionReader
from relay.kafka.topics import TopicFacts, Topics
from relay.message.errors import ConfigError, Stuck, Unreachable
from relay.message.record import LogPartition
from relay.run.renamed import led_there
from relay.run.starts import STARTS, topic_key
from relay.world import clock

Records = Iterable[tuple[bytes, bytes | None]]
DEADLINE_S: Final = 10.0


def find_repeat(config: RelayConfig, topics: Topics, facts: Mapping[str, TopicFacts]) -> Fault | None:
    """Return what is wrong with a relay's name that is new to the cluster: positions, and what is known of repeats, are kept under it.

    What other relays have delivered is known as far as this client may read their control topics.
    """
    if config.control_topic in facts or all(route.says_where_to_start for route in config.routes.values()):
        return None
    return judge_new_name(config, facts, _first_starts_of_others(config, topics))


def judge_new_name(config: RelayConfig, facts: Mapping[str, TopicFacts], others: Mapping[str, Records]) -> Fault | None:
    """Return the first route that would lead a log to where another relay's has led it; ``others`` are records of first starts by relay."""
    for route in config.routes.values():
        if route.says_where_to_start:
            continue
        keys = [topic_key(topic, facts[topic].topic_id) for topic in route.from_ if topic in facts]
        for relay, records in others.items():
            for name, again in led_there(records, route, keys):
                problem = (
                    f"route {name!r} of relay {relay!r} has led {', '.join(again)} to {route.to.place}, and route {route.name!r} of this "
                    "relay, which is new to the cluster, would deliver all that the log has there once more"
                )
                remedy = (
                    f"if it is that relay, give it the name {relay!r} back; if not, or if that place is another one of the same name, set "
                    f'routes.{route.name}.start = "earliest" to deliver all, or "latest" for what is written from now on'
                )
                return Fault("relay.name", config.relay.name, problem, remedy)
    return None


def _first_starts_of_others(config: RelayConfig, topics: Topics) -> Mapping[str, Records]:
    """Read all control topics at once; nothing is known if one of them may not be read, or does not answer."""
    names = set(topics.names())
    relays = [name.removesuffix(".control") for name in sorted(names) if name.endswith(".control")]
    # All that belongs to a relay: somebody else's topic may have such a name, and any size.
    places = {LogPartition(f"{one}.control", 0): one for one in relays if {f"{one}.deadletter", f"{one}.inquiries"} <= names}
    found = {one: list[tuple[bytes, bytes | None]]() for one in places.values()}
    given = settings.consumer(config.kafka, config.timing, f"{config.relay.name}.control.reader", log_level=0)
    try:
        with PartitionReader(given, committed=False, clock=clock.monotonic, deadline_s=DEADLINE_S) as reader:
            for records in reader.read({place: reader.watermarks(place) for place in places}):
                for record in records:
                    if (record.key() or b"").startswith(STARTS):
                        found[places[LogPartition(record.topic(), 0)]].append((record.key(), record.value()))
    except (ConfigError, Stuck, Unreachable):
        return {}
    return found

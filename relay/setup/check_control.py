"""What ``relay check --connect`` reads in the control topic: what is wanted of queues, and where routes led when they first started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from relay.config.model import RelayConfig
from relay.kafka.topics import TopicFacts, Topics
from relay.message.errors import ConfigError, Stopped, Unreachable
from relay.queue.desired import Desired
from relay.run.following import control_records
from relay.run.renamed import first_starts, refuse_repeats
from relay.run.starts import topic_key
from relay.setup.check_queues import check_queues
from relay.setup.check_topics import Findings
from relay.setup.new_name import find_repeat

Records = Iterable[tuple[bytes, bytes | None]]


def check_control(config: RelayConfig, facts: Mapping[str, TopicFacts], findings: Findings) -> None:
    """Read it, and look at what goes by it; before the first migration only whether the relay had another name."""
    if config.control_topic not in facts:
        _check_name(config, facts, findings)
        return
    records = _records(config, findings)
    if records is None:
        return
    judge_first_starts(config, records, facts, findings)
    desired = Desired()
    for key, value in records:
        desired.add(key, value)
    check_queues(config, desired, findings)


_FILLED_ANEW: Final = "a database that does not know the route is filled anew from where it first started, as far as the log has that"
_NEVER_COMES: Final = (
    "what the former got may never come here, and `relay verify` calls it lost; a route that leads elsewhere needs another name"
)


def _is_same_table(former: str, place: str) -> bool:
    """Are both one table's name, in two databases? Those keep the positions beside their rows."""
    return place.startswith("table ") and former.rpartition(" in ")[0] == place.rpartition(" in ")[0]


def judge_first_starts(config: RelayConfig, records: Records, facts: Mapping[str, TopicFacts], findings: Findings) -> None:
    """A route that its workers would refuse to start under its new name, and one that has led elsewhere under the name it has."""
    starts: dict[str, str | None] = {}
    for name, start in first_starts(records):
        starts.setdefault(name, start.get("place"))
    for route in config.routes.values():
        place = route.to.place
        if route.name in starts:
            former = starts[route.name] or place
            if former != place:
                findings.notes.append(
                    f"route {route.name} led to {former} when it first started, and leads to {place} now: "
                    + (_FILLED_ANEW if _is_same_table(former, place) else _NEVER_COMES)
                )
            continue
        topics = [topic_key(topic, facts[topic].topic_id) for topic in route.from_ if topic in facts]
        try:
            refuse_repeats(lambda: records, route, config.routes, topics)
        except Stopped as refused:
            problem, _, remedy = str(refused).partition("; ")
            findings.fault(f"routes.{route.name}", "", problem, remedy)


def _check_name(config: RelayConfig, facts: Mapping[str, TopicFacts], findings: Findings) -> None:
    try:
        with Topics(config.kafka, config.timing) as topics:
            repeat = find_repeat(config, topics, facts)
    except Unreachable as error:
        findings.unreachable.append(f"names of other relays: {error}")
    else:
        findings.faults += [] if repeat is None else [repeat]


def _records(config: RelayConfig, findings: Findings) -> list[tuple[bytes, bytes | None]] | None:
    following = control_records(config)
    try:
        return following.records()
    except ConfigError as denied:
        findings.refused(f"topic {config.control_topic}", denied)
    except Unreachable as error:
        findings.unreachable.append(f"queues and first starts: {error}")
    finally:
        following.close()
    return None

"""Whether the cluster keeps what it has acknowledged, and as long as is needed: facts in, faults and notes out, no I/O.

Brokers have defaults for whole clusters, and a topic has them unless somebody says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from relay.config.model import RelayConfig, TopicDestination
from relay.kafka.topics import TopicFacts, numeric_setting
from relay.setup.check_topics import MIGRATE, Findings

INTERNAL: Final = ("__consumer_offsets", "__transaction_state")
"""Kafka's own topics, in which positions and transactions live."""
_UNCLEAN: Final = "unclean.leader.election.enable"
_BYTES: Final = "retention.bytes"
_IN_SYNC: Final = "min.insync.replicas"
_UNLIMITED: Final = -1


def judge_durability(config: RelayConfig, facts: Mapping[str, TopicFacts], brokers: int, findings: Findings) -> None:
    """Judge logs, outputs, the relay's own topics and, as far as their facts are given, Kafka's own."""
    own, logs = config.own_topics, config.log_topics
    outputs = {route.to.topic for route in config.routes.values() if isinstance(route.to, TopicDestination)}
    for name in sorted(own & facts.keys()):
        _judge_size(facts[name], findings)
    for name in sorted((own | logs | outputs) & facts.keys()):
        _judge_election(facts[name], name in own, findings)
    for name in sorted(logs & facts.keys()):
        _note_size(facts[name], findings)
    _note_replicas(facts, logs | outputs, outputs, brokers, findings)


def _judge_size(topic: TopicFacts, findings: Findings) -> None:
    """Evidence that goes by size goes before its time: what was delivered would be delivered again."""
    size = numeric_setting(topic.settings, _BYTES, _UNLIMITED)
    if size != _UNLIMITED and "delete" in topic.settings.get("cleanup.policy", "delete"):
        problem = "what the relay keeps there would go by size, before its time; brokers may have a default (log.retention.bytes)"
        findings.fault(f"topic {topic.name} {_BYTES}", str(size), problem, MIGRATE)


def _judge_election(topic: TopicFacts, is_own: bool, findings: Findings) -> None:
    if topic.settings.get(_UNCLEAN) == "true":
        problem = "a replica that lacks what was acknowledged may become the leader, and it is lost"
        remedy = MIGRATE if is_own else f"set it to false: kafka-configs --alter --topic {topic.name} --add-config {_UNCLEAN}=false"
        findings.fault(f"topic {topic.name} {_UNCLEAN}", "true", problem, remedy)


def _note_size(log: TopicFacts, findings: Findings) -> None:
    size = numeric_setting(log.settings, _BYTES, _UNLIMITED)
    if size != _UNLIMITED:
        findings.notes.append(
            f"topic {log.name} keeps {size} bytes of each partition ({_BYTES}): what waits is lost as soon as so much was written "
            "behind it, however young it is; set it to -1, or watch relay_nears_retention"
        )


def _note_replicas(
    facts: Mapping[str, TopicFacts], users: Iterable[str], outputs: Iterable[str], brokers: int, findings: Findings
) -> None:
    """A topic on one broker is away whenever that is; a commit that finds an output so may stay undone there."""
    if brokers == 1:
        return
    lone = [name for name in sorted(outputs) if name in facts and facts[name].replication == 1]
    if lone:
        findings.notes.append(
            f"topic {', '.join(lone)} has one replica although there are {brokers} brokers: a commit that finds its broker away may "
            "stay undone there (Kafka 4.3 forgets such a partition); give it three replicas"
        )
    internal = [name for name in INTERNAL if name in facts and facts[name].replication == 1]
    if internal:
        findings.notes.append(
            f"topic {', '.join(internal)} has one replica although there are {brokers} brokers: with its broker, positions and "
            "transactions are away, or lost; give it three replicas (kafka-reassign-partitions)"
        )
    single = [
        name
        for name in sorted(users)
        if name in facts and facts[name].replication > 1 and numeric_setting(facts[name].settings, _IN_SYNC, 2) <= 1
    ]
    if single:
        findings.notes.append(
            f"topic {', '.join(single)} acknowledges what one replica has ({_IN_SYNC} = 1): with that broker's disk it may be lost; "
            "set it to 2"
        )

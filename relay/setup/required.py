"""What a command needs is there, or it says within seconds what is missing: brokers that answer, topics that were made."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

import structlog

from relay.config.model import RelayConfig, RouteConfig, TopicDestination
from relay.kafka.topics import VISIBLE_S, BrokerFacts, TopicFacts, Topics
from relay.message.errors import ConfigError, RelayError
from relay.setup.check_topics import VERIFICATION, Findings, judge_brokers, judge_evidence

log = structlog.get_logger("relay.setup")
BROKERS_S: Final = 5.0


def require_topics(config: RelayConfig, *names: str, timeout_s: float | None = None) -> None:
    """Return if all of these topics of the relay exist; raises ConfigError, Unreachable, both with the remedy."""
    limits = () if timeout_s is None else (timeout_s,)
    with Topics(config.kafka, config.timing, *limits) as topics:
        found = topics.describe(names, settings=False, wait_s=VISIBLE_S)
    missing = sorted(set(names) - found.keys())
    if missing:
        raise ConfigError(f"topic {', '.join(missing)}: it does not exist; run `relay migrate {shlex.quote(str(config.path))}`")


def look_for_control(config: RelayConfig) -> None:
    """Tell of brokers that are away, or have no control topic: processes of handlers wait for either, and say so late."""
    try:
        require_topics(config, config.control_topic, timeout_s=BROKERS_S)
    except RelayError as away:
        log.warning("control topic not seen", reason=str(away))


def require_at_start(config: RelayConfig, routes: Sequence[str]) -> None:
    """Raise ConfigError if brokers say that something is not so on which the promises of these routes rest.

    That they verify transactions, for topic routes, and that monitors keep evidence for as long as repeats may come (design
    section 13). What cannot be asked now is left to `relay check --connect`: a broker that is down, or a right that is
    missing, must not keep workers from others.
    """
    chosen = [config.routes[name] for name in routes]
    findings = Findings()
    try:
        with Topics(config.kafka, config.timing, BROKERS_S) as topics:
            if any(isinstance(route.to, TopicDestination) for route in chosen):
                _judge_verification(config, topics.brokers(), findings)
            facts = _evidence(config, chosen, topics)
    except RelayError as away:
        log.warning("brokers not asked for their settings", reason=str(away))
        return
    for route in chosen:
        monitor = facts.get(config.monitor_topic(route.name))
        if monitor is not None:
            judge_evidence(config, monitor, [facts[name] for name in route.from_ if name in facts], findings)
    if findings.faults:
        raise ConfigError(str(findings.faults[0]))


def _judge_verification(config: RelayConfig, brokers: Sequence[BrokerFacts], findings: Findings) -> None:
    seen = [broker for broker in brokers if broker.settings is not None]
    if len(seen) < len(brokers) and config.relay.partition_verification == "ask":
        log.warning(
            "what exactly once into topics rests on cannot be seen",
            setting=VERIFICATION,
            remedy='grant DescribeConfigs on the cluster, or set [relay] partition_verification = "assured", or "absent"',
        )
    judge_brokers(config, seen, findings)


def _evidence(config: RelayConfig, routes: Sequence[RouteConfig], topics: Topics) -> dict[str, TopicFacts]:
    """Return the facts of monitors and logs, or of none of them where that takes a right that is not there."""
    names = {name for route in routes for name in (*route.from_, config.monitor_topic(route.name))}
    try:
        return topics.describe(names)
    except ConfigError as refused:
        log.info("how long evidence is kept is left to `relay check --connect`", reason=str(refused))
        return {}

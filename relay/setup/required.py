"""What a command needs is there, or it says within seconds what is missing: brokers that answer, topics that were made."""

from __future__ import annotations

import shlex
from typing import Final

import structlog

from relay.config.model import RelayConfig
from relay.kafka.topics import VISIBLE_S, Topics
from relay.message.errors import ConfigError, RelayError
from relay.setup.check_topics import VERIFICATION, Findings, judge_brokers

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


def require_verification(config: RelayConfig) -> None:
    """Raise ConfigError if a broker says that it does not verify what a sealed transaction rests on.

    What cannot be asked now is left to `relay check --connect`: a broker that is down must not keep workers from others.
    """
    try:
        with Topics(config.kafka, config.timing, BROKERS_S) as topics:
            brokers = topics.brokers()
    except RelayError as away:
        log.warning("brokers not asked for their settings", reason=str(away))
        return
    seen = [broker for broker in brokers if broker.settings is not None]
    if len(seen) < len(brokers) and config.relay.partition_verification == "ask":
        log.warning(
            "what exactly once into topics rests on cannot be seen",
            setting=VERIFICATION,
            remedy='grant DescribeConfigs on the cluster, or set [relay] partition_verification = "assured", or "absent"',
        )
    findings = Findings()
    judge_brokers(config, seen, findings)
    if findings.faults:
        raise ConfigError(str(findings.faults[0]))

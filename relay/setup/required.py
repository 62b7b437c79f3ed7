"""What a command needs is there, or it says within seconds what is missing: brokers that answer, topics that were made."""

from __future__ import annotations

import shlex

from relay.config.model import RelayConfig
from relay.kafka.topics import Topics
from relay.message.errors import ConfigError


def require_topics(config: RelayConfig, *names: str) -> None:
    """Return if all of these topics of the relay exist; raises ConfigError, Unreachable, both with the remedy."""
    with Topics(config.kafka, config.timing) as topics:
        found = topics.describe(names, settings=False)
    missing = sorted(set(names) - found.keys())
    if missing:
        raise ConfigError(f"topic {', '.join(missing)}: it does not exist; run `relay migrate {shlex.quote(str(config.path))}`")

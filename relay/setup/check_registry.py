"""What ``relay check --connect`` asks of the schema registry: whether it is there, and takes the credentials."""

from __future__ import annotations

from relay.config.model import RelayConfig
from relay.kafka.registry import Registry
from relay.message.errors import ConfigError, Stopped, Unreachable
from relay.setup.check_topics import Findings


def check_registry(config: RelayConfig, findings: Findings) -> None:
    """Ask the registry, if there is one; what does not answer is a finding, not an error."""
    if config.registry is None:
        return
    try:
        registry = Registry(config.registry)
        try:
            registry.check()
        finally:
            registry.close()
    except Unreachable as away:
        findings.unreachable.append(str(away))
    except (ConfigError, Stopped) as wrong:
        findings.refused("registry", wrong, config.registry.url)
    else:
        findings.checked.append("schema registry")

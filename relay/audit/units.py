"""How captures without a database ended, from the topic of decisions: read anew, whatever a worker concluded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from relay.audit.ledger import Outcome
from relay.capture.decisions import unit_of
from relay.capture.resolver import State
from relay.config.model import RelayConfig
from relay.kafka import settings
from relay.kafka.decisions import DecisionLog
from relay.kafka.reading import PartitionReader
from relay.message.envelope import ResourceName
from relay.world import clock

_DEADLINE_S: Final = 30.0
_OUTCOME: Final = {State.COMMITTED: Outcome.COMMITTED, State.ABORTED: Outcome.ABORTED}


def outcomes(config: RelayConfig, captures: Mapping[bytes, ResourceName]) -> dict[bytes, Outcome]:
    """Return what is decided of these captures of units; the topic is read only if there are any.

    Raises Unreachable, Stuck.
    """
    if not captures:
        return {}
    given = settings.consumer(config.kafka, config.timing, f"{config.relay.name}.audit", log_level=0)
    log = DecisionLog(
        lambda committed: PartitionReader(given, committed=committed, clock=clock.monotonic, deadline_s=_DEADLINE_S),
        config.relay.name,
    )
    try:
        decisions = log.decisions()
    finally:
        log.close()
    states = {
        capture: decisions.resolve(capture, unit, resource.uuid).state
        for capture, resource in captures.items()
        if (unit := unit_of(resource)) is not None
    }
    return {capture: _OUTCOME[state] for capture, state in states.items() if state in _OUTCOME}

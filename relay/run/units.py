"""Messages of units without a database are asked about in the topic of decisions, all others at their resource."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from relay.capture.decisions import UnitDecisions, unit_of
from relay.capture.resolver import Resolution, State
from relay.kafka.decisions import DecisionLog
from relay.message.envelope import ResourceName
from relay.message.errors import RelayError, Stopped
from relay.run.resolving import Asks

log = structlog.get_logger("relay.units")


class AskingUnits:
    """Only reads decisions: a unit is decided by its driver, its next run or an operator. For the resolver's thread."""

    def __init__(self, resolver: Asks, open_log: Callable[[], DecisionLog]) -> None:
        self._resolver = resolver
        self._open = open_log
        self._log: DecisionLog | None = None
        self._contradictions = 0

    def resolve(self, captures: Sequence[tuple[bytes, ResourceName]]) -> dict[bytes, Resolution]:
        """Return what is known of each capture."""
        units = [
            (capture, name, resource.uuid) for capture, resource in captures if (name := unit_of(resource))
        ]
        of_units = {capture for capture, _, _ in units}
        rest = [one for one in captures if one[0] not in of_units]
        found = self._resolver.resolve(rest) if rest else {}
        if units:
            found.update(self._read(units))
        return found

    def _read(self, units: Sequence[tuple[bytes, str, str]]) -> dict[bytes, Resolution]:
        try:
            if self._log is None:
                self._log = self._open()
            decisions = self._log.decisions()
        except RelayError as away:
            # Retry: nothing is known, so nothing is decided; a decision that is being made ends within its timeout.
            log.warning("decisions not read", reason=str(away))
            return {capture: Resolution(State.UNREACHABLE, detail=str(away)) for capture, _, _ in units}
        if decisions.contradictions != self._contradictions:
            self._contradictions = decisions.contradictions
            log.error("a unit has two decisions; the first stands", seen=self._contradictions)
        return {capture: _asked(decisions, capture, unit, run) for capture, unit, run in units}


def _asked(decisions: UnitDecisions, capture: bytes, unit: str, run: str) -> Resolution:
    try:
        return decisions.resolve(capture, unit, run)
    except Stopped as other:
        # Go on: other units do. This one's messages wait for a version that can read what became of it.
        log.warning("decision not read", unit=unit, reason=str(other))
        return Resolution(State.UNREACHABLE, detail=str(other))

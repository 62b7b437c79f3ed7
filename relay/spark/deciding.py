"""What the driver does when every task is done: one decision for the unit, then markers that only hasten it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import structlog

from relay.capture.decisions import Attempt, Unit, UnitDecision
from relay.capture.outcomes import encode_marker, marker_headers
from relay.kafka.bulk import BulkAppender, BulkRecord
from relay.kafka.decisions import DecisionWriter
from relay.message.errors import CaptureError, RelayError
from relay.run.crash import crash_point
from relay.run.timing import Timing
from relay.spark.options import WriteOptions

log = structlog.get_logger("relay.spark")


def commit_unit(options: WriteOptions, unit: Unit, run: str, attempts: Sequence[Attempt]) -> UnitDecision:
    """Decide that these attempts count, unless the unit is decided; return the decision that stands.

    Raises CaptureError if this run was closed before, InDoubt if the decision's outcome cannot be found out now.
    """
    crash_point("spark.deciding")
    wanted = UnitDecision(unit, run, committed=True, attempts=tuple(attempts))
    stands = DecisionWriter(options.kafka, Timing(), options.relay).decide(wanted)
    crash_point("spark.decided")
    if not stands.committed:
        raise CaptureError(
            f"run {run} of unit {unit.name} was closed before it was done; its rows do not count, run the query again"
        )
    counted = {attempt.nonce for attempt in stands.attempts}
    if stands.run != run:
        log.info("decided before", unit=unit.name, run=run, by=stands.run)
    mark(options, stands, [attempt for attempt in attempts if attempt.nonce not in counted])
    crash_point("spark.marked")
    return stands


def abort_unit(options: WriteOptions, unit: Unit, run: str, attempts: Sequence[Attempt]) -> UnitDecision:
    """Close this run of the unit, unless the unit was committed after all; return the decision that stands."""
    wanted = UnitDecision(unit, run, committed=False)
    stands = DecisionWriter(options.kafka, Timing(), options.relay).decide(wanted)
    mark(options, stands, [] if stands.committed else attempts)
    return stands


def mark(options: WriteOptions, decision: UnitDecision, dropped: Sequence[Attempt]) -> None:
    """Append the outcome markers; without them, workers read the decision after ``marker_wait``."""
    appender = BulkAppender(options.kafka, Timing(), options.timeout_s)
    try:
        appender.append(_markers(decision, dropped))
        appender.flush()
    except RelayError as away:
        # Go on: the decision stands, and says the same to whoever asks.
        appender.discard()
        log.warning("markers not written", unit=decision.unit.name, reason=str(away))


def _markers(decision: UnitDecision, dropped: Sequence[Attempt]) -> Iterator[BulkRecord]:
    resource = decision.unit.resource(decision.run)
    source = f"/spark/{decision.unit.writer}".encode()
    for attempts, committed in ((decision.attempts, True), (dropped, False)):
        for attempt in attempts:
            value = encode_marker(attempt.capture, attempt.nonce if committed else None, None, [])
            headers = marker_headers(attempt.capture, source, resource)
            for place in attempt.places:
                yield place.topic, place.partition, attempt.capture, value, headers

"""What the driver does when every task is done: one decision for the unit, then markers that only hasten it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import structlog

from relay.capture.decisions import Attempt, Unit, UnitDecision
from relay.capture.outcomes import encode_marker, marker_headers
from relay.config.timing import Timing
from relay.kafka.bulk import BulkAppender, BulkRecord
from relay.kafka.decisions import DecisionWriter
from relay.message.errors import CaptureError, ConfigError, RelayError
from relay.spark.options import WriteOptions
from relay.world.crash import crash_point

log = structlog.get_logger("relay.spark")


class UnitDecider:
    """Decides one run of a unit, once, and marks it.

    Made before the rows are written, it is connected when they are: new clients may take half a second each. ``is_streams``: the
    batch has its number from a streaming query.
    """

    def __init__(self, options: WriteOptions, unit: Unit, run: str, *, is_streams: bool = False) -> None:
        self._options = options
        self._is_streams = is_streams
        self._unit = unit
        self._run = run
        self._decisions = DecisionWriter(options.kafka, Timing(), options.relay)
        self._decisions.connect(unit.writer)
        self._markers = BulkAppender(options.kafka, Timing(), options.timeout_s)

    def committed(self) -> UnitDecision | None:
        """Return the unit's commit, as far as one can tell without fencing anybody. Raises Unreachable, InDoubt."""
        stands = self._decisions.known(UnitDecision(self._unit, self._run, committed=True), is_streams=self._is_streams)
        return stands if stands is not None and stands.committed else None

    def commit(self, attempts: Sequence[Attempt]) -> UnitDecision:
        """Decide that these attempts count, unless the unit is decided; return the decision that stands.

        Raises CaptureError if this run was closed before, InDoubt if the decision's outcome cannot be found out now.
        """
        crash_point("spark.deciding")
        wanted = UnitDecision(self._unit, self._run, committed=True, attempts=tuple(attempts))
        stands = self._decisions.decide(wanted, is_streams=self._is_streams)
        crash_point("spark.decided")
        if not stands.committed:
            raise CaptureError(
                f"run {self._run} of unit {self._unit.name} was closed before it was done; its rows do not count, run the "
                "query again"
            )
        counted = {attempt.nonce for attempt in stands.attempts}
        if stands.run != self._run:
            log.info("decided before", unit=self._unit.name, run=self._run, by=stands.run)
        dropped = [attempt for attempt in attempts if attempt.nonce not in counted]
        mark(self._options, stands, dropped, self._markers)
        crash_point("spark.marked")
        return stands

    def abort(self, attempts: Sequence[Attempt]) -> UnitDecision:
        """Close this run of the unit, unless the unit was committed after all; return the decision that stands."""
        stands = self._decisions.decide(UnitDecision(self._unit, self._run, committed=False))
        mark(self._options, stands, [] if stands.committed else attempts, self._markers)
        return stands


def commit_unit(
    options: WriteOptions, unit: Unit, run: str, attempts: Sequence[Attempt], *, is_streams: bool = False
) -> UnitDecision:
    """Commit as ``UnitDecider`` does, where nothing can be connected beforehand."""
    return UnitDecider(options, unit, run, is_streams=is_streams).commit(attempts)


def abort_unit(options: WriteOptions, unit: Unit, run: str, attempts: Sequence[Attempt]) -> UnitDecision:
    """Abort as ``UnitDecider`` does, where nothing can be connected beforehand."""
    return UnitDecider(options, unit, run).abort(attempts)


def refuse_another_write(done: UnitDecision, topic: str | None, rows: int) -> None:
    """Raise ConfigError unless a write may be the repeat of the one that the unit was committed by: taken for that its rows were lost.

    ``topic`` is None where a column says it.
    """
    topics = done.topics
    if done.rows != rows or (topics and topic is not None and topics != [topic]):
        raise ConfigError(
            f"unit {done.unit.name} was committed by an earlier write, of {done.rows} rows into {', '.join(topics) or 'no topic'}; this one "
            f"has {rows}{f' for {topic}' if topic else ''}, of which none was captured: give each write a unit of its own"
        )


def mark(
    options: WriteOptions,
    decision: UnitDecision,
    dropped: Sequence[Attempt],
    appender: BulkAppender | None = None,
) -> None:
    """Append the outcome markers; without them, workers read the decision after ``marker_wait``."""
    appender = appender or BulkAppender(options.kafka, Timing(), options.timeout_s)
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

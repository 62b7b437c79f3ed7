"""What a task does: append its rows under a nonce of its own, wait until all are acknowledged, tell the driver.

Whatever happens to the task, nothing of it shows unless the driver's decision lists this very attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from relay.capture.decisions import Attempt, Unit, UnitDecision, batch_unit
from relay.config.timing import Timing
from relay.kafka.bulk import BulkAppender
from relay.kafka.decisions import DecisionWriter
from relay.message.errors import CaptureError, InDoubt
from relay.message.identity import NONCE_BYTES, capture_id
from relay.message.owned_topics import refuse_own_topic
from relay.spark.options import WriteOptions, check_topics
from relay.spark.rows import Labels, RowEncoder
from relay.world import randomness
from relay.world.crash import crash_point

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
"""Spark runs each start of a streaming query under a job group of its own: the run id."""
_runs_seen: set[str] = set()


@dataclass
class Appended(WriterCommitMessage):
    """What a finished attempt tells the driver; ``attempt`` is None if it had no rows or the unit was decided.

    ``passed_over`` are the rows that it had when the unit was decided.
    """

    unit: Unit
    run: str
    attempt: Attempt | None
    passed_over: int = 0

    @property
    def rows(self) -> int:
        """The rows that it had."""
        return self.passed_over if self.attempt is None else self.attempt.rows


def streaming_unit() -> tuple[Unit, str]:
    """Return the micro-batch that this task belongs to, and the run of its query; CaptureError if Spark does not say."""
    task = TaskContext.get()
    found = {
        key: task.getLocalProperty(key) if task is not None else None for key in (QUERY_ID, BATCH_ID, RUN_ID)
    }
    for key, value in found.items():
        if value is None:
            raise CaptureError(
                f"Spark does not tell its tasks the local property {key}, so a repeated batch could not be recognised; "
                "write with capture_batch in foreachBatch instead"
            )
    return batch_unit(str(found[QUERY_ID]), int(str(found[BATCH_ID]))), str(found[RUN_ID])


def append_rows(options: WriteOptions, unit: Unit, run: str, batches: Iterable[pa.RecordBatch]) -> Appended:
    """Append the rows of one attempt. Raises ConfigError, CaptureError, Unreachable: the attempt then never counts."""
    batches = iter(batches)
    if _is_repeat(options, unit, run):
        # Read to the end: operators before this one finish their state with their input.
        return Appended(unit, run, None, passed_over=sum(batch.num_rows for batch in batches))
    nonce = randomness.random_bytes(NONCE_BYTES)
    appender: BulkAppender | None = None
    encoder: RowEncoder | None = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if appender is None or encoder is None:
                encoder = _encoder(options, unit, run, nonce)
                appender = BulkAppender(options.kafka, Timing(), options.timeout_s)
            appender.append(encoder.records(batch))
            crash_point("spark.appending")
        if appender is None or encoder is None:
            return Appended(unit, run, None)
        appender.flush()
    except BaseException:
        if appender is not None:
            appender.discard()
        raise
    crash_point("spark.appended")
    return Appended(unit, run, Attempt(nonce, encoder.rows, tuple(sorted(encoder.places))))


def _encoder(options: WriteOptions, unit: Unit, run: str, nonce: bytes) -> RowEncoder:
    counts = check_topics(options, [options.topic] if options.topic else [])

    def count(topic: str) -> int:
        if topic not in counts:
            refuse_own_topic(options.relay, topic)
            counts.update(check_topics(options, [topic]))
        return counts[topic]

    task = TaskContext.get()
    source = options.source or f"/spark/{unit.writer}"
    labels = Labels(
        capture_id(nonce),
        unit.resource(run).encode(),
        source.encode(),
        task.partitionId() if task is not None else 0,
    )
    return RowEncoder(options, labels, count)


def _is_repeat(options: WriteOptions, unit: Unit, run: str) -> bool:
    """Is the unit decided already? Only the first batch of a run can be, so each worker asks once a run; it is no more
    than a saving: whatever a repeat appends is not listed by the decision."""
    if run in _runs_seen:
        return False
    try:
        stands = DecisionWriter(options.kafka, Timing(), options.relay).known(
            UnitDecision(unit, run, committed=True)
        )
    except InDoubt:
        return False  # a decision is being made: append, and let the driver find out
    _runs_seen.add(run)
    return stands is not None and stands.committed


def attempts_of(messages: Iterable[Any]) -> list[Attempt]:
    """Return the attempts that finished, from the commit messages of a job (None for a task that failed)."""
    return [one.attempt for one in messages if one is not None and one.attempt is not None]

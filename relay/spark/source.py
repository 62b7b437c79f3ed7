"""``format("relay")``: Spark's Python data source. Tasks append, the driver decides; each unit takes effect once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from relay.capture.decisions import Unit, named_unit
from relay.message.errors import CaptureError, ConfigError
from relay.spark.deciding import abort_unit, commit_unit, refuse_another_write
from relay.spark.following import SCHEMA, CommittedReader
from relay.spark.options import WriteOptions, check_topics, read_options
from relay.spark.rows import check_schema
from relay.spark.writing import Appended, append_rows, attempts_of, streaming_unit
from relay.world import randomness

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def register(spark: SparkSession) -> None:
    """Make ``format("relay")`` known to this session. ConfigError for another Spark or Java, or a missing pyarrow."""
    from relay.jobs.session import examine, hide_keys  # noqa: PLC0415 - the driver's business, not the tasks'

    examine(spark, needs=())
    hide_keys(spark)
    context = spark.sparkContext
    if (context.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable  # Spark's own choice, python3, may be one without the relay
    spark.dataSource.register(RelaySource)


class RelaySource(DataSource):
    """Writes rows to the log, and follows it as a stream; the options are those of ``relay.spark.options``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = read_options(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "relay"

    def schema(self) -> str:
        """Return the columns of the log as it is read."""
        return SCHEMA

    def reader(self, schema: StructType) -> NoReturn:  # noqa: ARG002 - Spark's name
        """Refuse a batch read. Raises ConfigError."""
        raise ConfigError(
            'format("relay") is read as a stream only (spark.readStream); relay.spark.committed reads what counts by now, as a batch'
        )

    def streamReader(self, schema: StructType) -> CommittedReader:  # noqa: ARG002, N802 - Spark's names
        """Return the reader that follows the log."""
        if self._options.topic is None:
            raise ConfigError('option("topic", NAME) is missing: the topic to follow')
        check_topics(self._options, [self._options.topic])
        return CommittedReader(self._options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch write; everything that can be refused is refused here, before any row."""
        options = self._options
        if overwrite:
            raise ConfigError('mode("overwrite"): the log is only appended to; use mode("append")')
        if options.unit is None:
            raise ConfigError(
                'option("unit", NAME) is missing: the name by which a repeat of this write is recognised, such as '
                '"load-2026-11-21"'
            )
        check_schema(schema, options)
        check_topics(options, [options.topic] if options.topic else [])
        return BatchWriter(options, named_unit(options.unit), str(UUID(bytes=randomness.uuid_bytes())))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802 - Spark's names
        """Return the writer of a streaming query; Spark asks for it again for each batch, and for each commit."""
        if self._options.unit is not None:
            raise ConfigError(
                'option("unit", ..) is for batch writes; a streaming query numbers its batches itself'
            )
        check_schema(schema, self._options)
        return StreamWriter(self._options)


class BatchWriter(DataSourceArrowWriter):
    """One batch write: the unit has the user's name, the run is drawn where the write is planned."""

    def __init__(self, options: WriteOptions, unit: Unit, run: str) -> None:
        self._options = options
        self._unit = unit
        self._run = run

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append the rows of one task."""
        return append_rows(self._options, self._unit, self._run, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decide: every task is done. Raises ConfigError if an earlier write that was another one has the unit's name."""
        stands = commit_unit(self._options, self._unit, self._run, attempts_of(messages))
        if stands.run != self._run:
            refuse_another_write(stands, self._options.topic, sum(one.rows for one in messages if isinstance(one, Appended)))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Close this run."""
        abort_unit(self._options, self._unit, self._run, attempts_of(messages))


class StreamWriter(DataSourceStreamWriter, DataSourceArrowWriter):
    """The micro-batches of one query. It is also an Arrow writer: Spark 4.0 then hands over columns instead of rows."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append the rows of one task."""
        unit, run = streaming_unit()
        return append_rows(self._options, unit, run, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Decide: every task is done."""
        unit, run = self._unit(messages, batchId)
        commit_unit(self._options, unit, run, attempts_of(messages), is_streams=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Close this run, if a task was done and told its name; else the unit's next run decides without it."""
        if any(message is not None for message in messages):
            unit, run = self._unit(messages, batchId)
            abort_unit(self._options, unit, run, attempts_of(messages))

    def _unit(self, messages: list[Any], batch: int) -> tuple[Unit, str]:
        told = {(message.unit, message.run) for message in messages if message is not None}
        if len(told) != 1 or next(iter(told))[0].ordinal != batch:
            raise CaptureError(
                f"batch {batch}: its tasks tell {len(told)} units instead of this one; nothing is decided, run it again"
            )
        return next(iter(told))

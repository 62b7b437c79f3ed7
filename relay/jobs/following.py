"""A streaming query of a job: its batches are shown as they end, and its failure is one sentence, not a stack."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.jobs.session import cause, refused, say
from relay.message.errors import ConfigError, RelayError, Unreachable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WAIT_S: Final = 2
Batch = Callable[["DataFrame", int], object]
Place = Path | str
"""A folder or a file where Spark finds it; an address stays a text, of which a path would fold the slashes before the host or bucket."""


@contextmanager
def using_places() -> Iterator[None]:
    """Turn what Java says of a folder or an address that Spark cannot use into one sentence. Raises ConfigError, Unreachable."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with PySpark

    try:
        yield
    except Py4JJavaError as error:
        words = cause(error)
        if any(kind in words for kind in ("Connect", "UnknownHost", "Timeout")):
            raise Unreachable(f"where the job writes or keeps its progress does not answer ({words}); the job may be run again") from error
        raise ConfigError(
            f"Spark cannot use where the job writes or keeps its progress ({words}); name another folder or address, or bring what is missing: "
            "the right to write there, the jars of its file system"
        ) from error


class Following:
    """Runs one streaming query, until it has taken what is there or, with ``trigger_s``, until it is stopped.

    ``anew`` is the job's option that begins another query at the log's beginning.
    """

    def __init__(self, name: str, *, checkpoint: Place, trigger_s: float | None, anew: str = "--name") -> None:
        self._name = name
        self._checkpoint = checkpoint
        self._trigger_s = trigger_s
        self._anew = anew
        self._failure: RelayError | None = None
        self._last_batch = -1
        self.rows = 0
        self.batches = 0
        self.late = 0
        """Rows that came behind a watermark, and were dropped there."""

    def capture(self, frame: DataFrame, batch: Batch) -> None:
        """Hand each micro-batch to ``batch``; raises what it raised, or Unreachable."""

        def guarded(rows: DataFrame, number: int) -> None:
            try:
                batch(rows, number)
            except RelayError as error:
                self._failure = error
                raise
            except Exception as error:
                # Spark would tell of it as of a traceback.
                self._failure = _sentence(self._name, str(error), self._checkpoint, self._anew, cause(error))
                raise

        self.write(frame.writeStream.foreachBatch(guarded))

    def write(self, writer: DataStreamWriter) -> None:
        """Start the query and follow it to its end."""
        writer = writer.option("checkpointLocation", str(self._checkpoint)).queryName(self._name)
        if self._trigger_s is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._trigger_s:g} seconds")
        with using_places():
            query = writer.start()
        try:
            self._follow(query)
        except KeyboardInterrupt:
            say(f"{self._name}: stopping", sys.stderr)
        finally:
            query.stop()

    def _follow(self, query: StreamingQuery) -> None:
        from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - see the package

        try:
            while not query.awaitTermination(WAIT_S):
                self._show(query)
            self._show(query)
        except StreamingQueryException as error:
            # A failure round a capture's commit is raised as it was: that one knows whether it aborts or is in doubt.
            if self._failure is not None:
                raise self._failure from error
            raise _sentence(self._name, str(error), self._checkpoint, self._anew) from error

    def _show(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            number, rows = int(progress["batchId"]), int(progress["numInputRows"])
            if number > self._last_batch and rows:
                self._last_batch = number
                self.rows += rows
                self.batches += 1
                late = sum(int(one["numRowsDroppedByWatermark"]) for one in progress["stateOperators"])
                self.late += late
                too_late = f", {late:,} of them too late" if late else ""
                say(f"{self._name}: batch {number}: {rows:,} rows{too_late}, {self.rows:,} in all", sys.stderr)


def refuse_lost_checkpoint(
    spark: SparkSession, relay: str, kafka: Mapping[str, str], query: str, checkpoint: Place
) -> None:
    """Raise ConfigError if the query has captured a batch that the checkpoint knows nothing of: it is new, or went back.

    Spark would give numbers of batches that are decided to new ones, whose rows would be taken for captured. It writes down what a batch
    has before it runs it, so that a checkpoint in its place knows every batch that can be decided.
    """
    planned = last_planned(spark, checkpoint)
    if has_captured(relay, kafka, query, behind=planned):
        raise ConfigError(
            f"--checkpoint {checkpoint}: it {'is new' if planned < 0 else f'ends with batch {planned}'}, but {query} has captured before what "
            "comes behind that, and new rows would be taken for those of such a batch; bring the checkpoint back, or choose another --name"
        )


def has_captured(relay: str, kafka: Mapping[str, str], query: str, *, behind: int) -> bool:
    """Has a batch of the query been committed that comes behind the one of this number?"""
    from relay.spark.following import decision_log, decisions_now  # noqa: PLC0415 - see the package

    log = decision_log(relay, kafka)
    try:
        return decisions_now(log, relay).has_batches_of(query, behind=behind)
    finally:
        log.close()


def last_planned(spark: SparkSession, checkpoint: Place) -> int:
    """Return the last batch that a checkpoint knows, -1 if it knows none: Spark writes down there what a batch has before it runs it."""
    return _last(spark, f"{checkpoint}/offsets")


def last_ended(spark: SparkSession, checkpoint: Place) -> int:
    """Return the last batch that a checkpoint knows to be done, -1 if it knows none."""
    return _last(spark, f"{checkpoint}/commits")


def taken(spark: SparkSession, checkpoint: Place) -> dict[str, dict[int, int]]:
    """Return up to where a query over Kafka topics has ended its batches: topic -> partition -> the next offset.

    Read from the checkpoint (Spark's commits and offsets, one file for each batch), so that it also holds after a run
    that died behind its last batch.
    """
    last = last_ended(spark, checkpoint)
    found: dict[str, dict[int, int]] = {}
    for line in kept(spark, f"{checkpoint}/offsets/{last}").decode().splitlines():
        if line.startswith("{") and '"batchWatermarkMs"' not in line:
            for topic, offsets in orjson.loads(line).items():
                found[topic] = {int(partition): int(offset) for partition, offset in offsets.items()}
    return found


@using_places()
def exists(spark: SparkSession, path: Place) -> bool:
    """Look where Spark itself looks: with a scheme, or on a cluster, that is another file system than this machine's."""
    system, found = _located(spark, path)
    return bool(system.exists(found))


@using_places()
def names(spark: SparkSession, path: Place) -> list[str]:
    """Return what a folder has, nothing if there is none."""
    system, found = _located(spark, path)
    return sorted(str(one.getPath().getName()) for one in system.listStatus(found)) if system.exists(found) else []


@using_places()
def qualified(spark: SparkSession, path: str) -> str:
    """Return a path as Spark knows it, however it is written: with its file system, from the root, without detours."""
    system, found = _located(spark, path)
    return str(system.makeQualified(found).toString())


@using_places()
def rename(spark: SparkSession, path: Place, to: Place) -> None:
    """Give a folder another name. Raises Unreachable."""
    system, found = _located(spark, path)
    if not system.rename(found, _located(spark, to)[1]):
        raise Unreachable(f"{path} cannot be renamed to {to}: do so by hand, then run the job again")


@using_places()
def keep(spark: SparkSession, path: Place, content: bytes) -> None:
    """Write a small file whole or not at all, in the place of one that there is. Raises Unreachable."""
    system, written = _located(spark, f"{path}.new")
    stream = system.create(written, True)
    try:
        stream.write(bytearray(content))
    finally:
        stream.close()
    system.delete(_located(spark, path)[1], False)
    rename(spark, f"{path}.new", path)


@using_places()
def kept(spark: SparkSession, path: Place) -> bytes:
    """Return what was written there, nothing where nothing was, or where its writer was killed between two steps.

    Not by a reader of Spark's: it takes brackets and stars in a path for a pattern, and finds nothing, or what lies elsewhere.
    """
    system, found = _located(spark, path)
    if not system.exists(found):
        return b""
    java: Any = spark
    stream = system.open(found)
    try:
        return bytes(java._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))  # noqa: SLF001 - the only way to Spark's file systems
    finally:
        stream.close()


def _located(spark: SparkSession, path: Place) -> tuple[Any, Any]:
    java: Any = spark
    found = java._jvm.org.apache.hadoop.fs.Path(str(path))  # noqa: SLF001 - the only way to Spark's file systems
    return found.getFileSystem(java._jsc.hadoopConfiguration()), found  # noqa: SLF001


def _last(spark: SparkSession, folder: Place) -> int:
    """Return the highest number by which a file of a folder is called, -1 if none is."""
    return max((int(name) for name in names(spark, folder) if name.isdigit()), default=-1)


def _sentence(name: str, text: str, checkpoint: Place, anew: str, words: str = "") -> RelayError:
    """Name the cause in a failure of Spark, in ``words`` if they are known: what a row or a file says wrongly is the user's, the rest may pass."""
    said = text.partition("=== Streaming Query ===")[0]
    words = " ".join((words or said.partition("terminated with exception: ")[2] or text).split())[:400]
    if (of_a_row := refused(f"query {name}", words)) is not None:
        return of_a_row
    if "failOnDataLoss" in text:
        return ConfigError(
            f"query {name}: its --checkpoint {checkpoint} stands at offsets that have left the log ({words}); what lay there is "
            f"not taken: keep the topic longer, and begin anew at its beginning with another {anew}"
        )
    # Classes that a call went through have such words in their names, whatever failed.
    said = "\n".join(line for line in said.splitlines() if not line.lstrip().startswith("at "))
    if any(kind in said for kind in ("MALFORMED", "CSV", "FAILED_READ_FILE", "schema", "SCHEMA")):
        return ConfigError(f"query {name}: the data does not fit: {words}; correct the file or give --schema")
    return Unreachable(f"query {name} failed: {words}; the job may be run again")

"""Spark as subscriber: the log as it counts, each message once; nothing of an aborted or undecided capture.

``committed`` reads the log as it stands now. ``committed_stream`` follows it: a micro-batch ends where everything before is
decided, and decisions are final, so a repeated batch has the same rows. A message whose capture nobody has decided
yet, or of a database whose marker is still missing, holds its partition's rows back instead of being guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from relay.capture.outcomes import decode_marker
from relay.jobs.records import Broker, java_settings, read
from relay.message import envelope
from relay.message.record import LogPartition
from relay.spark.following import decision_log, decisions_now
from relay.spark.options import check_kafka

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS: Final = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "key",
    "value",
    "headers",
    "source",
    "id",
    "type",
)


def committed(
    spark: SparkSession,
    *,
    relay: str,
    topics: Sequence[str],
    kafka: Mapping[str, str],
    deduplicate: bool = True,
) -> DataFrame:
    """Return every message of the topics that counts by now.

    Of each (source, id) it is the first one only, unless ``deduplicate`` is False; a message without an id repeats no other.
    Columns: topic, partition, offset, timestamp, key, value, headers, source, id, type. ``kafka`` has librdkafka's names.
    Raises ConfigError, Unreachable.
    """
    check_kafka(kafka)
    java = java_settings(kafka)
    broker = Broker(spark, java)
    places = [LogPartition(topic, number) for topic in topics for number in range(broker.partitions(topic))]
    begins, ends = broker.begins(places), broker.ends(places)
    ranges = {place: (begins[place], ends[place]) for place in places}
    broker.wait_until_stable(ranges)
    # The decisions are read after the ends were taken: a unit that is decided later is left out whole.
    decided = [(capture,) for capture in decisions_now(decision_log(relay, kafka), relay).captures()]
    records = read(spark, java, ranges).select("*", _header(envelope.TYPE).alias("type_raw"))
    named_as_key = _header(envelope.CAPTURE).cast("string") == sql.lower(sql.hex("key"))
    of_marker = (sql.col("type_raw") == sql.lit(envelope.OUTCOME_TYPE.encode())) & named_as_key
    is_marker = sql.coalesce(of_marker, sql.lit(False))  # the type alone says nothing: see capture/outcomes
    marked = records.where(is_marker).select("key", "value").mapInArrow(_proved, "capture binary")
    counted = marked.union(spark.createDataFrame(decided, "capture binary")).distinct()
    messages = records.where(~is_marker)
    named = messages.select(
        "topic", "partition", "offset", "timestamp", "key", "value", "headers",
        sql.coalesce(_filled(envelope.SOURCE).cast("string"), "topic").alias("source"),
        _filled(envelope.ID).cast("string").alias("id"), sql.col("type_raw").cast("string").alias("type"),
        _header(envelope.CAPTURE).cast("string").alias("capture_hex"),
    )  # fmt: skip
    joined = named.join(
        sql.broadcast(counted.select(sql.lower(sql.hex("capture")).alias("counted"))),
        sql.lower("capture_hex") == sql.col("counted"), "left",
    )  # fmt: skip
    shown = joined.where(~_names_capture() | sql.col("counted").isNotNull())
    return _outgoing(_first_of_each(shown) if deduplicate else shown)


def committed_stream(
    spark: SparkSession, *, relay: str, topic: str, kafka: Mapping[str, str], horizon: str | None = "7 days"
) -> DataFrame:
    """Return the same rows as a stream, from the log's beginning on; needs ``register``.

    A repeated (source, id) is dropped within ``horizon`` of when the first one was read (None: kept). Raises ConfigError.
    """
    check_kafka(kafka)
    reader = spark.readStream.format("relay").option("relay", relay).option("topic", topic)
    for key, value in kafka.items():
        reader = reader.option(f"kafka.{key}", value)
    rows = reader.load()
    return rows if horizon is None else _each_once(rows, horizon)


def _header(name: str) -> Column:
    """Return the last value of a header."""
    found = sql.filter("headers", lambda header: header["key"] == name)
    return sql.try_element_at(found, sql.lit(-1))["value"]


def _names_capture() -> Column:
    """Is there the header that names a capture? What is null or malformed in it belongs to none that could count, as for workers."""
    return sql.coalesce(sql.exists("headers", lambda header: header["key"] == envelope.CAPTURE), sql.lit(False))


def _filled(name: str) -> Column:
    """Return the last value of a header, null for an empty one: an id or a source that is empty is none."""
    found = _header(name)
    return sql.when(sql.length(found) > 0, found)


def _proved(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the captures whose committed markers prove themselves."""
    import pyarrow as pa  # noqa: PLC0415 - in the task

    for batch in batches:
        found: list[Any] = []
        for key, value in zip(
            batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
        ):
            name = (key or b"").hex().encode()
            headers = [(envelope.TYPE, envelope.OUTCOME_TYPE.encode()), (envelope.CAPTURE, name)]
            marker = decode_marker(key, value, headers)
            if marker is not None and marker.proved:
                found.append(marker.capture)
        yield pa.record_batch([pa.array(found, pa.binary())], names=["capture"])


def _first_of_each(rows: DataFrame) -> DataFrame:
    place = sql.concat_ws("/", "topic", "partition", "offset")
    same = Window.partitionBy("source", sql.coalesce("id", place)).orderBy("topic", "partition", "offset")
    return rows.withColumn("repeat", sql.row_number().over(same)).where("repeat = 1")


def _each_once(rows: DataFrame, horizon: str) -> DataFrame:
    """Drop what repeats within the horizon of the batches' own time, which a batch that is run again keeps.

    By the messages' times Spark would drop, as come too late, all that is a horizon older than the newest: a message that a capture
    held back for long, or that was published with an old time, and everything once one has a time that lies ahead.
    """
    place = sql.concat_ws("/", "topic", "partition", "offset")
    # What is not UTF-8 reads as one character, whatever it was: only its bytes tell such ids and sources apart, as they do for workers.
    raw = sql.concat_ws("/", sql.hex(_filled(envelope.SOURCE)), sql.hex(_filled(envelope.ID)))
    is_unread = sql.concat("source", "id").contains("\N{REPLACEMENT CHARACTER}")
    identity = sql.when(is_unread, raw).otherwise(sql.coalesce("id", place))
    named = rows.withColumns({"identity": identity, "read_at": sql.current_timestamp()})
    kept = named.withWatermark("read_at", horizon).dropDuplicatesWithinWatermark(["source", "identity"])
    return kept.drop("identity", "read_at")


def _outgoing(rows: DataFrame) -> DataFrame:
    kept = sql.filter("headers", lambda header: ~header["key"].isin(sorted(envelope.LOG_ONLY_HEADERS)))
    return rows.withColumn("headers", kept).select(*_COLUMNS)

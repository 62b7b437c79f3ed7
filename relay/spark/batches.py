"""``capture_batch``: inside ``foreachBatch``, one capture through the JVM's Kafka sink, at that sink's speed.

That sink repeats the rows of a retried task, so a batch must be repeatable: with an id column each row says who it is;
without one the batch is put into a reliable checkpoint first, and its rows are numbered there. A row goes where its
partition or key says, else its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from pyspark.sql import functions as sql

from relay.capture.decisions import Attempt, UnitDecision, batch_unit
from relay.jobs.records import java_settings
from relay.jobs.session import hide_keys
from relay.message.envelope import LOG_ONLY_HEADERS
from relay.message.errors import ConfigError
from relay.message.identity import NONCE_BYTES
from relay.message.owned_topics import refuse_own_topic
from relay.message.record import LogPartition
from relay.spark.columns import header_column, named, refuse_alike, utc_text
from relay.spark.deciding import UnitDecider
from relay.spark.options import WriteOptions, check_kafka, check_sink, check_topics
from relay.spark.writing import BATCH_ID, QUERY_ID
from relay.world import randomness
from relay.world.crash import crash_point

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COLUMNS: Final = frozenset(
    {"key", "value", "headers", "partition", "id", "source", "type", "subject", "time"}
)
_OF_QUERY: Final = 8
_BEHIND_QUERY: Final = "."
_SINK: Final = {"kafka.acks": "all", "kafka.enable.idempotence": "true", "kafka.compression.type": "lz4"}


def capture_batch(
    df: DataFrame,
    batch_id: int,
    *,
    relay: str,
    topic: str,
    kafka: Mapping[str, str],
    sink: Mapping[str, str] | None = None,
    query: str | None = None,
    source: str | None = None,
    type: str = "relay.message",  # noqa: A002 - the attribute's name
) -> bool:
    """Write ``df`` as the capture of (query, batch); return False if that was done before, and then nothing is written.

    ConfigError if that was into another topic: whoever writes into several gives each a query's name of its own. Also if a streaming
    query's later batch was written before: its checkpoint went back, and the batch has other rows by now. And if a query with another
    checkpoint, which numbers its batches by itself, wrote it under the same name.

    Columns: value, and optionally key, headers, partition, id, source, type, subject, time. ``kafka`` has librdkafka's names, as
    in the relay's configuration; ``sink`` further options of Spark's Kafka sink (``kafka.*`` with the JVM's names).
    Without a column id the session needs a checkpoint directory. Raises ConfigError before any row is written,
    CaptureError, InDoubt, Unreachable.
    """
    check_kafka(kafka)
    check_sink(sink or {})
    options = WriteOptions(relay, dict(kafka), topic, source=source, type=type)
    told = df.sparkSession.sparkContext.getLocalProperty
    query = query or told(QUERY_ID)
    if not query:
        raise ConfigError(
            "capture_batch is not inside foreachBatch, so no query names the batch: give query=, a name that stays"
        )
    unit = batch_unit(query, batch_id)
    refuse_own_topic(relay, topic)
    partitions = check_topics(options, [topic])[topic]
    _check(df)
    refuse_alike(df, {name: name for name in df.columns if name != "headers"})
    is_streams = told(BATCH_ID) == str(batch_id)
    run = new_run(told(QUERY_ID) if is_streams else None)
    decider = UnitDecider(options, unit, run, is_streams=is_streams)
    if (done := decider.committed()) is not None:
        refuse_another_topic(done, topic)
        refuse_another_checkpoint(done, run)
        return False
    hide_keys(df.sparkSession)
    nonce = randomness.random_bytes(NONCE_BYTES)
    attempt = Attempt(nonce, 0, tuple(LogPartition(topic, number) for number in range(partitions)))
    rows = df if "id" in df.columns else _numbered(df, run)
    try:
        settings = {
            **_SINK,
            **{f"kafka.{key}": value for key, value in java_settings(kafka).items()},
            **(sink or {}),
        }
        made = _records(rows, options, unit.writer, attempt.capture, unit.resource(run).encode(), partitions)
        made.write.format("kafka").options(**settings).option("topic", topic).save()
        crash_point("spark.appended")
    except BaseException:
        # Abort: nothing is decided yet, so the rows of this run may not count; the query's next start runs it again.
        decider.abort([attempt])
        raise
    stands = decider.commit([attempt])
    refuse_another_topic(stands, topic)
    refuse_another_checkpoint(stands, run)
    return stands.run == run


def new_run(query_id: str | None) -> str:
    """Return the name of a new run; of a streaming query it begins with what its checkpoint has of Spark's id for the query."""
    name = str(UUID(bytes=randomness.uuid_bytes()))
    return name if query_id is None else f"{query_id[:_OF_QUERY]}{_BEHIND_QUERY}{name}"


def refuse_another_checkpoint(done: UnitDecision, run: str) -> None:
    """Raise ConfigError if a query with another checkpoint captured the batch: it had rows of its own, and this one's were lost."""
    (theirs, said, _), (ours, known, _) = done.run.partition(_BEHIND_QUERY), run.partition(_BEHIND_QUERY)
    if said and known and theirs != ours:
        raise ConfigError(
            f"batch {done.unit.ordinal} of {done.unit.writer} was captured by another query of this name, which has another checkpoint: the rows "
            "that are the batch here are not captured; give each query a name of its own (query=, --name), here with a new checkpoint"
        )


def refuse_another_topic(done: UnitDecision, topic: str) -> None:
    """Raise ConfigError if the batch was captured into another topic: it is not done, and taken for done its rows were lost."""
    topics = done.topics
    if topics and topic not in topics:
        raise ConfigError(
            f"batch {done.unit.ordinal} of {done.unit.writer} was captured into {', '.join(topics)}, and would be passed over for {topic}: "
            "a batch is one capture; give query= a name for each topic"
        )


def _check(df: DataFrame) -> None:
    for name in df.columns:
        if name not in _COLUMNS:
            raise ConfigError(
                f"column {name}: not one that is written; leave it out, or put it into value (to_json). The columns are "
                f"{', '.join(sorted(_COLUMNS))}"
            )
    if "value" not in df.columns:
        raise ConfigError("column value is missing: it is the message (binary or string)")
    if "id" not in df.columns and not df.sparkSession.sparkContext.getCheckpointDir():
        raise ConfigError(
            "the batch may not be repeatable: add a column id that names each row, or set a reliable checkpoint directory "
            "(sparkContext.setCheckpointDir) so that it can be made so"
        )
    names = df.columns
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise ConfigError(f"column {twice} is there more than once; select the one that is meant (a join keeps those of both sides)")


def _numbered(df: DataFrame, run: str) -> DataFrame:
    """Fix the batch in a reliable checkpoint, then name each row by (run, partition, row number)."""
    fixed = df.checkpoint(eager=True)
    number = sql.monotonically_increasing_id()  # the partition in its upper 31 bits, the row in its lower 33
    return fixed.withColumn("id", sql.concat(sql.lit(f"{run}-"), number.cast("string")))


def _records(
    df: DataFrame, options: WriteOptions, writer: str, capture: bytes, resource: bytes, partitions: int
) -> DataFrame:
    names = df.columns
    attributes: dict[str, Column] = {
        "ce_specversion": sql.lit("1.0"),
        "ce_source": sql.lit(options.source or f"/spark/{writer}"),
        "ce_type": sql.lit(options.type),
        "ce_relaycapture": sql.lit(capture.hex()),
        "ce_relayresource": sql.lit(resource.decode()),
    }
    for name in ("source", "type", "subject"):
        if name in names:
            given = sql.col(name).cast("string")
            default = attributes.get(f"ce_{name}")  # a row that does not say it is called what one without the column is
            attributes[f"ce_{name}"] = given if default is None else sql.coalesce(given, default)
    attributes["ce_id"] = named(sql.col("id").cast("string"))
    if "time" in names:
        attributes["ce_time"] = utc_text(df, "time")
    headers = header_column(attributes)
    if "headers" in names:
        given = sql.coalesce(sql.col("headers"), sql.array().cast("array<struct<key:string,value:binary>>"))
        ours = sorted(attributes.keys() | LOG_ONLY_HEADERS)
        headers = sql.concat(sql.filter(given, lambda pair: ~pair["key"].isin(ours)), headers)
    columns = [sql.col("value").cast("binary").alias("value"), headers.alias("headers")]
    if "key" in names:
        columns.append(sql.col("key").cast("binary").alias("key"))
    columns.append(_placed(names, options.topic or "", partitions).alias("partition"))
    return df.select(*columns)


def _placed(names: Sequence[str], topic: str, partitions: int) -> Column:
    """Return the partition of each row; null leaves it to the sink, which places a key and repeats that for a repeat.

    A row without a key is placed by its id: the sink would put the repeat of a retried task anywhere, and repeats are
    known within a partition only. A number that the topic does not have stops the batch: the sink would wait a minute for it.
    """
    by_id = sql.pmod(sql.crc32(sql.col("id").cast("string").cast("binary")), sql.lit(partitions)).cast("int")
    found = sql.when(sql.col("key").isNull(), by_id) if "key" in names else by_id
    if "partition" not in names:
        return found
    given = sql.col("partition")
    number = given.try_cast("bigint")  # null for a text that is no number, which the task would fail of otherwise
    words = sql.lit("column partition is "), given.cast("string"), sql.lit(f", but topic {topic} has {partitions} partitions")
    refused = sql.raise_error(sql.concat(*words))
    is_there = number.between(0, partitions - 1) & (given.try_cast("double") == number)
    return sql.when(given.isNull(), found).when(is_there, number.cast("int")).otherwise(refused)

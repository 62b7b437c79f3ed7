"""Joins the messages of several topics into one: same key, same time window; what comes of it is captured once.

The first topic leads: each of its messages meets those of the other topics that have its key and lie in its window.
Time is the messages' own (ce_time, else the record's, also where ce_time is further ahead of that than the watermark
allows); what comes later than the watermark allows finds no partner, and is counted.
Name topics that a route delivers: a log also holds what was never committed. Run it with ``relay spark correlate --help``.
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.jobs import session
from relay.jobs.following import Following, Place, keep, kept, refuse_lost_checkpoint, taken
from relay.jobs.records import Broker, java_settings
from relay.message.envelope import CAPTURE, ID, PARENTS, SOURCE, TIME
from relay.message.errors import ConfigError
from relay.message.owned_topics import refuse_own_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_JOIN = "relay-join.json"


def main(arguments: Sequence[str]) -> int:
    """Run the job: 0 done, 1 refused by a check, 2 wrong words or parts, 3 unreachable."""
    options = _parse(arguments)
    return session.run("correlate", lambda: _run(options))


def _parse(arguments: Sequence[str]) -> Namespace:
    parser = session.parser("correlate", __doc__ or "")
    parser.add_argument("config", help="the configuration, such as relay.toml")
    parser.add_argument("--topic", action="append", required=True, help="repeat it: the first one leads")
    parser.add_argument("--to", required=True, help="the log topic of the joined messages")
    parser.add_argument(
        "--name", type=session.filled, required=True, help="what this join is called; its progress is kept under the name"
    )
    parser.add_argument(
        "--on",
        metavar="POINTERS",
        default="key",
        help="what must be equal: key, or JSON pointers by commas (/origin)",
    )
    parser.add_argument("--window", type=session.count, default=3600, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument(
        "--watermark", type=session.count, default=3600, metavar="SECONDS", help="how late a message may come"
    )
    parser.add_argument(
        "--outer", action="store_true", help="also what finds no partner, once the watermark passed it"
    )
    parser.add_argument(
        "--type", default="relay.correlated", help="the joined messages' type (default: %(default)s)"
    )
    parser.add_argument(
        "--checkpoint", metavar="FOLDER", help="where progress is kept, a folder or an address that Spark knows (default: under the relay's state)"
    )
    parser.add_argument(
        "--follow", type=session.period, metavar="SECONDS", help="go on, looking for messages this often"
    )
    return parser.parse_args(arguments)


def _run(options: Namespace) -> int:
    if len(options.topic) < 2:
        raise ConfigError("--topic: name at least two topics to join")
    if len({*options.topic}) < len(options.topic):
        raise ConfigError(f"--topic {', '.join(options.topic)}: name each topic once; a joined message has one part of each")
    if options.to in options.topic:
        raise ConfigError(f"--to {options.to}: it is one of those that are joined; name a log topic, which a route of its own delivers")
    config = load(Path(options.config))
    refuse_own_topic(config.relay.name, options.to, "--to")
    java = java_settings(config.kafka)
    # Each shuffle partition keeps state of its own: the machine's cores are enough for one broker's stream.
    spark = session.start("correlate", options.master, spark__sql__shuffle__partitions="4")
    broker = Broker(spark, java)
    for topic in options.topic:
        broker.partitions(topic)
    partitions = broker.partitions(options.to)
    joined = _joined(spark, java, options)
    messages = _messages(joined, options, partitions)
    checkpoint = options.checkpoint or config.relay.state / "spark" / f"correlate-{options.name}"
    refuse_lost_checkpoint(spark, config.relay.name, config.kafka, f"correlate-{options.name}", checkpoint)
    _refuse_other_topics(list(taken(spark, checkpoint)), options)
    _refuse_another_join(spark, checkpoint, options)
    following = Following(options.name, checkpoint=checkpoint, trigger_s=options.follow)
    counted = {"joined": 0}

    def capture(batch: DataFrame, number: int) -> None:
        counted["joined"] += _capture(batch, number, config, options)

    following.capture(messages, capture)
    report = {"to": options.to, "messages": following.rows, "joined": counted["joined"], "late": following.late}
    said = f"{counted['joined']:,} joined messages were captured into {options.to}, of {following.rows:,} that came"
    if following.late:
        said += f"; {following.late:,} came too late for the watermark and found no partner: --watermark says how late they may come"
    session.say(orjson.dumps(report).decode() if options.json else said)
    return 0


def _refuse_other_topics(joined: Sequence[str], options: Namespace) -> None:
    """Raise ConfigError where the name has joined other topics, or the same in another order: Spark knows its sources by their order."""
    if joined and list(joined) != options.topic:
        raise ConfigError(
            f"--topic {', '.join(options.topic)}: {options.name} has joined {', '.join(joined)} before, and its progress is theirs, in this "
            "order; name them so, or choose another --name"
        )


def _refuse_another_join(spark: SparkSession, checkpoint: Place, options: Namespace) -> None:
    """Raise ConfigError where the name has joined by other parts or windows: what waits in its progress is kept by those, and finds no partner.

    They are kept with the progress; one that was begun without them takes what is given.
    """
    path, now = f"{checkpoint}/{_JOIN}", {"on": options.on, "window": options.window}
    before = orjson.loads(kept(spark, path) or b"{}")
    for name, value in now.items():
        if before.get(name, value) != value:
            raise ConfigError(
                f"--{name} {value}: {options.name} has joined with {before[name]} before, and what waits there for a partner would find none; "
                f"give --{name} {before[name]}, or choose another --name"
            )
    if before != now:
        keep(spark, path, orjson.dumps(now))


def _capture(batch: DataFrame, number: int, config: RelayConfig, options: Namespace) -> int:
    """Write the joined messages of one batch as one capture; return how many."""
    from relay.spark import capture_batch  # noqa: PLC0415 - needs PySpark, which --help does not

    # One task holds a partition, so that no second writer interleaves; the join's state may be asked only once.
    kept = batch.repartition("partition").sortWithinPartitions("partition", "time", "id").persist()
    try:
        count = kept.count()
        if count:
            capture_batch(
                kept, number, relay=config.relay.name, topic=options.to, kafka=config.kafka,
                query=f"correlate-{options.name}", type=options.type, source=f"/spark/{options.name}",
            )  # fmt: skip
        return count
    finally:
        kept.unpersist()


def _joined(spark: SparkSession, java: dict[str, str], options: Namespace) -> DataFrame:
    first, *others = (_messages_of(spark, java, topic, n, options) for n, topic in enumerate(options.topic))
    for number, other in enumerate(others, start=1):
        same = (first["on_0"] == other[f"on_{number}"]) & (first["window_0"] == other[f"window_{number}"])
        first = first.join(other, same, "left_outer" if options.outer else "inner")
    return first


def _messages_of(
    spark: SparkSession, java: dict[str, str], topic: str, number: int, options: Namespace
) -> DataFrame:
    given: dict[str, Any] = {f"kafka.{name}": value for name, value in java.items()}
    given |= {
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "startingOffsets": "earliest",
    }
    found = spark.readStream.format("kafka").options(**given).option("subscribe", topic).load()
    return _parts(found, topic, number, options)


def _parts(found: DataFrame, topic: str, number: int, options: Namespace) -> DataFrame:
    """Return a topic's records, their columns numbered: what each is joined on, its window, value and identity."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark

    header = sql.map_from_entries("headers")
    refused = sql.raise_error(
        sql.lit(
            f"topic {topic} is a log with captures, of which some may never be committed: name a route's output"
        )
    )
    value = sql.when(header[CAPTURE].isNotNull(), refused.cast("string")).otherwise(
        sql.col("value").cast("string")
    )
    place = sql.concat_ws("/", "topic", "partition", "offset")
    at = _believed(sql.try_to_timestamp(header[TIME].cast("string")), sql.col("timestamp"), options.watermark)
    read = found.select(
        value.alias(f"value_{number}"),
        # As the relay: what is empty is none, so that two without an id are not one parent.
        sql.coalesce(_filled(header[ID].cast("string")), place).alias(f"id_{number}"),
        sql.coalesce(_filled(header[SOURCE].cast("string")), sql.lit(topic)).alias(f"source_{number}"),
        _joining(options.on).alias(f"on_{number}"),
        at.alias(f"at_{number}"),
        sql.date_format(at, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'").alias(f"time_{number}"),
    )
    late = read.where(f"on_{number} is not null").withWatermark(
        f"at_{number}", f"{options.watermark} seconds"
    )
    # The window takes over the watermark: Spark wants one time column of each side of a join.
    return late.withColumn(f"window_{number}", sql.window(f"at_{number}", f"{options.window} seconds")).drop(
        f"at_{number}"
    )


def _believed(own: Column, record: Column, watermark_s: int) -> Column:
    """Return a message's time: its own, unless it has none, or one so far ahead that the watermark would pass what others bring in time."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark

    return sql.when(own <= record + sql.make_dt_interval(secs=sql.lit(watermark_s)), own).otherwise(record)


def _filled(text: Column) -> Column:
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark

    return sql.when(sql.length(text) > 0, text)


def _joining(on: str) -> Column:
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark

    if on == "key":
        return _filled(sql.col("key").cast("string"))
    parts = [
        sql.coalesce(*(sql.get_json_object(sql.col("value").cast("string"), path) for path in _paths(pointer, on)))
        for pointer in on.split(",")
    ]
    return parts[0] if len(parts) == 1 else sql.when(
        sql.greatest(*(part.isNull() for part in parts)), sql.lit(None)
    ).otherwise(sql.to_json(sql.array(*parts)))  # fmt: skip


def _paths(pointer: str, on: str) -> list[str]:
    """Return a JSON pointer as Spark's paths: a number in it is an object's name, or an array's index."""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")]
    if steps[0] or len(steps) == 1:
        raise ConfigError(f"--on {on}: write key, or JSON pointers by commas such as /origin,/hour")
    for step in steps[1:]:
        if step in ("", "*") or "'" in step:
            raise ConfigError(f"--on {on}: Spark finds no value under the name {step!r}, and would join nothing; join by another one, or by key")
    ways = ([f"['{step}']", *([f"[{step}]"] if re.fullmatch("0|[1-9][0-9]{0,8}", step) else [])] for step in steps[1:])
    return ["$" + "".join(way) for way in product(*ways)]


def _messages(joined: DataFrame, options: Namespace, partitions: int) -> DataFrame:
    """Return the joined messages: an object with each topic's value under its name, and the parents in a header."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark

    numbers = range(len(options.topic))
    pieces = [
        sql.concat(sql.lit(orjson.dumps(topic).decode() + ":"), _as_json(sql.col(f"value_{n}")))
        for n, topic in enumerate(options.topic)
    ]
    identifier = _identifier(len(options.topic))
    parents = sql.to_json(
        sql.array_compact(
            sql.array(
                *(
                    sql.when(sql.col(f"id_{n}").isNotNull(), sql.struct(sql.col(f"source_{n}").alias("source"), sql.col(f"id_{n}").alias("id")))
                    for n in numbers
                )
            )
        )
    )  # fmt: skip
    return joined.select(
        sql.concat(sql.lit("{"), sql.concat_ws(",", *pieces), sql.lit("}")).alias("value"),
        sql.col("on_0").cast("binary").alias("key"),
        identifier.alias("id"),
        sql.col("time_0").alias("time"),
        sql.array(sql.struct(sql.lit(PARENTS).alias("key"), parents.cast("binary").alias("value"))).alias(
            "headers"
        ),
        sql.pmod(sql.crc32(sql.col("on_0").cast("binary")), sql.lit(partitions))
        .cast("int")
        .alias("partition"),
    )


def _identifier(topics: int) -> Column:
    """Return the joined message's id: its parents' ids, and a hash that also tells their sources and gaps apart.

    An id is unique for its source only, and the joined messages have one source: two of one id would be a repeat.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark

    parents = sql.to_json(sql.array(*(sql.col(f"{part}_{n}") for n in range(topics) for part in ("source", "id"))))
    return sql.concat_ws("+", *(f"id_{n}" for n in range(topics)), sql.left(sql.sha2(parents, 256), sql.lit(32)))


def _as_json(value: Column) -> Column:
    """Return a value as it may stand inside JSON: as it is where it is JSON, else as a JSON string."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark

    quoted = sql.to_json(sql.array(value))
    text = sql.substring(quoted, sql.lit(2), sql.length(quoted) - 2)
    # Spark reads one value and looks at nothing behind it ("42 apples"): so it reads on to what only this text can call the end.
    # It also reads what is not UTF-8, as all JSON is.
    end = sql.sha2(value, 256)
    read = sql.try_parse_json(sql.concat(sql.lit("["), value, sql.lit(',"'), end, sql.lit('"]')))
    is_json = sql.is_valid_utf8(value) & (sql.try_variant_get(read, "$[1]", "string") == end)
    return sql.when(value.isNull(), sql.lit("null")).when(is_json, value).otherwise(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

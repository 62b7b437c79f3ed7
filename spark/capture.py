"""Captures files, a table or a stream of files into the log: each batch whole or not at all, each row exactly once.

A directory of CSV, JSON or Parquet files is read as a stream: what is there now, or with --follow also what comes.
The checkpoint says which files were taken; a batch that is run again after a crash is recognised by its decision.
Run it with ``relay spark capture CONFIG --help``.
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.jobs import session
from relay.jobs.following import Following, Place, exists, has_captured, refuse_lost_checkpoint
from relay.jobs.records import Broker, java_settings
from relay.message.errors import ConfigError
from relay.message.owned_topics import refuse_own_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

FILES = ("csv", "json", "parquet")
POSTGRESQL = "org.postgresql.Driver"
FOR_EVER = "36500d"
"""Spark would pass over files a week older than the newest it has seen: of a copy that keeps times, or beside one of the future."""
PLAIN = frozenset(
    {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "date", "timestamp", "timestamp_ntz"}
)
"""Types whose texts have hyphens only where each of them has: written in a row they can be told apart."""


MICROSECONDS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}
"""Spark's own formats of times in JSON cut them off behind the milliseconds."""
AS_THEY_ARE = {"ignoreNullFields": "false", **MICROSECONDS}
"""With what JSON tells whatever differs in a row."""
REPLACED = "\ufffd"
"""What Spark reads in the place of bytes that are no character."""
NESTED = ("array<", "struct<", "map<")
PATTERN = re.compile(r"[\\*?\[\]{}]")
"""What Spark's readers take for a part of a pattern in a path."""


def main(arguments: Sequence[str]) -> int:
    """Run the job: 0 captured, 1 refused by a check, 2 wrong words, data or parts, 3 unreachable."""
    options = _parse(arguments)
    return session.run("capture", lambda: _run(options))


def _parse(arguments: Sequence[str]) -> Namespace:
    parser = session.parser("capture", __doc__ or "")
    parser.add_argument("config", help="the configuration, such as relay.toml")
    parser.add_argument(
        "input", help="a directory of files, or with --format jdbc the database's jdbc: address"
    )
    parser.add_argument("--topic", required=True, help="the log topic")
    parser.add_argument("--format", choices=(*FILES, "jdbc"), default="csv", help="default: %(default)s")
    parser.add_argument(
        "--name", type=session.filled, required=True, help="what this import is called; the same name never captures twice"
    )
    parser.add_argument(
        "--id", required=True, metavar="COLUMNS", help="columns, by commas, that name a row for good"
    )
    parser.add_argument("--key", metavar="COLUMN", help="places the row; rows of one key keep their order")
    parser.add_argument(
        "--order-by", metavar="COLUMNS", default="", help="the order of the rows of one key in a batch"
    )
    parser.add_argument(
        "--source", help="the publisher (default: /spark/NAME); {COLUMN} puts a column's value in"
    )
    parser.add_argument("--type", default="relay.message", help="the messages' type (default: %(default)s)")
    parser.add_argument("--time", metavar="COLUMN", help="when it happened, as text or timestamp")
    parser.add_argument(
        "--schema", help="columns with their types; else they are found in the files that are there (in CSV 007 is the number 7)"
    )
    parser.add_argument("--null", default="", help="what stands for no value in CSV (default: nothing)")
    parser.add_argument(
        "--escape", type=session.character, default='"', metavar="CHARACTER", help="what makes a quote a part of a quoted field in CSV (default: another quote)"
    )
    parser.add_argument("--table", help="with --format jdbc: the table or a query in brackets")
    parser.add_argument(
        "--checkpoint", metavar="FOLDER", help="where progress is kept, a folder or an address that Spark knows (default: under the relay's state)"
    )
    parser.add_argument(
        "--follow", type=session.period, metavar="SECONDS", help="go on, looking for new files this often"
    )
    parser.add_argument("--files-per-batch", type=session.count, metavar="N", help="at most so many files in one batch")
    return parser.parse_args(arguments)


def _run(options: Namespace) -> int:
    config = load(Path(options.config))
    refuse_own_topic(config.relay.name, options.topic, "--topic")
    java = java_settings(config.kafka)
    needs = [session.KAFKA_CLASS, *([POSTGRESQL] if options.input.startswith("jdbc:postgresql:") else [])]
    spark = session.start("capture", options.master, needs=needs)
    partitions = Broker(spark, java).partitions(options.topic)
    rows = _read_table(spark, options) if options.format == "jdbc" else _read_files(spark, options)
    messages = _messages(rows, options, partitions)
    checkpoint = options.checkpoint or config.relay.state / "spark" / f"capture-{options.name}"
    following = Following(options.name, checkpoint=checkpoint, trigger_s=options.follow)
    if options.format == "jdbc":
        refuse_name_of_files(spark, config, options.name, checkpoint)
        captured = _capture_table(messages, config, options)
        count = captured or 0
        if captured is None:
            words = "has captured a table before, and captures none twice; another name takes what is there now"
            session.say(f"capture: --name {options.name} {words}", sys.stderr)
    else:
        refuse_lost_checkpoint(spark, config.relay.name, config.kafka, f"capture-{options.name}", checkpoint)
        following.capture(messages, lambda batch, number: _capture(batch, number, config, options))
        count = following.rows
    report = {"topic": options.topic, "rows": count, "batches": following.batches or int(count > 0)}
    said = f"{count:,} rows were captured into {options.topic} (of those that are there, none twice)"
    session.say(orjson.dumps(report).decode() if options.json else said)
    return 0


def refuse_name_of_files(spark: SparkSession, config: RelayConfig, name: str, checkpoint: Place) -> None:
    """Raise ConfigError if files have used the name: the table would be taken for their first batch, and nothing of it captured."""
    of_files = has_captured(config.relay.name, config.kafka, f"capture-{name}", behind=0)  # a table is one batch
    if of_files or exists(spark, f"{checkpoint}/metadata"):
        raise ConfigError(f"--name {name}: files were captured under it, for whose first batch the table would be taken; choose another name")


def _capture_table(messages: DataFrame, config: RelayConfig, options: Namespace) -> int | None:
    """Capture a table as one batch; return how many rows it had, None if it was captured before. Read once more it may have others."""
    from pyspark import StorageLevel  # noqa: PLC0415 - needs PySpark

    # Spark's sink tells no observation of the rows that it has written.
    kept = messages.persist(StorageLevel.DISK_ONLY)
    try:
        with session.reaching(f"capturing {options.table}"):
            return kept.count() if _capture(kept, 0, config, options) else None
    finally:
        kept.unpersist()


def _capture(batch: DataFrame, number: int, config: RelayConfig, options: Namespace) -> bool:
    """Write one batch as one capture; False if it was captured before."""
    from relay.spark import capture_batch  # noqa: PLC0415 - needs PySpark, which --help does not

    written: bool = capture_batch(
        _placed(batch, options), number, relay=config.relay.name, topic=options.topic, kafka=config.kafka,
        query=f"capture-{options.name}", type=options.type,
    )  # fmt: skip
    return written


def _read_files(spark: SparkSession, options: Namespace) -> DataFrame:
    """Return the stream of the directory's files; ConfigError where their columns cannot be known."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with PySpark
    from pyspark.errors import ParseException, PySparkException  # noqa: PLC0415 - needs PySpark

    if not Path(options.input).exists() and "://" not in options.input:
        raise ConfigError(f"{options.input}: there is no such directory; create it or correct the path")
    settings = _settings(options)
    place = _by_its_letters(options.input)
    if place != options.input and Path(options.input).is_dir():
        settings["basePath"] = options.input  # below a pattern Spark would see no columns in folders' names
    schema = options.schema
    if schema is None and place != options.input and options.format == "csv":
        raise ConfigError(f"{options.input}: Spark finds no columns of CSV below a name with one of \\ * ? [ ] {{ }}; give --schema, or rename it")
    if schema is None:
        try:
            schema = (
                spark.read.options(**settings, inferSchema="true", mergeSchema="true")  # else one Parquet file speaks for all
                .format(options.format)
                .load(place)
                .schema
            )
            if options.format != "parquet":
                _refuse_alike(spark.read.options(**settings).format(options.format), options, schema)
        except (PySparkException, Py4JJavaError) as error:
            raise ConfigError(
                f"{options.input}: no {options.format} files are there whose columns could be read, or one cannot be read, or has a column "
                "of another type; correct it, or give --schema"
            ) from error
    settings["maxFileAge"] = FOR_EVER
    if options.files_per_batch:
        settings["maxFilesPerTrigger"] = options.files_per_batch
    try:
        reader = spark.readStream.schema(schema)
    except ParseException as error:
        raise ConfigError(f"--schema {schema}: not columns with their types, such as 'id string, at timestamp'") from error
    rows = reader.options(**settings).format(options.format).load(place)
    return _refuse_other_encodings(rows, options.id.split(",")) if options.format == "csv" else rows  # JSON is refused as it is read


def _by_its_letters(place: str) -> str:
    """Return a path of this machine as one that Spark's readers take for no pattern, which would match nothing; of an address it may be one."""
    return place if "://" in place else PATTERN.sub(r"\\\g<0>", place)


def _refuse_other_encodings(rows: DataFrame, ids: Sequence[str]) -> DataFrame:
    """Have a row stop the job whose id is not UTF-8: Spark makes the same character of all bytes that are not, and one id of several."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark

    def checked(name: str) -> Any:
        words = f"column {name}, of --id, has bytes in a row that are not UTF-8, by which rows cannot be told apart; write the file as UTF-8 (iconv)"
        return sql.when(_column(name).contains(REPLACED), sql.raise_error(sql.lit(words))).otherwise(_column(name)).alias(name)

    return rows.select(*(checked(name) if name in ids and kind == "string" else _column(name) for name, kind in rows.dtypes))


def _settings(options: Namespace) -> dict[str, Any]:
    """Return how Spark is to read files of the format."""
    if options.format == "parquet":
        return {}
    strict = {"mode": "FAILFAST"}
    if options.format == "json":
        return strict
    # As RFC 4180 has it. Spark would end a record at a line break inside quotes, and take each half for one that has the fields;
    # and escape a quote by a backslash. That it reads a file whole then, each in one task, is the price.
    quoting = {"multiLine": "true", "escape": options.escape}
    return {**strict, **quoting, "header": "true", "enforceSchema": "false", **({"nullValue": options.null} if options.null else {})}


def _refuse_alike(reader: DataFrameReader, options: Namespace, schema: StructType) -> None:
    """Raise ConfigError where ids that differ in the files are read as one, as 007 and 7 are one number, and 10:00Z and 11:00+01:00 one time.

    The relay would take one row for the other's repeat.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark
    from pyspark.sql.types import AtomicType, StringType, StructField, StructType  # noqa: PLC0415 - needs PySpark

    ids = options.id.split(",")
    found = [field for field in schema if field.name in ids and isinstance(field.dataType, AtomicType) and not isinstance(field.dataType, StringType)]
    if not found or not {*ids} <= {*schema.names}:
        return  # that a column is missing is said with the others
    texts = reader.schema(StructType([StructField(one.name, StringType()) if one in found else one for one in schema])).load(_by_its_letters(options.input))
    # What a cast does not take as the reader does stays as it is written: unlike all others.
    read = {one.name: sql.coalesce(_column(one.name).try_cast(one.dataType).cast("string"), _column(one.name)) for one in found}
    written = sql.to_json(sql.array(*(_column(name).cast("string") for name in ids)))
    called = sql.to_json(sql.array(*(read.get(name, _column(name).cast("string")) for name in ids)))
    if texts.where(written != called).isEmpty():
        return  # each is written as it will be called, and nothing needs to be sorted
    alike = texts.groupBy(called.alias("called")).agg(sql.min(written).alias("one"), sql.max(written).alias("other")).where("one <> other").head()
    if alike is not None:
        raise ConfigError(
            f"--id {options.id}: rows with {alike.one} and {alike.other} would both be called {alike.called}, as Spark reads them, and one of them "
            "be lost as the other's repeat; give --schema, with these columns as string"
        )


def _read_table(spark: SparkSession, options: Namespace) -> DataFrame:
    if not options.table or options.follow:
        raise ConfigError("--format jdbc needs --table, and takes the table once: leave --follow out")
    # A driver that was given by --jars, Java finds by its class alone.
    settings = {"driver": POSTGRESQL} if options.input.startswith("jdbc:postgresql:") else {}
    with session.reaching(f"reading {options.table}"):
        return spark.read.format("jdbc").options(**settings, url=options.input, dbtable=options.table).load()


def _messages(rows: DataFrame, options: Namespace, partitions: int) -> DataFrame:
    """Return the columns of a capture, and those that only place and order its rows."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark

    names = {
        name
        for given in (options.id, options.order_by, options.key, options.time)
        if given
        for name in given.split(",")
    }
    for name in sorted(names - set(rows.columns)):
        raise ConfigError(f"column {name}: the data has none of that name; it has {', '.join(rows.columns)}")
    identifier = _identifier(rows, options.id.split(","))
    key = _column(options.key).cast("string") if options.key else identifier
    return rows.select(
        sql.to_json(sql.struct(*map(_column, rows.columns)), AS_THEY_ARE).alias("value"),
        key.cast("binary").alias("key"),
        identifier.alias("id"),
        _source(options, rows.columns).alias("source"),
        *([_column(options.time).alias("time")] if options.time else []),  # capture_batch writes it as RFC 3339
        sql.pmod(sql.crc32(key.cast("binary")), sql.lit(partitions)).cast("int").alias("partition"),
        *(
            _column(name).alias(f"order_{n}")
            for n, name in enumerate(filter(None, options.order_by.split(",")))
        ),
    )


def _column(name: str) -> Any:
    """Return the column of this very name: in an unquoted one a dot would lead into a struct, and a backtick begin a quote."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark

    return sql.col("`" + name.replace("`", "``") + "`")


def _identifier(rows: DataFrame, names: Sequence[str]) -> Any:
    """Return what the columns together call a row; null, which is refused, if all of them are.

    Different rows must not be called the same, since the relay would take one for a repeat of the other: so a hyphen
    inside a text, or inside what else may hold any, is escaped byte by byte, and a gap keeps its place.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark

    kinds = dict(rows.dtypes)
    # Spark's own text of what is nested has quotes round nothing: of a list with a comma it is that of a longer one.
    parts = [
        sql.to_json(_column(name), AS_THEY_ARE) if kinds[name].startswith(NESTED) else _column(name).cast("string") for name in names
    ]
    if len(names) == 1:
        return parts[0]
    plain = {name for name, kind in kinds.items() if kind.partition("(")[0] in PLAIN}
    parts = [
        part if name in plain else sql.replace(sql.replace(part, sql.lit("\\"), sql.lit("\\\\")), sql.lit("-"), sql.lit("\\-"))
        for name, part in zip(names, parts, strict=True)
    ]
    filled = sql.concat_ws("-", *(sql.coalesce(part, sql.lit("\\N")) for part in parts))
    return sql.when(sql.coalesce(*parts).isNotNull(), filled)


def _source(options: Namespace, columns: Sequence[str]) -> Any:
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark

    text = options.source or f"/spark/{options.name}"
    before, brace, rest = text.partition("{")
    column, _, after = rest.partition("}")
    if not brace:
        return sql.lit(text)
    if column not in columns:
        raise ConfigError(f"--source {text}: the data has no column {column}; it has {', '.join(columns)}")
    return sql.concat(sql.lit(before), _column(column).cast("string"), sql.lit(after))


def _placed(batch: DataFrame, options: Namespace) -> DataFrame:
    """Let one task hold all of a partition, in the order that was asked for, so that no second writer interleaves."""
    order = [name for name in batch.columns if name.startswith("order_")]
    if not options.key and not order:
        return batch
    return batch.repartition("partition").sortWithinPartitions("partition", *order).drop(*order)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

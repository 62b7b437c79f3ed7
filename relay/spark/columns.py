"""Rows for plain, at-least-once jobs: stable ids, so that repeats disappear in the relay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql

from relay.message.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_NESTED: Final = ("array<", "struct<", "map<", "variant")
_NAMING: Final = ("id", "source")
"""What names a message, so that of two that are alike the second is the first one's repeat."""
_UNCHANGED: Final = ("UTC", "Etc/UTC", "GMT", "Z")
"""Zones in which every time has a text of its own."""
_NO_ID: Final = "column id is null or empty in a row; give each row an id"
_SECOND_US: Final = 1_000_000
_DAY_US: Final = 86_400 * _SECOND_US


def kafka_columns(
    df: DataFrame,
    *,
    id: str | Column,  # noqa: A002 - the attribute's name
    source: str | Column,
    type: str | Column,  # noqa: A002
    value: str | Column = "value",
    key: str | Column | None = None,
    subject: str | Column | None = None,
    time: str | Column | None = None,
    content_type: str | Column | None = None,
    topic: str | Column | None = None,
    partitions: int | None = None,
) -> DataFrame:
    """Return key, value, headers (and topic, partition) for Spark's Kafka sink, as CloudEvents in binary mode.

    ``id``, ``value``, ``key``, ``subject``, ``time`` and ``topic`` given as text are column names; ``source``, ``type`` and ``content_type``
    given as text are meant literally. One id must always go to one partition: with ``partitions`` (the topic's count) the
    key, else the id, places the row, as ``publish`` would; without, the sink does, and the id is the key of a row that has none. The
    relay then takes the first of each (source, id).

    ConfigError for columns that cannot be written, or whose ids Spark's text spells alike where they differ.
    """
    given_as = {"id": id, "source": source if not isinstance(source, str) else None, "subject": subject, "key": key, "value": value}
    refuse_alike(df, {name: column for name, column in given_as.items() if column is not None})
    text = _column(id).cast("string")  # Spark takes a number's own bytes for binary
    attributes = {
        "ce_specversion": sql.lit("1.0"),
        "ce_id": named(text),
        "ce_source": _literal(source).cast("string"),  # as of the id
        "ce_type": _literal(type),
        "ce_subject": _optional(subject),
        "ce_time": None if time is None else utc_text(df, time),
        "content-type": None if content_type is None else _literal(content_type),
    }
    identifier = text.cast("binary")
    given = identifier if key is None else _column(key).cast("binary")
    placed = sql.coalesce(given, identifier)
    columns = [
        (placed if partitions is None else given).alias("key"),
        _column(value).cast("binary").alias("value"),
        header_column({name: column for name, column in attributes.items() if column is not None}).alias(
            "headers"
        ),
    ]
    if topic is not None:
        columns.append(_column(topic).alias("topic"))
    if partitions is not None:
        columns.append(
            sql.pmod(sql.crc32(placed), sql.lit(partitions)).cast("int").alias("partition")
        )
    return df.select(*columns)


def refuse_alike(df: DataFrame, columns: Mapping[str, str | Column]) -> None:
    """Raise ConfigError for columns that cannot be written, or whose names of messages Spark's text spells alike where they differ.

    The relay would take one row for the other's repeat.
    """
    kinds = dict(df.select(*(_column(given).alias(name) for name, given in columns.items())).dtypes)
    zone = df.sparkSession.conf.get("spark.sql.session.timeZone") or ""
    for name, kind in kinds.items():
        if kind.startswith(_NESTED):
            raise ConfigError(f"column {name} is {kind}, of which different ones may be written alike; make a text of it (to_json)")
        if name in _NAMING and kind == "timestamp" and zone not in _UNCHANGED:
            raise ConfigError(
                f"column {name} is timestamp, of which {zone} writes two alike where its clock is put back; make a text of it (unix_micros), or "
                "set spark.sql.session.timeZone to UTC"
            )
        if name in ("key", "value") and kind not in ("string", "binary"):
            _castable(df, name, columns[name], kind)


def _castable(df: DataFrame, name: str, given: str | Column, kind: str) -> None:
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - needed for what is wrong alone

    try:
        df.select(_column(given).cast("binary"))
    except AnalysisException as error:
        raise ConfigError(f"column {name} is {kind}; cast it to binary or string") from error


def header_column(headers: dict[str, Column]) -> Column:
    """Return the column that Spark's Kafka sink takes as headers; a header whose value is null is left out."""
    pairs = [
        sql.struct(sql.lit(name).alias("key"), value.cast("binary").alias("value"))
        for name, value in headers.items()
    ]
    return sql.filter(sql.array(*pairs), lambda pair: pair["value"].isNotNull())


def named(column: Column) -> Column:
    """Return an id; a row without one stops the job, since nothing would tell its repeat from another row."""
    is_named = sql.coalesce(sql.length(column.cast("string")) > 0, sql.lit(False))
    return sql.when(is_named, column).otherwise(sql.raise_error(sql.lit(_NO_ID)))


def _column(given: str | Column) -> Column:
    return sql.col(given) if isinstance(given, str) else given


def _literal(given: str | Column) -> Column:
    return sql.lit(given) if isinstance(given, str) else given


def _optional(given: str | Column | None) -> Column | None:
    return None if given is None else _column(given).cast("string")


def utc_text(df: DataFrame, given: str | Column) -> Column:
    """Return a timestamp as RFC 3339 in UTC, whatever the session's time zone; one without a zone, and a day, are UTC's. Text as it is."""
    column = _column(given)
    kind = df.select(column.alias("time")).schema["time"].dataType.simpleString()
    if kind == "timestamp_ntz":
        return sql.concat(sql.replace(column.cast("string"), sql.lit(" "), sql.lit("T")), sql.lit("Z"))
    if kind == "date":
        return sql.concat(column.cast("string"), sql.lit("T00:00:00Z"))
    if kind != "timestamp":
        return column.cast("string")
    # By numbers alone: every way over a zone's local time stumbles over the hours that it skips or has twice.
    moment = sql.unix_micros(column)
    within = sql.pmod(moment, sql.lit(_DAY_US))
    day = sql.date_from_unix_date(((moment - within) / _DAY_US).cast("int")).cast("string")
    seconds = (within / _SECOND_US).cast("int")
    parts = ((seconds / 3600).cast("int"), (seconds / 60).cast("int") % 60, seconds % 60, within % _SECOND_US)
    return sql.concat(day, sql.lit("T"), sql.format_string("%02d:%02d:%02d.%06d", *parts), sql.lit("Z"))

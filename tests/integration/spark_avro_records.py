"""A Spark program of the tests: reads and writes the relay's records with spark-avro and prints both as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from relay.jobs import session
from relay.jobs.avro import from_framed, from_relay, to_framed, to_relay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(path: Path) -> None:
    """Read each record of the file (schema's name -> framed records in hex), and write it again; values likewise."""
    given = json.loads(path.read_text("utf-8"))
    records: dict[str, list[str]] = given["records"]
    spark = session.start("avro", "local[1]", needs=(session.AVRO_CLASS,))
    again = {}
    for name, framed in records.items():
        rows = spark.createDataFrame(
            [(number, bytearray.fromhex(one)) for number, one in enumerate(framed)], "n int, raw binary"
        )
        read = rows.select("n", from_relay(rows["raw"], name).alias("record"))
        found = read.select("n", to_relay(read["record"], name).alias("raw")).orderBy("n").collect()
        again[name] = [bytes(row.raw).hex() for row in found]
    stranger = spark.createDataFrame([(bytearray(b"\xc3\x01" + bytes(20)),)], "raw binary")
    name = next(iter(records))
    unknown = stranger.select(from_relay(stranger["raw"], name).isNull()).first()
    found = {"again": again, "stranger_is_null": bool(unknown and unknown[0]), "values": _values(spark, given)}
    print(json.dumps(found))


def _values(spark: SparkSession, given: dict[str, Any]) -> list[str | None]:
    """Read and write the values of one registered schema; None for one in another's frame."""
    schema, number = given["schema"], given["number"]
    rows = spark.createDataFrame(
        [(n, bytearray.fromhex(one)) for n, one in enumerate(given["values"])], "n int, raw binary"
    )
    read = rows.select("n", from_framed(rows["raw"], schema, number).alias("record"))
    again = to_framed(read["record"], schema, number)
    found = read.select("n", sql.when(read["record"].isNotNull(), again).alias("raw")).orderBy("n").collect()
    return [None if row.raw is None else bytes(row.raw).hex() for row in found]


if __name__ == "__main__":
    main(Path(sys.argv[1]))

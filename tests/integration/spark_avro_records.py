"""A Spark program of the tests: reads and writes the relay's records with spark-avro and prints both as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from relay.jobs import session
from relay.jobs.avro import from_relay, to_relay


def main(path: Path) -> None:
    """Read each record of the file (schema's name -> framed records in hex), and write it again."""
    records: dict[str, list[str]] = json.loads(path.read_text("utf-8"))
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
    print(json.dumps({"again": again, "stranger_is_null": bool(unknown and unknown[0])}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

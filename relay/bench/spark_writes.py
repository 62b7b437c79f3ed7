"""One Spark, warm, that writes the same rows in turns: as the bare Kafka sink does, and as captures.

A process of its own, started by ``relay.bench.spark``; it prints the speeds, in rows a second by side, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from relay.spark import capture_batch, kafka_columns, register
from relay.world import clock

TASKS: Final = 2
VALUE_BYTES: Final = 256
NOISE_BYTES: Final = 1 << 20
STRIDE: Final = 61
"""Values start so far apart in the noise: random, so that no side gains by compression what real payloads do not give."""
WARM_PART: Final = 10
"""The warming write has this part of the rows: in short runs the JVM shows a third of its speed."""
SOURCE: Final = "/bench"
TYPE: Final = "bench"
"""The attributes are the same on every side, so that sides differ only in what makes rows a capture."""
PLAIN: Final = "plain"
DATASOURCE: Final = "datasource"
CAPTURE: Final = "capture"
NUMBERED: Final = "numbered"


class Writes:
    """The sides of the measurement; each writes ``rows`` and returns when they count."""

    def __init__(self, spark: SparkSession, kafka: str, relay: str, topic: str) -> None:
        self._spark = spark
        self._kafka = kafka
        self._relay = relay
        self._topic = topic
        self._query = uuid4().hex
        self._batch = 0
        self._noise = bytearray(os.urandom(NOISE_BYTES))

    def plain(self, rows: int) -> None:
        """Write through Spark's Kafka sink: the same keys, values and CloudEvents headers (specversion, id, source, type).

        At least once, with the producer settings of a capture. The headers of a capture, which name capture and resource,
        are missing here, and so is every decision.
        """
        made = kafka_columns(self._rows(rows), id="id", source=SOURCE, type=TYPE, key="key")
        options = {
            "kafka.bootstrap.servers": self._kafka,
            "kafka.acks": "all",
            "kafka.compression.type": "lz4",
        }
        made.write.format("kafka").options(**options).option("topic", self._topic).save()

    def datasource(self, rows: int) -> None:
        """Write through ``format("relay")``."""
        options = {
            "relay": self._relay,
            "topic": self._topic,
            "kafka.bootstrap.servers": self._kafka,
            "unit": uuid4().hex,
            "source": SOURCE,
            "type": TYPE,
        }
        self._rows(rows).write.format("relay").options(**options).mode("append").save()

    def capture(self, rows: int) -> None:
        """Write through ``capture_batch``; the rows have ids."""
        self._capture(self._rows(rows))

    def numbered(self, rows: int) -> None:
        """Write through ``capture_batch`` rows without ids: they are put into a checkpoint and numbered there."""
        self._capture(self._rows(rows).drop("id"))

    def _capture(self, made: DataFrame) -> None:
        self._batch += 1
        servers = {"bootstrap.servers": self._kafka}
        capture_batch(
            made, self._batch, relay=self._relay, topic=self._topic, kafka=servers, query=self._query, source=SOURCE,
            type=TYPE,
        )  # fmt: skip

    def _rows(self, rows: int) -> DataFrame:
        number = sql.col("id")
        start = (number * STRIDE) % (NOISE_BYTES - VALUE_BYTES) + 1
        value = sql.lit(self._noise).substr(start.cast("int"), sql.lit(VALUE_BYTES))
        return self._spark.range(0, rows, numPartitions=TASKS).select(
            (number % 1000).cast("string").alias("key"),
            value.alias("value"),
            number.cast("string").alias("id"),
        )


def measure(spark: SparkSession, told: dict[str, Any]) -> dict[str, list[float]]:
    """Warm every side, then measure each in turns."""
    writes = Writes(spark, told["kafka"], told["relay"], told["topic"])
    sides: dict[str, Callable[[int], None]] = {name: getattr(writes, name) for name in told["sides"]}
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for write in sides.values():
        write(told["rows"] // WARM_PART)
    for _ in range(told["rounds"]):
        for name, write in sides.items():
            before = clock.monotonic()
            write(told["rows"])
            speeds[name].append(told["rows"] / (clock.monotonic() - before))
    return speeds


def main(told: dict[str, Any]) -> None:
    """Start Spark and measure."""
    settings = {
        "spark.jars": ",".join(told["jars"]), "spark.ui.enabled": "false", "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    }  # fmt: skip
    builder = SparkSession.builder.master(f"local[{TASKS}]").appName("relay-bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setCheckpointDir(told["directory"])
    register(spark)
    speeds = measure(spark, told)
    spark.stop()
    sys.stdout.write(json.dumps(speeds) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

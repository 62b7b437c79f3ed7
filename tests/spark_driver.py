"""A Spark driver for tests, run as a process of its own: writes text files through the relay, dies where it is told.

One that is kept does one thing after the other, for tests in which nothing dies: most of a short test would be its start.

Tasks and commits run in Python workers, which get their environment where the format is registered: registering it
again with another crash point makes the next workers die there.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from runpy import run_path
from typing import Any

from relay.world.crash import VARIABLE
from tests.kept_process import answer, outcome


def main(arguments: dict[str, Any]) -> None:
    """Run what ``arguments`` name and print one line of JSON for each step."""
    spark = start(arguments)
    tell(ready=os.getpid(), java=spark.sparkContext._gateway.proc.pid)
    WAYS[arguments["what"]](spark, arguments)
    spark.stop()


def start(arguments: dict[str, Any]) -> Any:
    """Return a session whose tasks are tried again, and which has the jars that ``arguments`` name."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    builder = SparkSession.builder.master("local[2,4]").appName("relay-test")
    own = {
        "spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC", "spark.driver.memory": "512m",
        "spark.jars": ",".join(arguments.get("jars", [])), "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }  # fmt: skip
    for key, value in own.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def keep(arguments: dict[str, Any]) -> None:
    """Answer each question, what a driver of its own would be given, with what it would tell and what went wrong, if anything."""
    spark = start(arguments)

    def told(question: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
        before = dict(spark.conf.getAll)
        try:
            _, out, err = outcome(lambda _: WAYS[question["what"]](spark, question), [])
        except Exception:  # noqa: BLE001 - the test fails with it, and the next one is still answered
            return [], traceback.format_exc()
        finally:  # a job has settings of its own, which the next test must not rest on
            for name, value in dict(spark.conf.getAll).items():
                if value != before.get(name):
                    spark.conf.set(name, before[name]) if name in before else spark.conf.unset(name)
        return [json.loads(line.removeprefix("fact ")) for line in out.splitlines() if line.startswith("fact ")], err

    answer(told)


def job(_: Any, arguments: dict[str, Any]) -> None:
    """Run one of the project's jobs in this session; tell how it ended and what it said."""
    code, out, err = outcome(run_path(arguments["program"])["main"], arguments["words"])
    tell(code=code, said=out + err)


def batch(spark: Any, arguments: dict[str, Any]) -> None:
    """Make each of the named writes, and tell how it ended."""
    from relay.spark import register  # noqa: PLC0415

    register(spark)
    for write in arguments["writes"]:
        frame = spark.read.text(arguments["files"]).selectExpr(*write["columns"])
        try:
            frame.write.format("relay").options(**write["options"]).mode("append").save()
        except Exception as error:  # noqa: BLE001 - the test looks at the words
            tell(failed=str(error))
        else:
            tell(done=True)


def stream(spark: Any, arguments: dict[str, Any]) -> None:
    """Run the query to the end of its files once for each crash point, and at last with none."""
    from relay.spark import register  # noqa: PLC0415

    for step in arguments["steps"]:
        environment = spark.sparkContext.environment
        environment.pop(VARIABLE, None)
        if step:
            environment[VARIABLE] = step
        register(spark)
        frame = _lines(spark, arguments).selectExpr("value as key", *arguments["columns"])
        query = (
            frame.writeStream.format("relay").options(**arguments["options"])
            .option("checkpointLocation", arguments["checkpoint"]).trigger(availableNow=True).start()
        )  # fmt: skip
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - the test looks at the words
            tell(step=step, failed=str(error)[-300:])
        else:
            tell(step=step, done=True)


def foreach(spark: Any, arguments: dict[str, Any]) -> None:
    """Capture each batch through the JVM's sink; die after the rows of one, and at last with none."""
    from relay.spark import capture_batch  # noqa: PLC0415

    spark.sparkContext.setCheckpointDir(arguments["checkpoint"] + "-batches")

    def capture(frame: Any, batch_id: int) -> None:
        capture_batch(frame, batch_id, **arguments["capture"])

    query = (
        _lines(spark, arguments).selectExpr("value as key", *arguments["columns"]).writeStream.foreachBatch(capture)
        .option("checkpointLocation", arguments["checkpoint"]).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    tell(done=True)


def retried(spark: Any, arguments: dict[str, Any]) -> None:
    """Capture one batch, each of whose tasks fails once when most of its rows are written."""
    from pyspark import TaskContext  # noqa: PLC0415
    from pyspark.sql.functions import udf  # noqa: PLC0415

    from relay.spark import capture_batch  # noqa: PLC0415

    def value(number: int) -> str:
        task = TaskContext.get()
        if number % 1000 == 999 and task is not None and task.attemptNumber() == 0:
            raise OSError("the task fails")
        return json.dumps({"n": number})

    numbers = spark.range(0, 2000, 1, 2)
    frame = numbers.withColumn("value", udf(value)("id")).selectExpr("value", *arguments["columns"])
    capture_batch(frame, 0, query="q", **arguments["capture"])
    tell(done=True)


def nameless(spark: Any, arguments: dict[str, Any]) -> None:
    """Write a batch in which a row has no id, each way that needs one."""
    from relay.spark import capture_batch, kafka_columns  # noqa: PLC0415

    def capture_batch_of(frame: Any, place: dict[str, Any]) -> None:
        capture_batch(frame, 0, query="q", **place)

    def kafka_columns_of(frame: Any, _: dict[str, Any]) -> None:
        kafka_columns(frame, id="id", source="/s", type="t").collect()

    for none in (None, ""):
        frame = spark.createDataFrame([("1", "a"), (none, "b")], "id string, value string")
        for write in (capture_batch_of, kafka_columns_of):
            try:
                write(frame, arguments["capture"])
            except Exception as error:  # noqa: BLE001 - the test looks at the words
                tell(failed=str(error))
            else:
                tell(done=True)


def joined(_: Any, arguments: dict[str, Any]) -> None:
    """Tell the ids and headers of joined messages, made of rows of the parents' (source, id) of three topics."""
    from argparse import Namespace  # noqa: PLC0415

    from pyspark.sql import SparkSession  # noqa: PLC0415

    from spark.correlate import _messages  # noqa: PLC0415

    names = [f"{name}_{n} string" for n in range(3) for name in ("source", "id")]
    columns = ", ".join([*names, *(f"value_{n} string" for n in range(3)), "on_0 string", "time_0 string"])
    rows = [(*row, None, None, None, "k", "t") for row in arguments["parents"]]
    frame = SparkSession.active().createDataFrame(rows, columns)
    made = _messages(frame, Namespace(topic=["a", "b", "c"]), 1).collect()
    tell(ids=[row.id for row in made], parents=[{one.key: json.loads(one.value) for one in row.headers} for row in made])


def called(_: Any, arguments: dict[str, Any]) -> None:
    """Tell what the capture job calls rows of two texts, a number and a timestamp, by two of their columns."""
    from argparse import Namespace  # noqa: PLC0415

    from pyspark.sql import SparkSession  # noqa: PLC0415

    from spark.capture import _messages  # noqa: PLC0415

    frame = SparkSession.active().createDataFrame(arguments["rows"], "x string, y string, n int, t string")
    frame = frame.withColumn("t", frame["t"].cast("timestamp"))
    for names in arguments["names"]:
        given = Namespace(id=names, order_by="", key=None, time="t", source=None, name="q")
        made = _messages(frame, given, 1)
        tell(ids=[row.id for row in made.collect()], time=dict(made.dtypes)["time"])


def read(spark: Any, arguments: dict[str, Any]) -> None:
    """Read the log at rest, then as a stream up to now, twice with one checkpoint; capture two batches in between."""
    from relay.spark import capture_batch, committed, committed_stream, register  # noqa: PLC0415

    register(spark)
    place = {"relay": arguments["relay"], "kafka": arguments["kafka"]}
    tell(at_rest=_values(committed(spark, topics=[arguments["topic"]], **place)))
    rows = committed_stream(spark, topic=arguments["topic"], horizon="1 day", **place)

    def follow() -> None:
        query = (
            rows.writeStream.format("parquet").option("path", arguments["checkpoint"] + "-rows")
            .option("checkpointLocation", arguments["checkpoint"]).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        tell(stream=_values(spark.read.parquet(arguments["checkpoint"] + "-rows")))

    follow()
    spark.sparkContext.setCheckpointDir(arguments["checkpoint"] + "-batches")
    given = spark.createDataFrame([(1, "named", "id-1")], "partition int, value string, id string")
    for number, frame in enumerate((given, given.drop("id"), given.drop("id"))):
        capture_batch(frame, min(number, 1), query="q", topic=arguments["topic"], **place)
    follow()


def _values(frame: Any) -> list[str]:
    return sorted(row.value.decode() for row in frame.select("value").collect())


def _lines(spark: Any, arguments: dict[str, Any]) -> Any:
    return spark.readStream.option("maxFilesPerTrigger", 1).text(arguments["files"]).repartition(2)


def tell(**facts: Any) -> None:
    """Print facts for the test."""
    print("fact " + json.dumps(facts), flush=True)


WAYS = {
    "batch": batch, "stream": stream, "foreach": foreach, "read": read, "retried": retried, "nameless": nameless,
    "joined": joined, "called": called, "job": job,
}  # fmt: skip

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given["what"] == "keep":
        keep(given)
    else:
        main(given)

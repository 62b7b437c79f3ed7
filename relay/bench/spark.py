"""Spark's rows into the log as captures, against Spark's own Kafka sink writing the same rows in the same run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from relay.bench.spark_writes import CAPTURE, DATASOURCE, NUMBERED, PLAIN
from relay.bench.turns import RELAY, lent_topic, row
from relay.config.loading import load
from relay.config.timing import Timing
from relay.kafka.topics import Topics
from relay.local.java import find_java
from relay.local.spark import connector_jars
from relay.message.errors import CheckFailed
from relay.setup.migrate import migrate

ROUNDS: Final = 2
DEADLINE_S: Final = 1800.0


def datasource(kafka: str, rows: int = 1_000_000) -> dict[str, Any]:
    """Measure ``format("relay")``; return the row of `relay bench`."""
    speeds = _speeds(kafka, rows, (PLAIN, DATASOURCE))
    return row("spark-datasource", {PLAIN: speeds[PLAIN], RELAY: speeds[DATASOURCE]}) | {"unit": "rows/s"}


def batch(kafka: str, rows: int = 1_000_000) -> dict[str, Any]:
    """Measure ``capture_batch`` with ids, and beside it without; return the row of `relay bench`."""
    speeds = _speeds(kafka, rows, (PLAIN, CAPTURE, NUMBERED))
    found = row("spark-batch", {PLAIN: speeds[PLAIN], RELAY: speeds[CAPTURE]})
    numbered = row("spark-batch", {PLAIN: speeds[PLAIN], RELAY: speeds[NUMBERED]})
    return found | {
        "unit": "rows/s",
        "numbered_value": numbered["value"],
        "numbered_ratio": numbered["ratio"],
    }


def _speeds(kafka: str, rows: int, sides: Sequence[str]) -> dict[str, list[float]]:
    topics = Topics({"bootstrap.servers": kafka}, Timing())
    with (
        lent_topic(topics, "log") as log,
        lent_topic(topics, "out") as out,
        tempfile.TemporaryDirectory() as directory,
    ):
        path = Path(directory) / "relay.toml"
        path.write_text(
            f'[relay]\nname = "bench{uuid4().hex[:8]}"\ninstance = "bench"\nstate = "{directory}/state"\n'
            f'[kafka]\n"bootstrap.servers" = "{kafka}"\n[routes.bench]\nfrom = ["{log}"]\nto = {{ topic = "{out}" }}\n'
        )
        config = load(path)
        migrate(config)
        told = {
            "kafka": kafka, "relay": config.relay.name, "topic": log, "rows": rows, "rounds": ROUNDS,
            "sides": list(sides), "directory": f"{directory}/checkpoints", "jars": [str(jar) for jar in connector_jars()],
        }  # fmt: skip
        try:
            return _run(told)
        finally:
            owned = [
                config.deadletter_topic,
                config.control_topic,
                config.inquiries_topic,
                config.decisions_topic,
            ]
            topics.delete([config.monitor_topic("bench"), *owned])


def _run(told: dict[str, Any]) -> dict[str, list[float]]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    java = find_java()
    if java.executable.parent.name == "bin":
        environment["JAVA_HOME"] = str(java.executable.resolve().parent.parent)
    command = [sys.executable, "-m", "relay.bench.spark_writes", json.dumps(told)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if done.returncode:
        raise CheckFailed(f"Spark ended with code {done.returncode}: {done.stderr[-500:]}")
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found

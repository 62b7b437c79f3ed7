"""Spark's own Avro and fastavro agree on every record of the relay, byte for byte, both ways."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from fastavro.utils import generate_many

from relay.local import spark
from relay.message.schemas import codec, parsed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SAMPLES = 25
SCHEMAS = sorted(path.stem for path in (Path(__file__).parents[2] / "schemas").glob("*.avsc"))


def test_both_read_and_write_the_same_bytes(tmp_path: Path) -> None:
    records = {
        name: [codec(name).encode(one).hex() for one in generate_many(parsed(name), SAMPLES)]
        for name in SCHEMAS
    }
    given = tmp_path / "records.json"
    given.write_text(json.dumps(records))
    jars = ",".join(str(jar) for jar in spark.connector_jars(further=[spark.AVRO]))
    job = spark.submission("capture", [])  # only for its environment and its way to spark-submit
    program = Path(__file__).parent / "spark_avro_records.py"
    root = str(Path(__file__).parents[2])
    command = [job.command[0], "--jars", jars, "--driver-memory", "1g", str(program), str(given)]

    done = subprocess.run(
        command, env={**job.environment, "PYTHONPATH": root}, capture_output=True, text=True, timeout=500
    )

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"again"')))
    assert found["stranger_is_null"]
    for name in SCHEMAS:
        assert found["again"][name] == records[name], name

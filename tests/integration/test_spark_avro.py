"""Spark's own Avro and fastavro agree on every record of the relay, and on framed values, byte for byte, both ways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fastavro.utils import generate_many

from relay.local import spark
from relay.message.avro_values import AvroEncoder, frame, parsed_schema
from relay.message.schemas import codec, parsed
from tests.integration.warm_spark import BRIEF

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SAMPLES = 25
SCHEMAS = sorted(path.stem for path in (Path(__file__).parents[2] / "schemas").glob("*.avsc"))

NUMBER = 0x01020304
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total", "type": "long"},
        {"name": "rate", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "seal", "type": ["null", "bytes"]},
        {"name": "lines", "type": {"type": "array", "items": "int"}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "buyer", "type": ["null", {"type": "record", "name": "Buyer", "fields": [{"name": "name", "type": "string"}]}]},
    ],
}
ORDERS = [
    {"id": "", "total": 0, "rate": 0.0, "paid": False, "seal": None, "lines": [], "tags": {}, "kind": "NEW", "buyer": None},
    {"id": "ä€😀", "total": -(2**63), "rate": -1e300, "paid": True, "seal": b"\x00\xff", "lines": [-1, 2**31 - 1],
     "tags": {"a": "b"}, "kind": "OLD", "buyer": {"name": "ann"}},
]


def test_both_read_and_write_the_same_bytes(tmp_path: Path) -> None:
    records = {
        name: [codec(name).encode(one).hex() for one in generate_many(parsed(name), SAMPLES)]
        for name in SCHEMAS
    }
    given = tmp_path / "records.json"
    schema, text = parsed_schema(ORDER)
    values = [AvroEncoder(schema, NUMBER).encode(one).hex() for one in ORDERS]
    strangers = [frame(NUMBER + 1).hex() + values[0][10:], "00"]
    given.write_text(
        json.dumps({"records": records, "schema": text, "number": NUMBER, "values": [*values, *strangers]})
    )
    jars = ",".join(str(jar) for jar in spark.connector_jars(further=[spark.AVRO]))
    job = spark.submission("capture", [])  # only for its environment
    program = Path(__file__).parent / "spark_avro_records.py"
    own = {
        "PYTHONPATH": str(Path(__file__).parents[2]), "PYSPARK_SUBMIT_ARGS": f"--jars {jars} --driver-memory 1g --driver-java-options {BRIEF} pyspark-shell",
    }  # fmt: skip

    done = subprocess.run(
        [sys.executable, str(program), str(given)], env={**job.environment, **own}, capture_output=True, text=True, timeout=500
    )

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"again"')))
    assert found["stranger_is_null"]
    for name in SCHEMAS:
        assert found["again"][name] == records[name], name
    assert found["values"] == [*values, None, None]

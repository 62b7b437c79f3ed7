"""A schema may change only so that everything written before can still be read; version 1 is kept as it was."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from fastavro.utils import generate_many

from relay.message.schemas import Codec, UnknownRecord, codec, read_schema

KEPT = Path(__file__).parent.parent / "fixtures" / "schemas"
SCHEMAS = sorted((Path(__file__).parents[2] / "schemas").glob("*.avsc"))
SAMPLES = 20


def kept() -> list[Path]:
    return sorted(KEPT.glob("*/*.avsc"))


def framed(schema: Any, record: dict[str, Any]) -> bytes:
    """Write a record as Avro's specification says, without the relay's own code."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema, record)
    checksum = bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
    return b"\xc3\x01" + checksum + body.getvalue()


def test_versions_are_kept() -> None:
    assert {path.stem for path in kept()} >= {
        "monitor_begin",
        "monitor_page",
        "monitor_range",
        "monitor_seal",
        "outcome",
    }


@pytest.mark.parametrize("path", kept(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_an_earlier_version_wrote_is_read(path: Path) -> None:
    written = read_schema(path)
    for record in generate_many(written, SAMPLES):
        found = codec(path.stem).decode(framed(written, record))
        assert {name: found[name] for name in record} == record


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_no_schema_has_a_map(path: Path) -> None:
    # Spark writes the entries of a map in an order of its own: its bytes would not be ours.
    assert '"map"' not in path.read_text()


EARLIER = {"type": "record", "name": "Thing", "fields": [{"name": "n", "type": "int"}]}
NOW = {
    "type": "record",
    "name": "Thing",
    "fields": [{"name": "n", "type": "long"}, {"name": "why", "type": "string", "default": ""}],
}


def test_a_field_with_a_default_and_a_wider_type_may_be_added() -> None:
    now, earlier = fastavro.parse_schema(NOW), fastavro.parse_schema(EARLIER)

    assert Codec(now, [earlier]).decode(framed(earlier, {"n": 7})) == {"n": 7, "why": ""}


def test_a_change_without_its_earlier_version_is_noticed() -> None:
    now, earlier = fastavro.parse_schema(NOW), fastavro.parse_schema(EARLIER)

    with pytest.raises(UnknownRecord, match="names another schema"):
        Codec(now).decode(framed(earlier, {"n": 7}))


def test_a_change_that_cannot_read_the_earlier_version_is_noticed() -> None:
    fields = [{"name": "n", "type": "long"}, {"name": "why", "type": "string"}]
    now = fastavro.parse_schema({"type": "record", "name": "Thing", "fields": fields})
    earlier = fastavro.parse_schema(EARLIER)

    with pytest.raises(UnknownRecord):
        Codec(now, [earlier]).decode(framed(earlier, {"n": 7}))

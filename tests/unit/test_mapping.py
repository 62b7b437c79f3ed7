"""Mapping: every source, what is refused and why, and that one bad message spoils only itself."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.delivery.table import mapping
from relay.delivery.table.copy_text import Taking, render
from relay.delivery.table.mapping import TableMapping, decode_json
from relay.message.errors import ConfigError, MessageRejected
from relay.message.record import LogMessage

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "customer", "type": "string"},
        {"name": "total", "type": "long"},
        {"name": "lines", "type": {"type": "array", "items": "int"}},
    ],
}


def message(value: bytes | None = None, *headers: tuple[str, bytes], **over: Any) -> LogMessage:
    facts: dict[str, Any] = {"key": None, **over}
    return LogMessage("orders", 3, 42, facts.pop("key"), value, list(headers), b"d" * 16, b"c" * 8, b"", None, 1700, **facts)


def tuples(columns: list[list[Any]]) -> list[Any]:
    """The plainest finish: one tuple of values for each message."""
    return list(zip(*columns, strict=True))


def one(source: str, record: LogMessage, schema: Path | None = None) -> Any:
    mapped = TableMapping({"x": source}, schema).map([record], tuples)
    for fault in mapped.faults.values():
        raise fault
    return mapped.rows[0][0]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("json:/a", 1),
        ("json:/b/c", [10, {"d": "deep"}]),
        ("json:/b/c/1/d", "deep"),
        ("json:/b/c/7", None),
        ("json:/nothing", None),
        ("json:/b/nothing/at/all", None),
        ("json:/sl~1ash", "s"),
        ("json:/til~0de", "t"),
        ("json:/null", None),
        ("json:/", "empty name"),
    ],
)
def test_json_pointers(source: str, expected: Any) -> None:
    value = {
        "a": 1, "b": {"c": [10, {"d": "deep"}]}, "sl/ash": "s", "til~de": "t", "null": None, "": "empty name",
    }
    assert one(source, message(orjson.dumps(value))) == expected


def test_the_whole_document_and_arrays_at_the_root() -> None:
    assert one("json:", message(b'{"a": 1}')) == {"a": 1}
    assert one("json:/1", message(b"[5, 6]")) == 6


@pytest.mark.parametrize("source", ["json:", "json:/order", "json:/order/lines"])
def test_numbers_inside_a_container_keep_their_digits(source: str) -> None:
    inner = b'[0.12345678901234567890, 123456789012345678901234567890, 100000000000000000000, 1.5, 7]'
    document = b'{"order": {"lines": ' + inner + b'}}'

    for taking in (Taking.JSON, Taking.PLAIN):
        (field,) = render([one(source, message(document))], "x", taking)
        assert json.loads(field, parse_float=str, parse_int=str) == _at(
            json.loads(document, parse_float=str, parse_int=str), source.removeprefix("json:")
        )


def _at(document: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        document = document[step]
    return document


def test_bytes_and_decimals_inside_an_avro_record_are_written_as_json() -> None:
    record = {"total": Decimal("12.50"), "huge": Decimal("1E+3"), "digest": b"\x01\xff", "rate": Decimal("NaN"), "kept": [1]}

    (field,) = render([record], "x", Taking.JSON)

    assert field.replace("\\\\", "\\") == '{"total":12.50,"huge":1E+3,"digest":"\\u0001ÿ","rate":null,"kept":[1]}'


def test_a_whole_number_beyond_64_bits_is_written_as_it_is() -> None:
    assert render([one("json:/wei", message(b'{"wei": 100000000000000000000}'))], "x", Taking.PLAIN) == ["1" + "0" * 20]


@pytest.mark.parametrize(
    "number",
    [
        "1.000000000000000001", "0.30000000000000000001", "-0.50000000000000000001", "1.0000000000000001e5",
        "1234567890123456.01", "9007199254740993.0", "1e-400", "-2.5E-0400", "4.9406564584124654e-324", "1.25e-320",
    ],
)
def test_a_number_keeps_its_digits_also_where_its_double_is_short(number: str) -> None:
    """The double of the first is 1.0: its own form does not tell that something was cut."""
    (field,) = render([one("json:/n", message(b'{"n": %s}' % number.encode()))], "x", Taking.PLAIN)
    assert Decimal(field) == Decimal(number)


@pytest.mark.parametrize("number", ["0.0", "-0.0", "0e-400", "0.00000000000000000000", "1.50", "2e3", "1e22", "0.1"])
def test_what_a_double_holds_stays_one(number: str) -> None:
    found = one("json:/n", message(b'{"n": %s, "at": 1234567890123456789}' % number.encode()))
    assert (type(found), repr(found)) == (float, repr(float(number)))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("ce:id", "7"), ("ce:source", None), ("ce:datacontenttype", "application/json"), ("header:trace", b"\xff"),
        ("header:none", None), ("kafka:topic", "orders"), ("kafka:partition", 3), ("kafka:offset", 42),
        ("kafka:timestamp", 1700), ("kafka:key", b"k"), ("kafka:value", b"v"),
    ],
)
def test_sources_beside_the_value(source: str, expected: Any) -> None:
    headers = [("ce_id", b"6"), ("ce_id", b"7"), ("content-type", b"application/json"), ("trace", b"\xff")]
    assert one(source, message(b"v", *headers, key=b"k")) == expected


def test_a_record_without_a_time_has_none() -> None:
    assert one("kafka:timestamp", message(b"v")._replace(timestamp_ms=-1)) is None


@pytest.mark.parametrize("token", ["²", "\uff11", "-1"])
def test_only_digits_point_into_an_array(token: str) -> None:
    assert one(f"json:/a/{token}", message(b'{"a": [1, 2, 3]}')) is None


@pytest.mark.parametrize(
    ("value", "stage", "code"),
    [
        (None, "decode", "no_value"),
        (b"", "decode", "no_value"),
        (b"{", "decode", "not_json"),
        (b'{"a": "\xff"}', "decode", "not_json"),
        (b"[" * 201 + b"]" * 201, "decode", "too_deep"),
        (b'{"a":' * 201 + b"1" + b"}" * 201, "decode", "too_deep"),
        (b"17", "map", "no_object"),
        (b'"canary"', "map", "no_object"),
        (b"null", "map", "no_object"),
    ],
)
def test_what_is_no_json_for_a_pointer_is_refused(value: bytes | None, stage: str, code: str) -> None:
    with pytest.raises(MessageRejected) as caught:
        one("json:/a", message(value))
    assert (caught.value.stage, caught.value.code) == (stage, code)
    assert "canary" not in str(caught.value)


def test_brackets_inside_strings_are_no_levels() -> None:
    text = "[{" * 300 + '"\\'
    assert decode_json(orjson.dumps({"a": text})) == {"a": text}
    assert decode_json(b"[" * 200 + b"]" * 200)
    assert decode_json(orjson.dumps([[1]] * 500)) == [[1]] * 500


def test_a_value_beyond_the_limit_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "VALUE_BYTES_MAX", 10)
    with pytest.raises(MessageRejected, match="11 bytes"):
        decode_json(b'"123456789"')


def test_a_header_that_is_no_text_is_refused() -> None:
    with pytest.raises(MessageRejected) as caught:
        one("ce:id", message(b"v", ("ce_id", b"\xff")))
    assert (caught.value.stage, caught.value.code) == ("map", "not_text")


@given(st.lists(st.booleans(), max_size=40))
def test_one_bad_message_spoils_only_itself(good: list[bool]) -> None:
    batch = [message(b'{"n": %d}' % n if fine else b"{", ("ce_id", b"%d" % n)) for n, fine in enumerate(good)]
    mapped = TableMapping({"id": "ce:id", "n": "json:/n"}).map(batch, tuples)
    fine = [n for n, is_fine in enumerate(good) if is_fine]
    assert list(mapped.good) == fine
    assert mapped.rows == [(str(n), n) for n in fine]
    assert set(mapped.faults) == set(range(len(good))) - set(fine)


def test_a_message_with_a_fault_is_not_even_decoded() -> None:
    fault = MessageRejected("decode", "too_large", "it is too large")
    mapped = TableMapping({"n": "json:/n"}).map([message(b"{", fault=fault), message(b'{"n": 1}')], tuples)
    assert (mapped.faults, list(mapped.good), mapped.rows) == ({0: fault}, [1], [(1,)])


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "order.avsc"
    path.write_bytes(orjson.dumps(SCHEMA))
    return path


def encoded(record: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(SCHEMA), record)
    return buffer.getvalue()


@pytest.mark.parametrize("frame", [b"", b"\x00\x00\x00\x00\x2a"], ids=["bare", "Confluent"])
def test_avro_fields_and_pointers(schema: Path, frame: bytes) -> None:
    record = {"customer": "ann", "total": 12, "lines": [1, 2]}
    value = frame + encoded(record)
    assert one("avro:customer", message(value), schema) == "ann"
    assert one("avro:/lines/1", message(value), schema) == 2
    assert one("avro:nothing", message(value), schema) is None


def test_a_bare_body_that_begins_like_a_frame(schema: Path) -> None:
    value = encoded({"customer": "", "total": 500, "lines": [7, 8]})
    assert value[0] == 0
    assert one("avro:total", message(value), schema) == 500


@pytest.mark.parametrize("value", [b"\x01", b"\xff" * 30, b"\x00\x00\x00\x00\x2a\xff", encoded({"customer": "a", "total": 1, "lines": []}) + b"x"])
def test_what_is_no_avro_record_is_refused(schema: Path, value: bytes) -> None:
    with pytest.raises(MessageRejected) as caught:
        one("avro:total", message(value), schema)
    assert (caught.value.stage, caught.value.code) == ("decode", "not_avro")


@pytest.mark.parametrize("kind", [{"type": "long", "logicalType": "timestamp-millis"}, {"type": "int", "logicalType": "date"}])
def test_a_time_beyond_all_years_is_said_to_be_perhaps_the_cause(tmp_path: Path, kind: dict[str, str]) -> None:
    path = tmp_path / "order.avsc"
    path.write_bytes(orjson.dumps({"type": "record", "name": "Order", "fields": [{"name": "until", "type": kind}]}))
    longest = b"\xfe\xff\xff\xff\x0f" if kind["type"] == "int" else b"\xfe" + b"\xff" * 8 + b"\x01"

    with pytest.raises(MessageRejected, match="or has a date or a time beyond the years 1 to 9999"):
        one("avro:until", message(longest), path)


@pytest.mark.parametrize(
    "columns", [{"a": "nonsense"}, {"a": "kafka:colour"}, {"a": "avro:x"}, {"a": "json:/x", "b": "avro:y"}]
)
def test_a_mapping_that_cannot_be_is_refused_at_start(columns: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="columns"):
        TableMapping(columns)


def test_a_schema_that_is_none_is_refused_at_start(tmp_path: Path) -> None:
    path = tmp_path / "broken.avsc"
    path.write_text('{"type": "record"}')
    for wrong in (path, tmp_path / "absent.avsc"):
        with pytest.raises(ConfigError, match="schema = "):
            TableMapping({"a": "avro:x"}, wrong)


FIELD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(st.lists(st.one_of(st.none(), FIELD), max_size=8))
def test_fields_read_back_as_they_were(column: list[str | None]) -> None:
    fields = render(column, "x", Taking.PLAIN)
    assert all("\t" not in field and "\n" not in field and "\r" not in field for field in fields)
    assert [_read(field) for field in fields] == column


def _read(field: str) -> str | None:
    """Read one COPY field back, by the rules of PostgreSQL's documentation."""
    if field == "\\N":
        return None
    found, escaped = "", False
    for character in field:
        if escaped:
            found += {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}[character]
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            found += character
    assert not escaped
    return found


@pytest.mark.parametrize(
    ("taking", "value", "field"),
    [
        (Taking.PLAIN, True, "true"), (Taking.PLAIN, 7, "7"), (Taking.PLAIN, 0.5, "0.5"),
        (Taking.PLAIN, b"raw", "raw"), (Taking.PLAIN, {"a": "\n"}, '{"a":"\\\\n"}'),
        (Taking.BINARY, b"\x00\xff", "\\\\x00ff"), (Taking.BINARY, "é", "\\\\xc3a9"), (Taking.BINARY, None, "\\N"),
        (Taking.JSON, "text", '"text"'), (Taking.JSON, b'{"a": 1}', '{"a": 1}'), (Taking.JSON, 3, "3"),
        (Taking.JSON, True, "true"), (Taking.TIME, 1_700_000_000_123, "2023-11-14T22:13:20.123000+00:00"),
        (Taking.TIME, "2026-01-01", "2026-01-01"),
    ],
)
def test_values_take_the_form_of_their_column(taking: Taking, value: Any, field: str) -> None:
    assert render([value], "x", taking) == [field]
    assert render([value, None], "x", taking) == [field, "\\N"]


@pytest.mark.parametrize(("taking", "value"), [(Taking.PLAIN, b"\xff"), (Taking.JSON, b"\xff"), (Taking.TIME, 10**18)])
def test_a_value_that_its_column_cannot_take_is_refused(taking: Taking, value: Any) -> None:
    with pytest.raises(MessageRejected, match="column x"):
        render([value], "x", taking)


TREE = {
    "type": "record",
    "name": "Top",
    "fields": [
        {"name": "tree", "type": {
            "type": "record", "name": "Node", "fields": [{"name": "kids", "type": {"type": "array", "items": "Node"}}]
        }},
        {"name": "holes", "type": {"type": "array", "items": "null"}},
        {"name": "note", "type": ["null", {"type": "map", "values": "string"}]},
    ],
}  # fmt: skip


def deep_tree(levels: int) -> bytes:
    """A tree in which each node has one child, a byte to open a level and a byte to close it."""
    return b"\x02" * levels + b"\x00" + b"\x00" * levels + b"\x00\x00"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "tree.avsc"
    path.write_bytes(orjson.dumps(TREE))
    return path


class TestAvroBounds:
    """A value's bytes lead fastavro through its stack, or into all of the memory, where the schema admits it."""

    def test_a_value_nested_too_deep_spoils_only_itself(self, tree: Path) -> None:
        values = [deep_tree(3), deep_tree(150), deep_tree(900_000), deep_tree(3)]  # 150: deeper than JSON is written
        in_json = TableMapping({"x": "avro:tree"}, tree).map(
            [message(value) for value in values], lambda columns: [render(columns[0], "x", Taking.JSON)]
        )
        assert list(in_json.good) == [0, 3]
        assert {i: fault.code for i, fault in in_json.faults.items()} == {1: "too_deep", 2: "too_deep"}

    def test_what_is_too_deep_to_be_written_as_json_spoils_only_itself(self, tmp_path: Path) -> None:
        schema: Any = "int"
        for _ in range(300):
            schema = {"type": "array", "items": schema}
        path = tmp_path / "deep.avsc"
        path.write_text(json.dumps({"type": "record", "name": "T", "fields": [{"name": "x", "type": schema}]}), "utf-8")
        deep, flat = b"\x02" * 300 + b"\x00" * 301, b"\x00"
        found = TableMapping({"x": "avro:x"}, path).map(
            [message(deep), message(flat)], lambda columns: render(columns[0], "x", Taking.JSON)
        )
        assert (found.rows, [fault.code for fault in found.faults.values()]) == (["[]"], ["no_json"])

    def test_items_without_bytes_do_not_fill_the_memory(self, tree: Path) -> None:
        with pytest.raises(MessageRejected) as caught:
            one("avro:holes", message(b"\x00" + b"\xfe" * 9 + b"\x01" + b"\x00\x00"), tree)
        assert caught.value.code == "too_large"

    def test_ordinary_values_of_such_schemas_are_read(self, tree: Path) -> None:
        record = {"tree": {"kids": [{"kids": [{"kids": []}]}, {"kids": []}]}, "holes": [None] * 7, "note": {"a": "b"}}
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(TREE), record)
        assert one("avro:tree", message(buffer.getvalue()), tree) == record["tree"]
        assert len(one("avro:holes", message(buffer.getvalue()), tree)) == 7
        assert one("avro:note", message(buffer.getvalue()), tree) == {"a": "b"}
        for cut in range(len(buffer.getvalue())):
            with pytest.raises(MessageRejected):
                one("avro:tree", message(buffer.getvalue()[:cut]), tree)

    def test_a_record_that_contains_itself_has_no_value(self, tmp_path: Path) -> None:
        path = tmp_path / "self.avsc"
        path.write_bytes(orjson.dumps({"type": "record", "name": "N", "fields": [{"name": "n", "type": "N"}]}))
        with pytest.raises(MessageRejected):
            one("avro:n", message(b"x"), path)

    @pytest.mark.parametrize("size", [1000, 1001])
    def test_a_decimal_of_thousands_of_digits_is_not_made_a_number(self, tmp_path: Path, size: int) -> None:
        """What that costs grows with the square of its bytes: a megabyte takes minutes, in which nothing else runs."""
        kind = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}
        schema = {"type": "record", "name": "Order", "fields": [{"name": "total", "type": ["null", kind]}]}
        path = tmp_path / "order.avsc"
        path.write_bytes(orjson.dumps(schema))
        buffer = io.BytesIO()
        plain = {"type": "record", "name": "Order", "fields": [{"name": "total", "type": ["null", "bytes"]}]}
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(plain), {"total": b"\x7f" * size})
        found = TableMapping({"x": "avro:total"}, path).map([message(buffer.getvalue())], tuples)
        assert [fault.code for fault in found.faults.values()] == ["too_large"] * (size > 1000)

    @pytest.mark.parametrize("kind", ["bytes", "fixed"])
    def test_a_decimal_keeps_the_digits_that_it_has_beyond_its_schemas(self, tmp_path: Path, kind: str) -> None:
        """Not every writer holds to the precision: what cost 1234.56 came as 1235."""
        stored: dict[str, Any] = {"type": "bytes"} if kind == "bytes" else {"type": "fixed", "name": "F", "size": 3}
        decimal = {**stored, "logicalType": "decimal", "precision": 4, "scale": 2}
        path = tmp_path / "order.avsc"
        path.write_bytes(orjson.dumps({"type": "record", "name": "Order", "fields": [{"name": "total", "type": ["null", decimal]}]}))
        raw = b"\x02" + b"\x06" * (kind == "bytes") + (123456).to_bytes(3, "big")
        assert one("avro:total", message(raw), path) == Decimal("1234.56")

"""Formats: what is written is read again, and what is broken is told unusable without showing it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.message.errors import ConfigError
from relay.queue.message import Taken, Ticket
from relay.work.correlate import correlate
from relay.work.message import Message
from relay.work.subscriber import Handler, Unusable
from relay.work.translate import Avro, Csv, Format, Json, Record, Types, Xml, translate

SCHEMA = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total", "type": "long"},
        {"name": "note", "type": "string"},
    ],
}
FORMATS: list[Format] = [
    Json(),
    Csv(["id", "total", "note"], {"total": int}),
    Xml("order", {"total": int}),
    Avro(SCHEMA),
]
TEXTS = st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cn", "Co")), max_size=20)
RECORDS = st.fixed_dictionaries({"id": TEXTS, "total": st.integers(-(2**63), 2**63 - 1), "note": TEXTS})


def message(value: bytes | None, headers: tuple[tuple[str, bytes | None], ...] = ()) -> Message:
    return Message(Taken(Ticket(1, 1), "p", "1", b"k", value, headers, "s", b"lane", 3, 0, 0, ()))


def published(handler: Handler, given_one: Message) -> tuple[str, Any]:
    handler(given_one)
    ((queue, child),) = given_one.children
    return queue, child


@settings(max_examples=60)
@given(record=RECORDS, source=st.sampled_from(FORMATS), target=st.sampled_from(FORMATS))
def test_every_format_gives_back_what_another_one_wrote(
    record: dict[str, Any], source: Format, target: Format
) -> None:
    handler = translate("in", to="out", source=source, target=target)

    queue, child = published(handler, message(source.encode(record)))

    assert queue == "out"
    assert target.decode(child.value) == record
    assert (child.key, child.lane, child.subject, child.priority) == (b"k", b"lane", "s", 3)


ANYTHING = st.text(st.characters(), max_size=20) | st.sampled_from(
    ["", "a\r", "\ra", "a\r\nb", "\n", " a ", "007", '"', '""', "]]>", "&amp;", "\0", "\x1f", "\x85", "\ufffe", "\ufeff", "x" * 200_000]
)
VALUES = st.fixed_dictionaries(
    {
        "text": ANYTHING,
        "more": ANYTHING,
        "whole": st.integers(),
        "part": st.floats(allow_nan=False),
        "exact": st.decimals(allow_nan=False),
        "flag": st.booleans(),
    }
)
KINDS: Types = {"whole": int, "part": float, "exact": Decimal, "flag": bool}


@settings(max_examples=300)
@given(record=VALUES, form=st.sampled_from([Csv([*KINDS, "text", "more"], KINDS), Xml(types=KINDS)]))
def test_what_is_written_is_read_as_it_was_or_is_refused(record: Record, form: Format) -> None:
    try:
        raw = form.encode(record)
    except ValueError:
        return

    assert form.decode(raw) == record


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [("\r", True), ("a\r\nb\r", True), ("x" * 200_000, True), ("\0", False), ("\ufffe", False), ("\x85", True)],
)
def test_texts_are_kept_where_a_format_has_a_form_for_them(text: str, is_kept: bool) -> None:
    assert Csv(["a", "b"]).decode(Csv(["a", "b"]).encode({"a": text, "b": text})) == {"a": text, "b": text}
    if is_kept:
        assert Xml().decode(Xml().encode({"a": text})) == {"a": text}
    else:
        with pytest.raises(ValueError, match="no form in XML"):
            Xml().encode({"a": text})


@pytest.mark.parametrize("number", ["18446744073709551617", "0.12345678901234567890123", "1E+400", "-7", "1.5"])
def test_a_number_keeps_its_digits(number: str) -> None:
    read = Json().decode(f'{{"a":{number}}}'.encode())

    assert Csv(["a"]).encode(read) == f"{number}\n".encode()
    assert Xml("r").encode(read) == f"<r><a>{number}</a></r>".encode()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), Decimal("0.12345678901234567890123"), 2**64])
def test_a_number_that_json_would_alter_is_refused(number: object) -> None:
    with pytest.raises(ValueError, match="no form in JSON"):
        Json().encode({"a": [{"b": number}]})


@pytest.mark.parametrize(
    ("value", "kind"),
    [(1.5, "long"), (True, "long"), ("1", "double"), (1, "boolean"), ("x", "bytes"), (2**53 + 1, "double"), (1e39, "float")],
)
def test_a_value_of_another_kind_is_not_made_to_fit_a_schema(value: object, kind: str) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Avro({"type": "record", "name": "o", "fields": [{"name": "a", "type": kind}]}).encode({"a": value})


@pytest.mark.parametrize("over", [{"columns": ["a", "a"]}, {"columns": []}, *({"delimiter": one} for one in ('"', "\n", "||", ""))])
def test_a_form_of_csv_that_cannot_be_read_again_is_a_configuration_error(over: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Csv"):
        Csv(**{"columns": ["a", "b"], **over})


def test_the_names_and_places_of_schemas_say_nothing_of_a_value() -> None:
    raw = b'<record xmlns="u" xmlns:x="v" x:schemaLocation="w"> <a>1</a>\n</record><!-- end -->'

    assert Xml().decode(raw) == {"a": "1"}


def test_the_content_type_follows_the_format_and_other_headers_stay() -> None:
    handler = translate("in", to="out", source=Json(), target=Xml())
    _, child = published(
        handler, message(b'{"a":"x<y"}', (("content-type", b"application/json"), ("trace", b"1")))
    )

    assert child.value == b"<record><a>x&lt;y</a></record>"
    assert child.headers == (("trace", b"1"), ("content-type", b"application/xml"))


def test_fields_may_be_renamed_and_computed() -> None:
    handler = translate("in", to="out", source=Json(), target=Json(), change=lambda one: {"n": one["a"] + 1})

    assert published(handler, message(b'{"a":1}'))[1].value == b'{"n":2}'


BROKEN = [
    (Json(), b"{canary"),
    (Json(), b'["canary"]'),
    (Json(), None),
    (Json(), b'{"a":1,"a":"canary"}'),
    (Json(), b'{"a":NaN}'),
    (Json(), b"[" * 100_000),
    (Json(), b'{"a":1e99999999999999999999}'),
    (Csv(["a", "b"]), b"canary"),
    (Csv(["a"], {"a": int}), b"canary"),
    (Csv(["a"]), b"\xff"),
    (Csv(["a"], {"a": bool}), b"canary"),
    (Xml(), b"<record><a>canary</record>"),
    (Xml(), b"<canary/>"),
    (Xml(), b'<record a="canary"/>'),
    (Xml(), b'<record xmlns:xsi="x"><a xsi:nil="true"/></record>'),
    (Xml(), b"<record>canary<a>1</a></record>"),
    (Xml(), b"<record><a><b>canary</b></a></record>"),
    (Xml(), b"<record><a>1</a><a>canary</a></record>"),
    (Xml(), b'<!DOCTYPE record [<!ENTITY a "canary">]><record><a>&a;</a></record>'),
    (Avro(SCHEMA), b"\x0ccanary"),
    (Avro(SCHEMA), Avro(SCHEMA).encode({"id": "a", "total": 1, "note": "b"}) + b"canary"),
]


@pytest.mark.parametrize(("source", "raw"), BROKEN)
def test_what_cannot_be_read_is_unusable_and_not_shown(source: Format, raw: bytes | None) -> None:
    with pytest.raises(Unusable) as refused:
        translate("in", to="out", source=source, target=Json())(message(raw))

    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("target", "record"),
    [
        (Csv(["a"]), b'{"b":1}'),
        (Csv(["a"]), b'{"a":[1]}'),
        (Xml(), b'{"no name":1}'),
        (Xml(), b'{"a":"\\u0001"}'),
        (Avro(SCHEMA), b'{"id":1}'),
    ],
)
def test_what_cannot_be_written_is_unusable(target: Format, record: bytes) -> None:
    with pytest.raises(Unusable):
        translate("in", to="out", source=Json(), target=target)(message(record))


def test_one_part_is_no_correlation() -> None:
    with pytest.raises(ConfigError, match="two parts"):
        correlate("in", to="out", resource="shop", parts=["a"], part_of=str, key_of=str, join=dict)


LINKED = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
HOLES = {"type": "record", "name": "H", "fields": [{"name": "holes", "type": {"type": "array", "items": "null"}}]}
MOMENT = {"type": "record", "name": "M", "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}


@pytest.mark.parametrize(
    ("schema", "raw"),
    [
        (LINKED, b"\x02" * 900 + b"\x00"),  # twenty thousand levels, a byte each, end the process with its stack
        (HOLES, b"\x80\xda\xc4\x09\x00"),  # ten million items in five bytes; a longer count fills the memory
        (MOMENT, b"\xfe" + b"\xff" * 8 + b"\x01"),
    ],
)
def test_avro_that_claims_more_than_it_may_is_unusable(schema: dict[str, Any], raw: bytes) -> None:
    handler = translate("in", to="out", source=Avro(schema), target=Json())

    with pytest.raises(Unusable, match="cannot be read as avro/binary: "):
        handler(message(raw))

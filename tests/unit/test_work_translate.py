"""Formats: what is written is read again, and what is broken is told unusable without showing it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.message.errors import ConfigError
from relay.queue.message import Taken, Ticket
from relay.work.correlate import correlate
from relay.work.message import Message
from relay.work.subscriber import Handler, Unusable
from relay.work.translate import Avro, Csv, Format, Json, Xml, translate

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


@settings(max_examples=60, deadline=None)
@given(record=RECORDS, source=st.sampled_from(FORMATS), target=st.sampled_from(FORMATS))
def test_every_format_gives_back_what_another_one_wrote(
    record: dict[str, Any], source: Format, target: Format
) -> None:
    handler = translate("in", to="out", source=source, target=target)

    queue, child = published(handler, message(source.encode(record)))

    assert queue == "out"
    assert target.decode(child.value) == record
    assert (child.key, child.lane, child.subject, child.priority) == (b"k", b"lane", "s", 3)


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
    (Csv(["a", "b"]), b"canary"),
    (Csv(["a"], {"a": int}), b"canary"),
    (Csv(["a"]), b"\xff"),
    (Xml(), b"<record><a>canary</record>"),
    (Xml(), b"<canary/>"),
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

"""A handler that reads a message in one format and publishes it in another: Avro, JSON, CSV and XML.

A message is one record of named fields. CSV and XML know only texts, so they are told what else a field is.
What a format has no form for is refused, never altered: text, digits of a number, an attribute.
Source: document 003, [28] and [64]: data translation.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Literal, Protocol
from xml.parsers import expat
from xml.sax.saxutils import escape

import fastavro
import orjson

from relay.message.avro_values import read_record, write_record
from relay.message.errors import ConfigError, MessageRejected
from relay.message.json_text import all_finite
from relay.work.message import Message
from relay.work.subscriber import Handler, Unusable, subscriber

Record = dict[str, Any]
Types = Mapping[str, Callable[[str], Any]]
"""What the text of a field becomes, such as ``{"total": int}``; a field without an entry stays text. ``bool``: true or false."""

_XML_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}
CONTENT_TYPE: Final = "content-type"
# A field may be as long as a message, which has a bound of its own; this one is the process's.
csv.field_size_limit(sys.maxsize)


class Format(Protocol):
    """How a record is written."""

    content_type: str

    def decode(self, raw: bytes) -> Record:
        """Return the record; raises ValueError, without the payload in its text."""

    def encode(self, record: Record) -> bytes:
        """Return the bytes; raises ValueError if the record does not fit."""


class Json:
    """One JSON object. A number with more digits than a float keeps is read as a Decimal, which JSON is not written from."""

    content_type: Final = "application/json"

    def decode(self, raw: bytes) -> Record:
        """Read an object."""
        try:
            found = _JSON.decode(raw.decode())
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise ValueError("not JSON") from None
        if not isinstance(found, dict):
            raise ValueError("JSON, but no object")  # noqa: TRY004 - one error for all that a payload can be
        return found

    def encode(self, record: Record) -> bytes:
        """Write an object."""
        try:
            if not all_finite(record):
                raise ValueError("a number that is not finite has no form in JSON")
            return orjson.dumps(record)
        except (orjson.JSONEncodeError, RecursionError):
            raise ValueError("a field has no form in JSON") from None


class Csv:
    """One line of the columns given; no value and an empty text are the same here."""

    content_type: Final = "text/csv"

    def __init__(self, columns: Sequence[str], types: Types | None = None, delimiter: str = ",") -> None:
        if not columns or len(set(columns)) < len(columns):
            raise ConfigError(f"Csv(columns={list(columns)!r}): give at least one, and each once")
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise ConfigError(f"Csv(delimiter={delimiter!r}): give one character, no quote and no end of a line")
        self._columns = list(columns)
        self._types = dict(types or {})
        self._delimiter = delimiter

    def decode(self, raw: bytes) -> Record:
        """Read a line."""
        try:
            rows = list(csv.reader(io.StringIO(raw.decode()), delimiter=self._delimiter, strict=True))
        except (csv.Error, UnicodeDecodeError):
            raise ValueError("not CSV") from None
        if len(rows) != 1 or len(rows[0]) != len(self._columns):
            raise ValueError(f"not one line of {len(self._columns)} columns")
        return _typed(dict(zip(self._columns, rows[0], strict=True)), self._types)

    def encode(self, record: Record) -> bytes:
        """Write a line; a field that is no column does not fit."""
        _check_fields(record, self._columns)
        out = io.StringIO()
        row = [_text(record.get(column)) for column in self._columns]
        # Only what stands in the line's end is quoted, and readers take a bare carriage return for one.
        csv.writer(out, delimiter=self._delimiter, lineterminator="\r\n").writerow(row)
        return (out.getvalue().removesuffix("\r\n") + "\n").encode()


class Xml:
    """One element with one child per field; a child that is missing has no value. Attributes, and text beside fields, are refused."""

    content_type: Final = "application/xml"

    def __init__(self, root: str = "record", types: Types | None = None) -> None:
        if not _XML_NAME.fullmatch(root):
            raise ConfigError(f"Xml(root={root!r}): not an element's name")
        self._root = root
        self._types = dict(types or {})

    def decode(self, raw: bytes) -> Record:
        """Read an element; a document type, which could make entities, is refused."""
        reading = _Fields(self._root)
        try:
            reading.parser.Parse(raw, True)
        except (expat.ExpatError, LookupError):
            raise ValueError("not XML") from None
        return _typed(reading.fields, self._types)

    def encode(self, record: Record) -> bytes:
        """Write an element; fields must have names that an element can have."""
        parts = []
        for name, value in record.items():
            if not _XML_NAME.fullmatch(name):
                raise ValueError("a field's name cannot be an element's")
            if value is not None:
                parts.append(f"<{name}>{_xml_text(value)}</{name}>")
        return f"<{self._root}>{''.join(parts)}</{self._root}>".encode()


class Avro:
    """One Avro record of a schema that both sides know, without a frame."""

    content_type: Final = "avro/binary"

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = fastavro.parse_schema(dict(schema))

    def decode(self, raw: bytes) -> Record:
        """Read a record that fills the bytes."""
        try:
            found = read_record(raw, 0, self._schema, None)
        except MessageRejected as rejected:
            raise ValueError(str(rejected)) from None
        if not isinstance(found, dict):
            raise ValueError("Avro, but no record")  # noqa: TRY004 - one error for all that a payload can be
        return found

    def encode(self, record: Record) -> bytes:
        """Write a record whose fields have the schema's types."""
        return write_record(record, self._schema)


def translate(
    queue: str,
    *,
    to: str,
    source: Format,
    target: Format,
    change: Callable[[Record], Record] | None = None,
    order: Literal["queue", "none"] = "queue",
) -> Handler:
    """Return a handler that publishes each message of ``queue`` to ``to`` in another format, key, headers and lane kept.

    ``change`` may rename and compute fields. What cannot be read or written becomes UNUSABLE, with the reason.
    """

    def translated(message: Message) -> None:
        try:
            record = source.decode(message.value or b"")
        except ValueError as error:
            raise Unusable(f"the message cannot be read as {source.content_type}: {error}") from None
        changed = record if change is None else change(record)
        try:
            value = target.encode(changed)
        except ValueError as error:
            raise Unusable(f"the message cannot be written as {target.content_type}: {error}") from None
        kept = [header for header in message.headers if header[0] != CONTENT_TYPE]
        headers = (*kept, (CONTENT_TYPE, target.content_type.encode()))
        message.publish(to, value, headers=headers, subject=message.subject)

    return subscriber(queue, order=order)(translated)


class _Fields:
    """Collects the children of one root element."""

    def __init__(self, root: str) -> None:
        self.fields: dict[str, str] = {}
        self._root = root
        self._path: list[str] = []
        self._texts: list[str] = []
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._refuse

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if any(not _is_of_schema(attribute) for attribute in attributes):
            raise ValueError("an attribute is no field")
        if not self._path and name != self._root:
            raise ValueError(f"the root element is not {self._root!r}")
        if len(self._path) > 1 or name in self.fields:
            raise ValueError("a field inside a field, or twice")
        self._path.append(name)
        self._texts = []

    def _end(self, _name: str) -> None:
        name = self._path.pop()
        if self._path:
            self.fields[name] = "".join(self._texts)

    def _text(self, text: str) -> None:
        if len(self._path) > 1:
            self._texts.append(text)
        elif text.strip(" \t\r\n"):
            raise ValueError("text beside the fields")

    def _refuse(self, *_: Any) -> None:
        raise ValueError("a document type is not accepted")


def _typed(fields: dict[str, str], types: Types) -> Record:
    record: Record = {}
    for name, text in fields.items():
        try:
            record[name] = _read(text, types[name]) if name in types else text
        except (ValueError, ArithmeticError, KeyError):
            raise ValueError(f"field {name!r} is not what it should be") from None
    return record


def _read(text: str, kind: Callable[[str], Any]) -> Any:
    return _TRUTHS[text] if kind is bool else kind(text)


def _is_of_schema(attribute: str) -> bool:
    """Whether an attribute names a schema, or where it lies: nothing of a value."""
    prefix, _, name = attribute.rpartition(":")
    return "xmlns" in (prefix, name) or (bool(prefix) and name in ("schemaLocation", "noNamespaceSchemaLocation"))


def _json_number(text: str) -> float | Decimal:
    found = float(text)
    if repr(found) == text:
        return found
    try:
        exact = Decimal(text)
    except ArithmeticError:
        raise ValueError("a number beyond all bounds") from None
    return found if Decimal(repr(found)) == exact else exact


def _json_object(pairs: list[tuple[str, Any]]) -> Record:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a field twice")
    return record


def _no_json_number(_: str) -> Any:
    raise ValueError("a number that JSON does not have")


_JSON: Final = json.JSONDecoder(
    object_pairs_hook=_json_object, parse_float=_json_number, parse_constant=_no_json_number
)


def _check_fields(record: Record, columns: Sequence[str]) -> None:
    strange = sorted(record.keys() - set(columns))
    if strange:
        raise ValueError(f"field {strange[0]!r} has no column")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float | Decimal):
        return str(value)
    raise ValueError("a field within a field has no place here")


def _xml_text(value: Any) -> str:
    text = _text(value)
    if _NOT_XML.search(text):
        raise ValueError("a control character, or what is none at all, has no form in XML")
    return escape(text, {"\r": "&#13;"})

"""Avro values of the applications: bare, or framed with the number under which a registry knows their writer's schema.

With a registry configured, a value that begins with a zero byte and has at least five bytes is framed: nothing else may
decide it, or a registry that is away would change what a message means. The relay's own records are never framed so:
they carry Avro's fingerprint (``relay.message.schemas``), since a recovery must read its evidence whoever else is away.
Source: Confluent's wire format; since Confluent Platform 8 its clients may put the schema's id or GUID into a header.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import fastavro
import orjson
from fastavro.validation import validate

from relay.message import avro_bounds
from relay.message.errors import CaptureError, ConfigError, MessageRejected
from relay.message.limits import raise_limit

VALUE_BYTES_MAX: Final = 16 * 1024**2
"""A larger value is not decoded; brokers take 1 MiB unless told otherwise."""
FRAME_BYTES: Final = 5
SCHEMA_HEADER: Final = "__value_schema_id"
CONTENT_TYPE: Final = b"application/avro"
_ID_MAGIC: Final = b"\x00"
_GUID_MAGIC: Final = b"\x01"
_GUID_FRAME_BYTES: Final = 17

SchemaKey = int | bytes
"""A schema's number in its registry, or the 16 bytes of its GUID."""
_Headers = Iterable[tuple[str, bytes]]


class WriterSchemas(Protocol):
    """Where the schemas of framed values are found."""

    def schema(self, key: SchemaKey) -> Any:
        """Return a schema as fastavro takes it.

        Raises MessageRejected if the registry does not know it or it is not Avro, Unreachable if nothing is known, and
        Stopped if the registry wants other credentials.
        """


class _Framed(NamedTuple):
    key: SchemaKey
    body_at: int


def frame(number: int) -> bytes:
    """Return what stands before a value of the schema with this number."""
    return _ID_MAGIC + number.to_bytes(4, "big")


class AvroDecoder:
    """Decodes values; ``path`` is the schema in whose terms they are read, a bare value's own. Any thread may use it.

    Raises ConfigError if the file is not a schema, or if neither a file nor a registry is given.
    """

    def __init__(self, path: Path | None, registry: WriterSchemas | None = None) -> None:
        if path is None and registry is None:
            raise ConfigError(
                'Avro is asked for and no schema is given; add schema = "path.avsc", or a [registry]'
            )
        self._schema = None if path is None else parsed_schema(path)[0]
        self._registry = registry

    def decode(self, value: bytes | None, headers: _Headers = ()) -> Any:
        """Return the value's record; raises MessageRejected, and what ``WriterSchemas.schema`` raises."""
        if not value:
            raise MessageRejected("decode", "no_value", "the message has no value, and its Avro is asked for")
        if len(value) > VALUE_BYTES_MAX:
            raise too_large(value)
        if self._registry is None:
            return self._decode_by_file(value)
        framed = _framed(value, headers)
        if framed is None:
            return self._decode_bare(value)
        return read_record(value, framed.body_at, self._registry.schema(framed.key), self._schema)

    def _decode_bare(self, value: bytes) -> Any:
        if self._schema is None:
            sentence = (
                "the value is not framed for a registry, and the destination names no schema for bare values"
            )
            raise MessageRejected("decode", "not_framed", sentence)
        return read_record(value, 0, self._schema, None)

    def _decode_by_file(self, value: bytes) -> Any:
        # A zero byte may also begin a bare body, so a frame counts only if the rest is exactly one record.
        if value[:1] == _ID_MAGIC and len(value) > FRAME_BYTES:
            try:
                return read_record(value, FRAME_BYTES, self._schema, None)
            except MessageRejected:
                pass
        return read_record(value, 0, self._schema, None)


class AvroEncoder:
    """Encodes values of one schema: framed with its number in a registry, bare without one. Any thread may use it."""

    def __init__(self, schema: Any, number: int | None = None) -> None:
        self._schema = schema
        self._frame = b"" if number is None else frame(number)

    def encode(self, data: Any) -> bytes:
        """Return the value; CaptureError if the data does not fit the schema."""
        try:
            return self._frame + write_record(data, self._schema)
        except ValueError as error:
            raise CaptureError(f"{error}; give every field of the schema, in its type, and no other") from None


def parsed_schema(schema: Path | Mapping[str, Any]) -> tuple[Any, str]:
    """Return a schema, given itself or by its file, as fastavro takes it and as text; ConfigError if it is none."""
    try:
        text = schema.read_text("utf-8") if isinstance(schema, Path) else orjson.dumps(dict(schema)).decode()
        return fastavro.parse_schema(orjson.loads(text)), text
    except Exception as error:  # noqa: BLE001 - whatever a parser of a stranger's schema raises means one thing
        raise_limit(error)
        where = repr(str(schema)) if isinstance(schema, Path) else "..."
        raise ConfigError(
            f"schema = {where}: not a readable Avro schema ({type(error).__name__}); correct the path or the schema"
        ) from None


def too_large(value: bytes) -> MessageRejected:
    """Return the rejection of a value above ``VALUE_BYTES_MAX``."""
    return MessageRejected(
        "decode",
        "too_large",
        f"the value has {len(value)} bytes, more than the {VALUE_BYTES_MAX} that are decoded",
    )


def _framed(value: bytes, headers: _Headers) -> _Framed | None:
    """Return which schema wrote a value and where its body begins; None if it is bare."""
    fields = dict(headers)
    if SCHEMA_HEADER in fields:
        return _Framed(_key_in_header(fields[SCHEMA_HEADER] or b""), 0)
    if value[:1] == _ID_MAGIC and len(value) >= FRAME_BYTES:
        return _Framed(int.from_bytes(value[1:FRAME_BYTES], "big"), FRAME_BYTES)
    return None


def _key_in_header(raw: bytes) -> SchemaKey:
    if raw[:1] == _ID_MAGIC and len(raw) == FRAME_BYTES:
        return int.from_bytes(raw[1:], "big")
    if raw[:1] == _GUID_MAGIC and len(raw) == _GUID_FRAME_BYTES:
        return raw[1:]
    raise MessageRejected(
        "decode", "bad_frame", f"the header {SCHEMA_HEADER} holds neither a schema's id nor its GUID"
    )


def write_record(data: Any, schema: Any) -> bytes:
    """Return data as a bare value; ValueError, which does not show it, unless it has the schema's fields and types, and its numbers
    keep what they are: a double has no form for all whole numbers.
    """
    buffer = io.BytesIO()
    try:
        # The writer itself cuts the fraction off a number, and makes numbers of truths, truths of texts and of nothing.
        validate(data, schema, strict=True)
        fastavro.schemaless_writer(buffer, schema, data, strict=True)
    except Exception as error:  # noqa: BLE001 - whatever data of a wrong shape leads either to
        raise_limit(error)
        raise ValueError(f"data does not fit its Avro schema ({type(error).__name__})") from None
    value = buffer.getvalue()
    try:
        found = fastavro.schemaless_reader(io.BytesIO(value), schema, None)
    except Exception as error:  # noqa: BLE001 - a logical type may have values that Python has no form for
        raise_limit(error)
        return value
    if not _is_kept(data, found):
        raise ValueError("data does not fit its Avro schema (a number that a float or double does not hold)")
    return value


def _is_kept(given: Any, found: Any) -> bool:
    """Is what was read the number that was given? One that is no whole number is rounded, as its type says, but not to an infinity."""
    if isinstance(given, tuple) and not isinstance(found, list):
        given = given[1]  # of a union: the branch's name and the value
    if isinstance(found, float):
        return found == given if isinstance(given, int) else not isinstance(given, float) or isfinite(found) or not isfinite(given)
    # An application's own logical type may stand for anything.
    if isinstance(found, dict) and isinstance(given, Mapping):
        return all(_is_kept(given.get(name), one) for name, one in found.items())
    return not (isinstance(found, list) and isinstance(given, Sequence)) or all(map(_is_kept, given, found))


def read_record(value: bytes, start: int, written: Any, wanted: Any) -> Any:
    """Read one record that ends where the value ends, in the terms of the schema wanted, if one is; raises MessageRejected."""
    written = avro_bounds.check(value, start, written)
    buffer = io.BytesIO(value)
    buffer.seek(start)
    may_be_a_time = False
    try:
        found = fastavro.schemaless_reader(buffer, written, wanted)
    except Exception as error:  # noqa: BLE001 - fastavro raises whatever the broken bytes lead it to
        raise_limit(error)
        found, whole = None, False
        may_be_a_time = isinstance(error, OverflowError | ValueError)
    else:
        whole = buffer.tell() == len(value)
    if not whole:
        beyond = ", or has a date or a time beyond the years 1 to 9999" if may_be_a_time else ""
        raise MessageRejected("decode", "not_avro", f"the value is not one Avro record of the schema it is read with{beyond}")
    return found

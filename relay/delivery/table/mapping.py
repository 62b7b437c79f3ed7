"""Mapping: a batch of messages becomes columns of values, each value decoded once; a bad message spoils only itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import orjson

from relay.message.avro_values import VALUE_BYTES_MAX, AvroDecoder, WriterSchemas, too_large
from relay.message.envelope import CONTENT_TYPE
from relay.message.errors import ConfigError, MessageRejected
from relay.message.identity import resolve_pointer
from relay.message.json_digits import DOUBLE_CHARACTERS, LONG_NUMBER, is_cut
from relay.message.limits import raise_limit
from relay.message.record import LogMessage

JSON_DEPTH_MAX: Final = 200
"""Fewer levels than the JSON writer takes (254), so that whatever is decoded can be written into a column again."""

INTEGER_BITS: Final = 63
"""A whole number beyond them may be decoded as a double, whatever its length."""

Decode = Callable[[Sequence[LogMessage]], list[Any]]
"""The documents in the values of a run of messages; MessageRejected if one of them is none."""

Finish = Callable[[list[list[Any]]], list[Any]]
"""Turns a run's columns into rows of the form that a database takes; may raise MessageRejected like a source."""


class Mapped(NamedTuple):
    """Rows of the messages that can be mapped; ``good`` are those messages' indices, ``faults`` the others'."""

    rows: list[Any]
    good: Sequence[int]
    faults: dict[int, MessageRejected]


class BatchMapping(Protocol):
    """Maps batches into what an effect writes; any thread may call it."""

    def map(self, messages: Sequence[LogMessage], finish: Finish) -> Mapped:
        """Map messages; those that cannot be, and those with a fault already, are left out."""


class _Opened:
    """A run of messages with what several columns need, made once."""

    __slots__ = ("documents", "headers", "messages")

    def __init__(self, messages: Sequence[LogMessage], decode: Decode | None, *, headers: bool) -> None:
        self.messages = messages
        self.headers = [dict(message.headers) for message in messages] if headers else []
        self.documents = decode(messages) if decode else []


_Column = Callable[[_Opened], list[Any]]


class TableMapping:
    """The compiled sources of a destination's columns. Thread-safe: it holds no state.

    With a registry, framed Avro is read with its writer's schema, in the terms of ``schema`` if that is given; ``map``
    then also raises what ``WriterSchemas.schema`` does: while nothing is known of a schema, nothing is said of a message.
    """

    def __init__(
        self, columns: Mapping[str, str], schema: Path | None = None, registry: WriterSchemas | None = None
    ) -> None:
        self.names = tuple(columns)
        self.sources = tuple(columns.values())
        kinds = {source.partition(":")[0] for source in self.sources}
        if {"json", "avro"} <= kinds:
            raise ConfigError("columns: json: and avro: sources are mixed; a value is one or the other")
        self._decode = _decoder(kinds, schema, registry)
        self._headers = bool(kinds & {"ce", "header"})
        self._columns = [_column(source) for source in self.sources]

    def map(self, messages: Sequence[LogMessage], finish: Finish) -> Mapped:
        """Map messages; those that cannot be, and those with a fault already, are left out."""
        faults = {i: message.fault for i, message in enumerate(messages) if message.fault is not None}
        good: Sequence[int] = range(len(messages))
        if faults:
            good = [i for i in good if i not in faults]
        rows: list[Any] = []
        return Mapped(rows, self._halve(messages, good, finish, rows, faults), faults)

    def _halve(
        self,
        messages: Sequence[LogMessage],
        indices: Sequence[int],
        finish: Finish,
        rows: list[Any],
        faults: dict[int, MessageRejected],
    ) -> Sequence[int]:
        """Map a run as a whole; if it holds a bad message, its halves, down to that message."""
        if not indices:
            return indices
        try:
            opened = _Opened([messages[i] for i in indices], self._decode, headers=self._headers)
            rows += finish([column(opened) for column in self._columns])
        except MessageRejected as rejection:
            if len(indices) == 1:
                faults[indices[0]] = rejection
                return []
            middle = len(indices) // 2
            left = self._halve(messages, indices[:middle], finish, rows, faults)
            right = self._halve(messages, indices[middle:], finish, rows, faults)
            return [*left, *right]
        return indices


def _decoder(kinds: set[str], schema: Path | None, registry: WriterSchemas | None) -> Decode | None:
    if "json" in kinds:
        return lambda messages: [decode_json(message.value) for message in messages]
    if "avro" in kinds:
        if schema is None and registry is None:
            remedy = 'add schema = "path.avsc" to the destination, or a [registry]'
            raise ConfigError(f"columns: an avro: source needs a schema; {remedy}")
        read = AvroDecoder(schema, registry).decode
        return lambda messages: [read(message.value, message.headers) for message in messages]
    return None


def decode_json(value: bytes | None) -> Any:
    """Decode a JSON value; MessageRejected if it is absent, too large, too deep or not JSON."""
    if not value:
        raise MessageRejected("decode", "no_value", "the message has no value, and a column is mapped from its JSON")
    if len(value) > VALUE_BYTES_MAX:
        raise too_large(value)
    # A level takes two bytes, and more brackets than levels allowed are rare: only then the levels are counted.
    if (
        len(value) > 2 * JSON_DEPTH_MAX
        and value.count(b"[") + value.count(b"{") > JSON_DEPTH_MAX
        and _depth(value) > JSON_DEPTH_MAX
    ):
        raise MessageRejected("decode", "too_deep", f"the JSON value is nested deeper than {JSON_DEPTH_MAX} levels")
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise_limit(error)
        raise MessageRejected("decode", "not_json", f"the value is not JSON (at character {error.pos})") from None


def _depth(value: bytes) -> int:
    """Return how deep brackets nest, those inside strings excepted."""
    depth = deepest = 0
    inside = escaped = False
    for byte in value:
        if inside:
            if escaped:
                escaped = False
            elif byte == 0x5C:  # backslash
                escaped = True
            elif byte == 0x22:  # quotation mark
                inside = False
        elif byte == 0x22:
            inside = True
        elif byte in (0x5B, 0x7B):  # [ {
            depth += 1
            deepest = max(deepest, depth)
        elif byte in (0x5D, 0x7D):  # ] }
            depth -= 1
    return deepest


def _column(source: str) -> _Column:
    kind, _, argument = source.partition(":")
    if kind == "ce":
        header = CONTENT_TYPE if argument == "datacontenttype" else f"ce_{argument}"
        return partial(_text_header, header)
    if kind == "header":
        return partial(_raw_header, argument)
    if kind == "json":
        return partial(_uncut, argument)
    if kind == "avro":
        return partial(_pointer, argument if argument.startswith("/") else "/" + argument)
    if kind == "kafka" and argument in _KAFKA:
        return _KAFKA[argument]
    raise ConfigError(
        f"columns: {source!r} is not a source; use ce:ATTRIBUTE, json:/pointer, avro:field, header:NAME or "
        f"kafka:{'|'.join(_KAFKA)}"
    )


_KAFKA: Final[dict[str, _Column]] = {
    "topic": lambda opened: [message.topic for message in opened.messages],
    "partition": lambda opened: [message.partition for message in opened.messages],
    "offset": lambda opened: [message.offset for message in opened.messages],
    "timestamp": lambda opened: [None if message.timestamp_ms < 0 else message.timestamp_ms for message in opened.messages],
    "key": lambda opened: [message.key for message in opened.messages],
    "value": lambda opened: [message.value for message in opened.messages],
}


def _raw_header(name: str, opened: _Opened) -> list[Any]:
    return [headers.get(name) for headers in opened.headers]


def _text_header(name: str, opened: _Opened) -> list[Any]:
    try:
        return [headers[name].decode() for headers in opened.headers]
    except (KeyError, AttributeError):
        found = [headers.get(name) for headers in opened.headers]
        return [None if raw is None else text(raw, name) for raw in found]
    except UnicodeDecodeError:
        raise _not_text(name) from None


def _pointer(pointer: str, opened: _Opened) -> list[Any]:
    """Follow a pointer in each document; what leads nowhere is NULL, and the table says if it may be."""
    step = pointer[1:]
    if "/" not in step and "~" not in step:
        try:
            return [document.get(step) for document in opened.documents]
        except AttributeError:
            pass
    return [_resolve(document, pointer) for document in opened.documents]


def _uncut(pointer: str, opened: _Opened) -> list[Any]:
    """Follow a pointer; a number of more digits than a double holds is taken as it is written, also inside a container."""
    values = _pointer(pointer, opened) if pointer else list(opened.documents)
    for i, value in enumerate(values):
        kind = type(value)
        if kind is float:
            # The double's own form does not tell: the double of 1.000000000000000001 is 1.0.
            raw = opened.messages[i].value or b""
            if abs(value) >= 1 << INTEGER_BITS or LONG_NUMBER.search(raw):
                values[i] = _as_written(value, raw, pointer)
        elif (kind is dict or kind is list) and LONG_NUMBER.search(raw := opened.messages[i].value or b""):
            values[i] = resolve_pointer(json.loads(raw, parse_float=orjson.Fragment, parse_int=_whole), pointer)
    return values


def _as_written(value: float, raw: bytes, pointer: str) -> float | int | Decimal:
    try:
        found = resolve_pointer(json.loads(raw, parse_float=str), pointer)
        if isinstance(found, int):
            return found
        return Decimal(found) if is_cut(found, value) else value
    except (ValueError, ArithmeticError):
        return value  # thousands of digits: more than any column takes


def _whole(digits: str) -> int | orjson.Fragment:
    """Return a whole number inside a container: one that the JSON writer would refuse goes into it as it is written."""
    return int(digits) if len(digits) < DOUBLE_CHARACTERS else orjson.Fragment(digits)


def _resolve(document: Any, pointer: str) -> Any:
    if not isinstance(document, dict | list):
        raise MessageRejected(
            "map", "no_object", f"the value is neither an object nor an array, and a column is mapped from {pointer}"
        )
    try:
        return resolve_pointer(document, pointer)
    except KeyError:
        return None


def text(raw: bytes, name: str) -> str:
    """Decode UTF-8; MessageRejected names the header or column."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise _not_text(name) from None


def _not_text(name: str) -> MessageRejected:
    return MessageRejected("map", "not_text", f"{name} is not UTF-8 text; map it to a binary column")

"""What `publish` makes of its arguments: a CloudEvent in Kafka binary mode, checked before anything is appended."""

from __future__ import annotations

from operator import index
from typing import Any, Final, NamedTuple
from zlib import crc32

import orjson

from relay.message import envelope, queue_headers
from relay.message.avro_values import CONTENT_TYPE as AVRO
from relay.message.avro_values import AvroEncoder
from relay.message.envelope import FilledHeaders, Headers, given_headers, is_utf8
from relay.message.errors import CaptureError, HeadersRefused
from relay.message.json_text import as_json

JSON: Final = b"application/json"
DEFAULT_TYPE: Final = "relay.message"
_RESERVED: Final = frozenset(
    {
        envelope.SPECVERSION,
        envelope.ID,
        envelope.SOURCE,
        envelope.TYPE,
        envelope.TIME,
        envelope.SUBJECT,
        envelope.SEQUENCE,
        envelope.CONTENT_TYPE,
        envelope.CAPTURE,
        envelope.RESOURCE,
        envelope.INCARNATION,
    }
)
_WRITTEN: Final = _RESERVED | envelope.LOG_ONLY_HEADERS
_TEXTS: Final = frozenset({"topic", "type"})
_TEXTS_IF_GIVEN: Final = frozenset({"subject", "content_type", "time"})
_RECORD_OVERHEAD: Final = 100
"""At most so many bytes does a record batch add to a record: 61 for the batch, lengths and offsets."""
_LENGTHS: Final = 6
"""Bytes of the two lengths of a header at most: three each below a megabyte, and what few are longer have room in the overhead."""


class Buffered(NamedTuple):
    """A message that waits for the end of its block; its sequence number is given when it is appended."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def size(self) -> int:
        """Bytes of the record, rounded up."""
        size = _RECORD_OVERHEAD + len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers:
            size += len(name.encode()) + len(value) + _LENGTHS
        return size


def encoded(data: Any, schema: AvroEncoder | None = None) -> tuple[bytes | None, bytes]:
    """Return the value and its content type: Avro if a schema is given, bytes as they are, anything else as JSON."""
    if schema is not None and data is not None:
        if not isinstance(schema, AvroEncoder):
            raise CaptureError("schema: what writes values with one is wanted; give what Capture.avro(topic, schema) returns")
        return schema.encode(data), AVRO
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data), b"application/octet-stream"
    if data is None:
        return None, JSON
    try:
        return as_json(data), JSON
    except orjson.JSONEncodeError as error:
        raise CaptureError(
            f"data cannot be written as JSON ({error}); give bytes, or plain values"
        ) from error


def check_text(**arguments: object) -> None:
    """Raise CaptureError, naming the argument of `publish` that is no text, or one that UTF-8, queues or databases do not take."""
    for name, text in arguments.items():
        if not isinstance(text, str):
            if name in _TEXTS or (name in _TEXTS_IF_GIVEN and text is not None):
                raise CaptureError(f"{name} = {text!r} is no text; give one")
        elif not text and name in _TEXTS:
            raise CaptureError(f"{name} = '' names nothing; give a text")
        elif name != "key" and "\0" in text:
            raise CaptureError(f"{name}: it holds a NUL, which neither queues nor databases take")
        elif not text.isascii() and not is_utf8(text):
            raise CaptureError(f"{name}: it holds half of a surrogate pair, which UTF-8 does not have")


def check_type(kind: str) -> None:
    """Raise CaptureError for the type that the relay's own markers have."""
    if kind == envelope.OUTCOME_TYPE:
        raise CaptureError(f"type = {kind!r} is that of the relay's own markers; choose another, such as 'order.placed'")


def check_id(identifier: str | None) -> None:
    """Raise CaptureError for an id that readers take for none: the message, published again, would be another one."""
    if identifier is not None and not (isinstance(identifier, str) and identifier):
        raise CaptureError(f"id = {identifier!r} is no text that names the message; give one, or leave it out for a new one")


def encoded_key(key: str | bytes | bytearray | memoryview | int | None) -> bytes | None:
    """Return the key's bytes, of text and of what has a text as UTF-8; raises CaptureError for an object that has none as its name."""
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, bytearray | memoryview):
        return bytes(key)
    if isinstance(key, str):
        return key.encode()
    kind = type(key)
    if not hasattr(kind, "__index__") and (kind.__str__ is object.__str__ or hasattr(kind, "model_fields")):
        # Its text would be its address, or tell all that it holds: another one each time, and nothing of such a key would keep an order.
        raise CaptureError(f"key: a {kind.__name__} is neither text, bytes nor a whole number; give what names it, such as its id")
    text = str(key)
    check_text(key=text)  # that of a path may have bytes which are none
    return text.encode()


def whole_partition(given: int, partitions: int, topic: str) -> int:
    """Return the number of a partition that was asked for; raises CaptureError unless the topic has it."""
    try:
        number = index(given)  # of a library's own whole number as well: markers are written with plain ones
    except TypeError as error:
        raise CaptureError(f"partition = {given!r} is no whole number; give one, or leave the choice to the key") from error
    if not 0 <= number < partitions:
        raise CaptureError(f"partition = {number}: topic {topic} has 0 to {partitions - 1}")
    return number


def extra_headers(headers: FilledHeaders | None) -> Headers:
    """Return the application's own headers; raises CaptureError for a name that the relay writes itself, and for what no queue could read.

    That is refused for every topic: `relay...` are the relay's own words, and CloudEvents have times of RFC 3339 only.
    """
    found: Headers = []
    try:
        given = given_headers(headers)
    except HeadersRefused as error:
        raise CaptureError(str(error)) from error
    most = envelope.HEADERS_MAX - len(_RESERVED)
    if len(given) > most:
        raise CaptureError(f"headers: {len(given)} are more than the {most} that may stand beside the relay's own; put them into data")
    for name, value in given:
        if name in _WRITTEN:
            raise CaptureError(
                f"headers: {name!r} is written by the relay; use the argument of publish() for it"
            )
        if value is None:
            raise CaptureError(f"headers: the value of {name!r} is neither bytes nor text; leave the header out")
        # The dead letter would tell whoever runs the relay, and never who wrote it.
        if name in queue_headers.READERS and (refusal := queue_headers.refusal(name, value)) is not None:
            raise CaptureError(f"headers: {refusal}")
        found.append((name, value))
    return found


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key: CRC-32 modulo the count, as librdkafka's ``consistent`` partitioner.

    Never change: the order of a key's messages rests on it.
    """
    return crc32(key) % partitions

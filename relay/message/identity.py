"""Identity: which two records are the same message. The digest's format is frozen by a golden test.

A digest is BLAKE2b-16 over a kind byte and each part as a 4-byte big-endian length followed by its raw bytes.
Kinds: ``c`` CloudEvents (source, id), ``h`` a header, ``j`` a JSON pointer, ``a`` an Avro field, ``p`` position
(topic id, partition, offset). ``e`` is no identity: what a message is to have done elsewhere (`relay.work.message`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import blake2b
from struct import Struct
from typing import Any, Final
from zlib import crc32

import orjson

from relay.message.envelope import ID, SOURCE
from relay.message.errors import UNKNOWN_SCHEMA, ConfigError, MessageRejected
from relay.message.json_digits import LONG_NUMBER, is_cut
from relay.message.limits import raise_limit

DIGEST_BYTES: Final = 16
NONCE_BYTES: Final = 16
CONTENT_BYTES: Final = 8
_CONTENT: Final = Struct(">II")

_MAYBE_CUT: Final = frozenset({float, dict, list})
_HUGE_NUMBER: Final = re.compile(rb"[0-9][eE]\+?[0-9]{3}|[0-9]{100}")
"""Beyond all doubles, perhaps: for such a number orjson refuses the whole value."""

HeaderMap = Mapping[str, bytes]
AvroReader = Callable[[bytes, Iterable[tuple[str, bytes]]], Mapping[str, Any]]
"""(value, headers) -> the record; what it raises for a value that is none is MessageRejected."""
Rule = Callable[[HeaderMap, bytes, bytes | None], bytes | None]
"""(headers, log topic's name as bytes, value) -> digest, or None when the rule finds nothing."""


def digest(kind: bytes, *parts: bytes) -> bytes:
    """Return the frozen 16-byte digest of a kind and its parts."""
    return blake2b(
        kind + b"".join(len(part).to_bytes(4, "big") + part for part in parts), digest_size=DIGEST_BYTES
    ).digest()


def position_digest(topic_id: bytes, partition: int, offset: int) -> bytes:
    """Identify a record by its place: protects against redelivery only, not against a producer's repeat."""
    return digest(b"p", topic_id, partition.to_bytes(4, "big"), offset.to_bytes(8, "big"))


def content_digest(key: bytes | None, value: bytes | None) -> bytes:
    """Return 8 bytes (CRC-32 over key and value, length of both) that tell a repeat from an id used twice.

    It only counts conflicts, which lose to the first message whatever it says, so it is cheap rather than strong.
    """
    if value is None:
        value = b""
    return _CONTENT.pack(crc32(value, crc32(key)) if key else crc32(value), len(value) + len(key or b"") & 0xFFFFFFFF)


def capture_id(nonce: bytes) -> bytes:
    """Return the capture id of a nonce: only who knows the nonce can write a committed marker."""
    return blake2b(nonce, digest_size=16).digest()


_SIZES: Final = [size.to_bytes(4, "big") for size in range(256)]


def cloudevents(headers: HeaderMap, topic: bytes, value: bytes | None) -> bytes | None:  # noqa: ARG001 - a Rule
    """Identify by (source, id); without a source the log topic's name stands for it.

    The same bytes as ``digest(b"c", source, id)``; the state after the source is kept, since sources repeat.
    """
    identifier = headers.get(ID)
    if not identifier:
        return None
    source = headers.get(SOURCE) or topic
    state = (_after_source(source) if len(source) <= _SOURCE_KEPT_MAX else _begun(source)).copy()
    size = len(identifier)
    state.update((_SIZES[size] if size < len(_SIZES) else size.to_bytes(4, "big")) + identifier)
    return state.digest()


_SOURCE_KEPT_MAX: Final = 1024
"""A header may have as many bytes as a record: ten thousand such sources would be gigabytes."""


def _begun(source: bytes) -> blake2b:
    return blake2b(b"c" + len(source).to_bytes(4, "big") + source, digest_size=DIGEST_BYTES)


_after_source = lru_cache(maxsize=10_000)(_begun)


def rules(names: Sequence[str], avro: AvroReader | None = None) -> list[Rule]:
    """Compile identity rules in their order, without ``position``, which always holds and comes last.

    Raises ConfigError for a rule that does not exist.
    """
    return [_rule(name, avro) for name in names if name != "position"]


def _rule(name: str, avro: AvroReader | None) -> Rule:
    kind, _, argument = name.partition(":")
    if name == "cloudevents":
        return cloudevents
    if kind == "header" and argument:
        return _header_rule(argument)
    if kind == "json" and argument.startswith("/"):
        return _json_rule(argument)
    if kind == "avro" and argument and avro is not None:
        return _avro_rule(argument, avro)
    raise ConfigError(
        f"identity = {name!r} is not a rule; use cloudevents, header:NAME, json:/pointer, avro:field or position"
    )


def _header_rule(header: str) -> Rule:
    name = header.encode()

    def by_header(headers: HeaderMap, topic: bytes, value: bytes | None) -> bytes | None:  # noqa: ARG001 - a Rule
        found = headers.get(header)
        return digest(b"h", name, headers.get(SOURCE) or topic, found) if found else None

    return by_header


def _json_rule(pointer: str) -> Rule:
    name = pointer.encode()

    def by_json(headers: HeaderMap, topic: bytes, value: bytes | None) -> bytes | None:
        try:
            part = _json_part(value or b"null", pointer)
        except (ValueError, orjson.JSONEncodeError, RecursionError, KeyError):
            return None  # no JSON, nothing there, or nested deeper than can be written
        return None if part is None else digest(b"j", name, headers.get(SOURCE) or topic, part)

    return by_json


def _json_part(raw: bytes, pointer: str) -> bytes | None:
    try:
        found = resolve_pointer(orjson.loads(raw), pointer)
    except orjson.JSONDecodeError as error:
        raise_limit(error)
        if not _HUGE_NUMBER.search(raw):
            raise
        found = _as_written(raw, pointer)
    else:
        if type(found) in _MAYBE_CUT and LONG_NUMBER.search(raw):
            with suppress(RecursionError):  # brackets beside it, deeper than this reader goes
                found = _as_written(raw, pointer)
    return None if found is None else orjson.dumps(found, option=orjson.OPT_SORT_KEYS)


def _as_written(raw: bytes, pointer: str) -> Any:
    """Follow a pointer to what a double would cut, as it is written: as doubles, different messages would be one.

    Everything else stays as orjson decodes it, since digests of it lie in monitors and inboxes.
    """
    text = raw.decode()  # strictly, and without a byte order mark, as orjson reads it
    read = partial(json.loads, text, parse_float=_number, parse_constant=orjson.loads)  # which refuses NaN and its like
    found = resolve_pointer(read(parse_int=_number), pointer)
    if type(found) is float:  # alone, a whole number beyond 64 bits was always taken as it is written
        found = resolve_pointer(read(parse_int=orjson.Fragment), pointer)
    return found


def _number(written: str) -> int | float | orjson.Fragment:
    try:
        value: int | float = orjson.loads(written)
    except orjson.JSONDecodeError:
        return orjson.Fragment(written)  # beyond all doubles
    return orjson.Fragment(written) if type(value) is float and is_cut(written, value) else value


def _avro_rule(field: str, read: AvroReader) -> Rule:
    name = field.encode()

    def by_avro(headers: HeaderMap, topic: bytes, value: bytes | None) -> bytes | None:
        try:
            found = read(value or b"", headers.items()).get(field)
        except MessageRejected as rejected:
            if rejected.code == UNKNOWN_SCHEMA:
                raise  # it may be known tomorrow, and the same message must not have another identity then
            return None  # a value that is no such record: this rule finds nothing
        except AttributeError:
            return None  # Avro, but no record
        return None if found is None else digest(b"a", name, headers.get(SOURCE) or topic, str(found).encode())

    return by_avro


def resolve_pointer(document: Any, pointer: str) -> Any:
    """Follow a JSON pointer (RFC 6901); KeyError if it leads nowhere."""
    for token in pointer.split("/")[1:]:
        step = token.replace("~1", "/").replace("~0", "~")
        if isinstance(document, list) and step.isdecimal() and step.isascii() and int(step) < len(document):
            document = document[int(step)]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise KeyError(pointer)
    return document

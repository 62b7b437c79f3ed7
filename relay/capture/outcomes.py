"""Outcome markers: a committed one proves itself by its nonce, an aborted one is only a hint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from relay.message import envelope
from relay.message.envelope import Headers, ResourceName
from relay.message.identity import DIGEST_BYTES, capture_id
from relay.message.numbers import NumberRun, claimed_run
from relay.message.schemas import UnknownRecord, codec

_OUTCOME_TYPE: Final = envelope.OUTCOME_TYPE.encode()
_COMMITTED: Final = "COMMITTED"
_COMMITTED_INDEX: Final = b"\x00"
_ABORTED_INDEX: Final = b"\x02"
_NULL: Final = b"\x00"
_SECOND_BRANCH: Final = b"\x02"
_NO_MORE_ITEMS: Final = b"\x00"
_RUNS_MAX: Final = 64
"""The library writes one run for a partition; a stranger might write a thousand."""


class Placed(NamedTuple):
    """The messages of one capture in one log partition, by their sequence numbers."""

    topic: str
    partition: int
    first: int
    length: int


class Marker(NamedTuple):
    """What a marker claims. ``proved`` is True for a committed one that reveals the capture's nonce."""

    capture: bytes
    committed: bool
    nonce: bytes | None
    closes: tuple[int, ...]
    source: bytes = b""
    incarnation: bytes = b""

    @property
    def runs(self) -> list[NumberRun]:
        """The numbers that it says its capture closes in this partition; none if it does not say whose."""
        pairs = zip(self.closes[: 2 * _RUNS_MAX : 2], self.closes[1::2], strict=False)
        runs = [claimed_run(self.source, self.incarnation, first, count) for first, count in pairs]
        return [run for run in runs if run is not None]

    @property
    def proved(self) -> bool:
        """Can nobody but the publisher, or a reader of its database, have written it?"""
        return self.committed and self.nonce is not None and capture_id(self.nonce) == self.capture

    @property
    def forged(self) -> bool:
        """Does it claim a commit that it cannot prove?"""
        return self.committed and not self.proved


def encode_marker(
    capture: bytes, nonce: bytes | None, incarnation: str | None, closes: Sequence[int]
) -> bytes:
    """Return the value of a marker; committed if the nonce is given.

    The record of ``outcome.avsc``, written field by field: the library, which looks every field up in the schema, takes
    a tenth of what a capture costs its process (measured). A test holds it against the library's own record.
    """
    return b"".join(
        (
            codec("outcome").frame,
            capture,
            _ABORTED_INDEX if nonce is None else _COMMITTED_INDEX,
            _NULL if nonce is None else _given(nonce),
            _NULL if incarnation is None else _given(incarnation.encode()),
            b"".join((_long(len(closes)), *map(_long, closes))) if closes else b"",
            _NO_MORE_ITEMS,
        )
    )


def _given(raw: bytes) -> bytes:
    """Return bytes or text as the second branch of a union with null."""
    return _SECOND_BRANCH + _long(len(raw)) + raw


def _long(number: int) -> bytes:
    """Return a number of Avro's, zigzag and seven bits a byte; none here is negative."""
    number <<= 1
    if number < 0x80:
        return number.to_bytes(1, "big")
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def marker_headers(capture: bytes, source: bytes, resource: ResourceName) -> Headers:
    """Return the headers of a marker."""
    name = capture.hex().encode()
    return [
        (envelope.SPECVERSION, b"1.0"),
        (envelope.TYPE, _OUTCOME_TYPE),
        (envelope.ID, name),
        (envelope.SOURCE, source),
        (envelope.CAPTURE, name),
        (envelope.RESOURCE, resource.encode()),
    ]


def resolved_marker(
    capture: bytes, nonce: bytes | None, source: bytes, resource: ResourceName
) -> tuple[bytes, Headers]:
    """Return value and headers of the marker that a resolver adds; committed if the nonce is given.

    It leaves out the numbers that the capture closes: only the publisher's own marker knows them.
    """
    return encode_marker(capture, nonce, None, []), marker_headers(capture, source, resource)


def is_marker(key: bytes | None, fields: Mapping[str, bytes]) -> bool:
    """Is a record meant as the marker of a capture, true or false? Its key is the capture that its headers name.

    The type alone says nothing: anyone may call a message so, and whoever took it for a marker would never deliver it.
    """
    return (
        key is not None
        and len(key) == DIGEST_BYTES
        and fields.get(envelope.TYPE) == _OUTCOME_TYPE
        and fields.get(envelope.CAPTURE) == key.hex().encode()
    )


def decode_marker(
    key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes]] | None
) -> Marker | None:
    """Return the marker that a record is, or None for any other record; nothing it claims is believed yet."""
    fields = dict(headers or ())
    if key is None or value is None or not is_marker(key, fields):
        return None
    try:
        record = codec("outcome").decode(value)
    except UnknownRecord:
        return None
    if record["capture"] != key:
        return None
    return Marker(
        key,
        record["outcome"] == _COMMITTED,
        record["nonce"],
        tuple(record["closes"]),
        fields.get(envelope.SOURCE) or b"",
        (record["incarnation"] or "").encode(),
    )

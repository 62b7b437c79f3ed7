"""Avro records that the relay writes, framed by Avro's single-object encoding (marker, fingerprint, body).

A schema may change if records of its earlier versions can still be read. Those stay in ``schemas/earlier/`` as
``NAME.N.avsc``, since the fingerprint in the frame is all that says with which schema a record was written.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import fastavro
import orjson
from fastavro.read import SchemaResolutionError
from fastavro.schema import fingerprint, to_parsing_canonical_form

_MARKER: Final = b"\xc3\x01"
FRAME_BYTES: Final = 10
_PACKAGE: Final = Path(__file__).resolve().parent.parent


class UnknownRecord(ValueError):
    """The bytes are not a record of the expected schema."""


class OtherVersion(UnknownRecord):
    """The frame is whole and names a schema that this version does not have."""


def _folder() -> Path:
    """Return the schemas' folder: inside the wheel, or beside the package in a checkout."""
    inside = _PACKAGE / "schemas"
    return inside if inside.is_dir() else _PACKAGE.parent / "schemas"


class Codec:
    """Encodes one schema, and decodes it and its earlier versions into the present form; ``frame`` begins a record."""

    def __init__(self, schema: Any, earlier: Iterable[Any] = ()) -> None:
        self._schema = schema
        self.frame = _frame(schema)
        self._earlier = {_frame(one): one for one in earlier}

    @property
    def frames(self) -> frozenset[bytes]:
        """What records begin with that can be read."""
        return frozenset((self.frame, *self._earlier))

    def encode(self, record: dict[str, Any]) -> bytes:
        """Return the framed record."""
        buffer = io.BytesIO()
        buffer.write(self.frame)
        fastavro.schemaless_writer(buffer, self._schema, record)
        return buffer.getvalue()

    def decode(self, raw: bytes) -> dict[str, Any]:
        """Return the record; OtherVersion if the frame names another schema, UnknownRecord if frame or body is broken."""
        written = None
        if raw[:FRAME_BYTES] != self.frame:
            written = self._earlier.get(raw[:FRAME_BYTES])
            if written is None and is_framed(raw):
                raise OtherVersion("the frame names another schema: another version of the relay wrote it")
            if written is None:
                raise UnknownRecord("it has no frame")
        try:
            body = io.BytesIO(raw[FRAME_BYTES:])
            if written is None:
                found = fastavro.schemaless_reader(body, self._schema, None)
            else:
                found = fastavro.schemaless_reader(body, written, self._schema)
        except (EOFError, ValueError, IndexError, TypeError, UnicodeDecodeError, SchemaResolutionError) as error:
            raise UnknownRecord(str(error)) from error
        assert isinstance(found, dict)
        return found


def is_framed(raw: bytes) -> bool:
    """Do the bytes begin as a record of some schema does?"""
    return len(raw) >= FRAME_BYTES and raw.startswith(_MARKER)


def _frame(schema: Any) -> bytes:
    return _MARKER + bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


@cache
def parsed(name: str) -> Any:
    """Return ``schemas/<name>.avsc`` as fastavro takes it: for files, whose head holds the schema."""
    return read_schema(_folder() / f"{name}.avsc")


def text(name: str) -> str:
    """Return ``schemas/<name>.avsc`` as it stands there, for other readers of Avro."""
    return (_folder() / f"{name}.avsc").read_text("utf-8")


def read_schema(path: Path) -> Any:
    """Return the schema in a file as fastavro takes it."""
    return fastavro.parse_schema(orjson.loads(path.read_bytes()))


@cache
def codec(name: str) -> Codec:
    """Return the codec of ``schemas/<name>.avsc`` and of its earlier versions."""
    earlier = sorted((_folder() / "earlier").glob(f"{name}.*.avsc"))
    return Codec(parsed(name), [read_schema(path) for path in earlier])

"""Avro records that the relay writes, framed by Avro's single-object encoding (marker, fingerprint, body)."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any, Final

import fastavro
import orjson
from fastavro.schema import fingerprint, to_parsing_canonical_form

_MARKER: Final = b"\xc3\x01"
_FRAME_BYTES: Final = 10
_PACKAGE: Final = Path(__file__).resolve().parent.parent


class UnknownRecord(ValueError):
    """The bytes are not a record of the expected schema."""


def _folder() -> Path:
    """Return the schemas' folder: inside the wheel, or beside the package in a checkout."""
    inside = _PACKAGE / "schemas"
    return inside if inside.is_dir() else _PACKAGE.parent / "schemas"


class Codec:
    """Encodes and decodes one schema of ``schemas/``."""

    def __init__(self, name: str) -> None:
        self._schema = parsed(name)
        print_hex = fingerprint(to_parsing_canonical_form(self._schema), "CRC-64-AVRO")
        self._frame = _MARKER + bytes.fromhex(print_hex)

    def encode(self, record: dict[str, Any]) -> bytes:
        """Return the framed record."""
        buffer = io.BytesIO()
        buffer.write(self._frame)
        fastavro.schemaless_writer(buffer, self._schema, record)
        return buffer.getvalue()

    def decode(self, raw: bytes) -> dict[str, Any]:
        """Return the record; UnknownRecord if the frame names another schema or the body is broken."""
        if raw[:_FRAME_BYTES] != self._frame:
            raise UnknownRecord("the frame names another schema")
        try:
            found = fastavro.schemaless_reader(io.BytesIO(raw[_FRAME_BYTES:]), self._schema, None)
        except (EOFError, ValueError, IndexError, TypeError, UnicodeDecodeError) as error:
            raise UnknownRecord(str(error)) from error
        assert isinstance(found, dict)
        return found


@cache
def parsed(name: str) -> Any:
    """Return ``schemas/<name>.avsc`` as fastavro takes it: for files, whose head holds the schema."""
    return fastavro.parse_schema(orjson.loads((_folder() / f"{name}.avsc").read_bytes()))


@cache
def codec(name: str) -> Codec:
    """Return the codec of ``schemas/<name>.avsc``."""
    return Codec(name)

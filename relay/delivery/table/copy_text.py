"""Values of mapped columns as PostgreSQL's COPY text: every type goes through its own input function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Final

import orjson

from relay.message.errors import MessageRejected

NULL: Final = "\\N"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


class Taking(Enum):
    """How a column takes values that are not plain text."""

    PLAIN = "plain"
    BINARY = "binary"
    JSON = "json"
    TIME = "time"
    """A column of time that is mapped from milliseconds since the epoch."""


def render(column: Sequence[Any], name: str, taking: Taking) -> list[str]:
    """Return the fields of one column. MessageRejected if a value is bytes that are no text."""
    kinds = set(map(type, column))
    if kinds <= {str} and taking in (Taking.PLAIN, Taking.TIME):
        return _escaped(column)
    if kinds <= {int} and taking in (Taking.PLAIN, Taking.JSON):
        return list(map(str, column))
    one = _RENDERERS[taking]
    return [NULL if value is None else one(value, name) for value in column]


def _escaped(column: Sequence[str]) -> list[str]:
    joined = "".join(column)
    if "\\" in joined or "\t" in joined or "\n" in joined or "\r" in joined:
        return [value.translate(_ESCAPES) for value in column]
    return list(column)


def plain(value: Any, name: str) -> str | None:
    """Return a value as the text of its type; containers as JSON."""
    if value is None or isinstance(value, str):
        return value
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, bytes):
        return _text(value, name)
    if isinstance(value, dict | list):
        return as_json(value, name)
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value)


def json_text(value: Any, name: str) -> str | None:
    """Return a value for a JSON column: bytes are JSON already, everything else becomes JSON."""
    if value is None:
        return None
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return str(value)  # with all its digits, which the JSON writer would refuse or quote
    return _text(value, name) if isinstance(value, bytes) else as_json(value, name)


def moment(value: Any, name: str) -> str | None:
    """Return milliseconds since the epoch as RFC 3339; other values as they are."""
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return datetime.fromtimestamp(value / 1000, UTC).isoformat()
        except (OverflowError, ValueError, OSError):
            raise MessageRejected("map", "no_time", f"column {name} takes a time, and {value} ms is none") from None
    return plain(value, name)


def binary_text(value: Any, name: str) -> str | None:
    """Return bytes in the hexadecimal form of bytea; text is its UTF-8 bytes."""
    if value is None:
        return None
    raw = value if isinstance(value, bytes) else (plain(value, name) or "").encode()
    return "\\x" + raw.hex()


def _text(raw: bytes, name: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MessageRejected(
            "map", "not_text", f"column {name} takes text, and its source is not UTF-8; use a binary column"
        ) from None


def as_json(value: Any, name: str) -> str:
    """Return a value as JSON; MessageRejected if it is nested deeper than can be written."""
    try:
        return orjson.dumps(value, default=_inner).decode()
    except orjson.JSONEncodeError:
        raise MessageRejected("map", "no_json", f"column {name}: its value cannot be written as JSON") from None


def _inner(value: Any) -> Any:
    """Return what JSON has for a value inside a container that Avro has and JSON has not."""
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value)) if value.is_finite() else None
    if isinstance(value, bytes):
        return value.decode("latin-1")  # as in Avro's own JSON: each byte is the character of its number
    return str(value)


FORMS: Final[dict[Taking, Callable[[Any, str], str | None]]] = {
    Taking.PLAIN: plain,
    Taking.BINARY: binary_text,
    Taking.JSON: json_text,
    Taking.TIME: moment,
}


def _escaping(form: Callable[[Any, str], str | None]) -> Callable[[Any, str], str]:
    return lambda value, name: (form(value, name) or "").translate(_ESCAPES)


_RENDERERS: Final = {taking: _escaping(form) for taking, form in FORMS.items()}

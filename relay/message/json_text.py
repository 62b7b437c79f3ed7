"""What is published as JSON. The encoder writes null for a number that JSON does not have: nobody would learn of it."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from typing import Any

import orjson


def as_json(data: Any) -> bytes:
    """Return data as JSON; JSONEncodeError, a TypeError, if it is none, as with nan or an infinity."""
    text = orjson.dumps(data)
    if b"null" in text:
        # Only then, since the encoder that tells the two apart is slow.
        try:
            json.dumps(data, allow_nan=False, default=_inner)
        except ValueError as error:
            raise orjson.JSONEncodeError("nan and the infinities are no numbers of JSON") from error
    return text


def _inner(value: Any) -> Any:
    """Give what the slow encoder does not know: only its numbers matter here."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else None

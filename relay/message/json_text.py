"""What is published as JSON. The encoder writes null for a number that JSON does not have: nobody would learn of it."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum
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
    """Give what the slow encoder does not know: only its numbers matter here, and of those only what is written."""
    if isinstance(value, Enum):
        return value.value
    if not is_dataclass(value) or isinstance(value, type):
        return None
    held = {one.name: getattr(value, one.name, None) for one in fields(value)} | getattr(value, "__dict__", {})
    return {name: one for name, one in held.items() if not name.startswith("_")}

"""What is published as JSON. The encoder writes null for a number that JSON does not have: nobody would learn of it."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import orjson


def as_json(data: Any) -> bytes:
    """Return data as JSON; JSONEncodeError, a TypeError, if it is none, as with nan or an infinity."""
    text = orjson.dumps(data)
    if b"null" in text and not all_finite(data):
        raise orjson.JSONEncodeError("nan and the infinities are no numbers of JSON")
    return text


def all_finite(value: Any) -> bool:
    """Are all numbers finite that the encoder would write? It takes the value of an Enum's member, and a dataclass's public fields."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(all_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(all_finite, value))
    if isinstance(value, Enum):
        return all_finite(value.value)
    return not is_dataclass(value) or isinstance(value, type) or all(map(all_finite, _written(value)))


def _written(value: Any) -> list[Any]:
    held = {one.name: getattr(value, one.name, None) for one in fields(value)} | getattr(value, "__dict__", {})
    return [one for name, one in held.items() if not name.startswith("_")]

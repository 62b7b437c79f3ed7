"""Bounds of Avro values: how deep one may nest, how many items without bytes it may claim, and how long a decimal may be.

fastavro reads each level in a call of its own, in C: twenty thousand levels, a byte each, end the process with its
stack. A count before items without bytes (nulls) lets a value of five bytes fill the memory. A decimal of a megabyte
takes minutes to become a number, in which no other thread runs. Only a schema that contains itself, has such an array
or a decimal admits any of it, so only values of those are walked before they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import MAX_PREC
from typing import Any, Final, NamedTuple

from relay.message.errors import MessageRejected

DEPTH_MAX: Final = 200
"""As many levels as a JSON value may have, and fewer than the JSON writer takes (254)."""
EMPTY_ITEMS_MAX: Final = 100_000
DECIMAL_BYTES_MAX: Final = 1_000
"""2,400 digits. Those of a longer one cost the square of its bytes."""
_SHIFT_MAX: Final = 63
_SCHEMAS_KEPT: Final = 1_000
_RECORDS: Final = frozenset({"record", "error"})
_BYTES_OF: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBERS: Final = frozenset({"int", "long", "enum"})


def check(value: bytes, start: int, schema: Any) -> Any:
    """Raise MessageRejected if a value, from ``start`` on, is beyond the bounds or no value of its writer's schema.

    Return that schema as fastavro is to read by it: one whose decimals keep all digits that they have.
    """
    try:
        known = _known.get(id(schema)) or _look_at(schema)
        if known.is_unbounded or (known.has_decimal and len(value) - start > DECIMAL_BYTES_MAX):
            _Walk(value, start, known.names).over(schema, 0)
    except RecursionError:
        raise MessageRejected(
            "decode", "too_deep", "the value's schema is nested too deep to be read"
        ) from None
    except (IndexError, KeyError, TypeError):
        raise MessageRejected(
            "decode", "not_avro", "the value is not one Avro record of the schema it is read with"
        ) from None
    return known.exact


Names = Mapping[str, Any]
"""The schema's records, enumerations and fixed types by name."""


class _Known(NamedTuple):
    """A schema, kept so that no other comes to have its number, and why its values may need a walk."""

    schema: Any
    names: Names
    is_unbounded: bool
    has_decimal: bool
    exact: Any


_known: Final[dict[int, _Known]] = {}


class _Walk:
    """Passes over a value without keeping anything of it."""

    def __init__(self, value: bytes, at: int, names: Names) -> None:
        self._value = value
        self._at = at
        self._names = names
        self._empty_items = 0

    def over(self, schema: Any, depth: int) -> None:
        """Pass over one value of a schema; IndexError if the bytes end before it does."""
        kind, schema = _kind(schema, self._names)
        if kind == "union":
            return self.over(schema[self._long()], depth)
        if kind in _NUMBERS:
            self._long()
        elif kind in ("bytes", "string"):
            size = self._long()
            if size > DECIMAL_BYTES_MAX and _is_decimal(schema):
                sentence = f"the Avro value has a decimal of {size} bytes, more than the {DECIMAL_BYTES_MAX} that are read"
                raise MessageRejected("decode", "too_large", sentence)
            self._skip(size)
        elif kind in _BYTES_OF or kind == "fixed":
            self._skip(_BYTES_OF[kind] if kind in _BYTES_OF else schema["size"])
        else:
            self._within(kind, schema, depth + 1)
        return None

    def _within(self, kind: str, schema: Any, depth: int) -> None:
        if depth > DEPTH_MAX:
            sentence = f"the Avro value is nested deeper than {DEPTH_MAX} levels"
            raise MessageRejected("decode", "too_deep", sentence)
        if kind in _RECORDS:
            for field in schema["fields"]:
                self.over(field["type"], depth)
        elif kind == "map":
            self._blocks(schema["values"], depth, named=True)
        else:
            self._blocks(schema["items"], depth, named=False)

    def _blocks(self, item: Any, depth: int, *, named: bool) -> None:
        empty = not named and _is_empty(item, self._names, set())
        while count := self._long():
            if count < 0:
                count = -count
                self._long()
            if empty:
                self._count_empty(count)
                continue
            for _ in range(count):
                if named:
                    self._skip(self._long())
                self.over(item, depth)

    def _count_empty(self, count: int) -> None:
        self._empty_items += count
        if self._empty_items > EMPTY_ITEMS_MAX:
            sentence = f"the Avro value claims more than {EMPTY_ITEMS_MAX} items that take no bytes"
            raise MessageRejected("decode", "too_large", sentence)

    def _skip(self, count: int) -> None:
        self._at += count
        if count < 0 or self._at > len(self._value):
            raise IndexError

    def _long(self) -> int:
        shift = found = 0
        while True:
            byte = self._value[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found >> 1 ^ -(found & 1)
            shift += 7
            if shift > _SHIFT_MAX:
                raise IndexError


def _look_at(schema: Any) -> _Known:
    """Find out, once, whether values of a schema may nest without end or hold items without bytes."""
    names: dict[str, Any] = {}
    _add_names(schema, names)
    if len(_known) >= _SCHEMAS_KEPT:
        _known.clear()
    is_unbounded, has_decimal = _is_unbounded(schema, names, (), set()), _has_decimal(schema, names, set())
    known = _known[id(schema)] = _Known(schema, names, is_unbounded, has_decimal, _exact(schema))
    return known


def _exact(schema: Any) -> Any:
    """Return a schema whose decimals have room for every digit: fastavro rounds to the precision, though not all writers hold to it."""
    if isinstance(schema, list):
        return [_exact(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _exact(one) for name, one in schema.items()}
    return found | {"precision": MAX_PREC} if _is_decimal(schema) else found


def _add_names(schema: Any, names: dict[str, Any]) -> None:
    """Gather names, also those of schemas that this one refers to: they stand beside its outermost record."""
    if isinstance(schema, list):
        for one in schema:
            _add_names(one, names)
    elif isinstance(schema, dict):
        names.update(schema.get("__named_schemas", {}))
        if "name" in schema:
            names[schema["name"]] = schema
        for inner in _inner(schema):
            _add_names(inner, names)


def _is_unbounded(schema: Any, names: Names, around: tuple[int, ...], seen: set[int]) -> bool:
    kind, schema = _kind(schema, names)
    if id(schema) in around:
        return True
    if id(schema) in seen or not isinstance(schema, dict | list):
        return False
    seen.add(id(schema))
    inner = schema if isinstance(schema, list) else _inner(schema)
    if kind == "array" and _is_empty(inner[0], names, set()):
        return True
    return any(_is_unbounded(one, names, (*around, id(schema)), seen) for one in inner)


def _has_decimal(schema: Any, names: Names, seen: set[int]) -> bool:
    """May a value of this schema hold a decimal of any length? One of a fixed size has its schema's."""
    kind, schema = _kind(schema, names)
    if id(schema) in seen or not isinstance(schema, dict | list):
        return False
    seen.add(id(schema))
    inner = schema if isinstance(schema, list) else _inner(schema)
    return (kind == "bytes" and _is_decimal(schema)) or any(_has_decimal(one, names, seen) for one in inner)


def _is_decimal(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("logicalType") == "decimal"


def _is_empty(schema: Any, names: Names, around: set[int]) -> bool:
    """Does a value of this schema take no bytes?"""
    kind, schema = _kind(schema, names)
    if kind in _RECORDS and id(schema) not in around:
        around = {*around, id(schema)}
        return all(_is_empty(field["type"], names, around) for field in schema["fields"])
    return kind == "null" or (kind == "fixed" and schema["size"] == 0)


def _inner(schema: dict[str, Any]) -> list[Any]:
    kind = schema["type"]
    if not isinstance(kind, str):
        return [kind]
    if kind in _RECORDS:
        return [field["type"] for field in schema["fields"]]
    return [schema[part] for part in ("items", "values") if part in schema]


def _kind(schema: Any, names: Names) -> tuple[str, Any]:
    """Return what a schema is, and the schema itself where only its name or a wrapper of it stands."""
    while True:
        if isinstance(schema, list):
            return "union", schema
        if isinstance(schema, str):
            if schema not in names:
                return schema, schema
            schema = names[schema]
        elif isinstance(schema["type"], str):
            return schema["type"], schema
        else:
            schema = schema["type"]

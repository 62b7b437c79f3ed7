"""How an id reads in a column whose type has a spelling of its own: a uuid in small letters, a number without zeros.

What a log and a table call the same message can then be compared as text. An id that the type would refuse stays as it
is: its message became a dead letter, and has no row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from uuid import UUID

AsStored = Callable[[str], str]

_INTEGERS: Final = frozenset({"int2", "int4", "int8", "numeric"})
_INTEGER: Final = re.compile(r"\s*(?P<sign>[+-]?)0*(?P<digits>[0-9]+)\s*", re.ASCII)
_INT64_MAX: Final = str(2**63 - 1)


def as_postgresql_stores(kind: str) -> AsStored | None:
    """Return how an id reads in a column of the type ``kind`` (its name in pg_type), None if as it was written."""
    if kind == "uuid":
        return _uuid
    if kind in _INTEGERS:
        return _integer
    if kind == "bpchar":
        return _without_padding
    return None


def as_sqlite_stores(declared: str) -> AsStored | None:
    """Return how an id reads in a column declared so, by the affinity that it has ("Datatypes In SQLite", 3.1)."""
    name = declared.upper()
    if "INT" in name:
        return _sqlite_integer
    if any(part in name for part in ("CHAR", "CLOB", "TEXT", "BLOB")) or not name:
        return None
    return _sqlite_integer


def _uuid(identifier: str) -> str:
    try:
        return str(UUID(identifier))
    except ValueError:
        return identifier


def _integer(identifier: str) -> str:
    """As texts: Python makes no number of more than 4,300 digits, and a numeric column takes thirty times as many."""
    found = _INTEGER.fullmatch(identifier)
    if found is None:
        return identifier
    return "-" + found["digits"] if found["sign"] == "-" and found["digits"] != "0" else found["digits"]


def _sqlite_integer(identifier: str) -> str:
    """A longer number becomes a float, whose text no id is: it is left as it is, and shows as lost."""
    stored = _integer(identifier)
    digits = stored.removeprefix("-")
    return stored if (len(digits), digits) <= (len(_INT64_MAX), _INT64_MAX) else identifier


def _without_padding(identifier: str) -> str:
    return identifier.rstrip(" ")

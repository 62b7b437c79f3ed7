"""Statements that a block does not run: those that begin, end or undo what is the block's own to begin, end and undo."""

from __future__ import annotations

import re
from typing import Any, Final

from relay.message.errors import CaptureError

_COMMENTS: Final = r"(?>\s+|;|--[^\n]*+|/\*.*?\*/)"
_WORDS: Final = re.compile(rf"{_COMMENTS}*+(\w+)(?:{_COMMENTS}++(\w+))?", re.DOTALL)
_REFUSED: Final = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE"})


def check_statement(query: Any) -> None:
    """Raise CaptureError for a statement that controls transactions; ``query`` is whatever the driver takes.

    Only its first words are looked at. What is behind a first statement is found when the block ends.
    """
    found = _WORDS.match(_text(query))
    if found is None:
        return
    first, second = found[1].upper(), (found[2] or "").upper()
    if first in _REFUSED or (first == "PREPARE" and second == "TRANSACTION"):
        raise CaptureError(
            f"{first} in tx.execute: the block begins its transaction, commits it at its end, and rolls it back if an exception "
            "leaves it; use tx.savepoint() to undo a part of it, which drops the messages of that part as well"
        )


def _text(query: Any) -> str:
    if isinstance(query, bytes):
        return query.decode("latin-1")
    as_string = getattr(query, "as_string", None)  # what psycopg composes
    try:
        return str(query if as_string is None else as_string(None))
    except Exception:  # noqa: BLE001 - a literal of a type of which only the connection has heard: no statement that is refused has one
        return ""

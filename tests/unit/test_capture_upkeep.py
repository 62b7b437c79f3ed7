"""The round at a publisher's start: it ends beside publishers that never pause."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import orjson

from relay.capture.marking import Ended, Marking
from relay.capture.upkeep import Upkeep
from relay.resources.port import AgedRow, Decisions, UnmarkedRow
from relay.run import clock

LEFT = 3
"""Captures that a dead publisher left without markers."""
SOON_S = 5.0


class BusyDatabase:
    """Decision rows of others: whenever it is asked, somebody has just committed one more."""

    def __init__(self) -> None:
        self.rows = [(clock.monotonic() - 60.0, _row(number)) for number in range(LEFT)]
        self.trimmed = threading.Event()

    def unmarked(self, older_than_s: float, limit: int) -> list[UnmarkedRow]:
        """Return the rows of that age."""
        now = clock.monotonic()
        self.rows.append((now, _row(len(self.rows))))
        return [row for begun, row in self.rows if begun <= now - older_than_s][:limit]

    def aged(self, older_than_s: float, limit: int) -> list[AgedRow]:
        """Return none; being asked means that marking again is over."""
        return []

    def trim(self, captures: Sequence[bytes]) -> None:
        """Note that the round is over."""
        self.trimmed.set()

    def close(self) -> None:
        """Nothing to close."""


def _row(number: int) -> UnmarkedRow:
    return UnmarkedRow(b"%016d" % number, b"nonce", orjson.dumps([["log", 0, number + 1, 1]]))


def test_marking_again_ends_beside_publishers_that_never_pause() -> None:
    database = BusyDatabase()
    marked: list[Ended] = []
    marking: Any = SimpleNamespace(submit=marked.append, backlog=0, given_up=False)
    appender: Any = SimpleNamespace(describe=lambda names: dict.fromkeys(names), known_topics=list)
    upkeep = Upkeep(appender, lambda: cast("Decisions", database), cast("Marking", marking))
    try:
        assert database.trimmed.wait(SOON_S)
    finally:
        upkeep.close(SOON_S)
    assert {ended.capture for ended in marked} >= {_row(number).capture for number in range(LEFT)}

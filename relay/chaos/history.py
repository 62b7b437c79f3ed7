"""The history is one JSON object a line, in the order things happened, and is written before anything follows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from relay.world import clock, schedule

Entry = dict[str, Any]
Word = Literal["fault", "sight", "worker", "source", "anomaly", "note", "result"]
"""What an entry tells of; ``t`` is seconds since the beginning, on the monotonic clock of one process.

``fault``: n, kind, struck, phase (begin, end, missed, failed), target. ``sight``: log, passed and lag by route,
in_doubt, held. ``worker``, ``source``: name, event. ``anomaly``: kind, detail. ``result``: the report.
"""
FILE: Final = "history.jsonl"


class History:
    """Appends entries from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._began = clock.monotonic()
        self._lock = schedule.lock()
        self._file = path.open("ab", buffering=0)

    def now(self) -> float:
        """Seconds since the beginning."""
        return clock.monotonic() - self._began

    def tell(self, word: Word, **fields: Any) -> None:
        """Write an entry down."""
        with self._lock:
            entry = {"t": round(self.now(), 3), "word": word, **fields}
            self._file.write(orjson.dumps(entry, default=str) + b"\n")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def read(path: Path) -> Iterator[Entry]:
    """Yield the entries of a history; a line that was cut by a crash is left out."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                entry = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if isinstance(entry, dict):
                yield entry

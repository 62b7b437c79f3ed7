"""Counts by time window: a record's own timestamp says in which window a message, or an effect without one, lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from relay.audit.verify import RouteReport
from relay.jobs import judging
from relay.message.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WIDTHS_S: Final = (1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400)
WINDOWS_MEANT: Final = 48
"""So many bars can be told apart in a chart; the width is the smallest that needs no more of them."""
WINDOWS_MAX: Final = 20_000


@dataclass
class Window:
    """The counts of the messages of one window; ``delays_ms`` are the median and the 99th percentile to delivery."""

    start_s: int
    width_s: int
    counts: dict[str, int]
    delays_ms: tuple[int, int] | None = None
    odd: bool = False
    """Is there an identity with several contents or places in it? A second look counts those."""

    def document(self) -> dict[str, Any]:
        """Return the window for programs."""
        delays = self.delays_ms or (None, None)
        named = {"start": _text(self.start_s), "seconds": self.width_s}
        return {**named, **self.counts, "delay_ms_p50": delays[0], "delay_ms_p99": delays[1]}


@dataclass
class Windows:
    """All windows of one route, in their order; a start that has none yet gets one."""

    width_s: int
    by_start: dict[int, Window] = field(default_factory=dict)
    undated: dict[str, int] = field(default_factory=dict)
    """The counts of what has no time: rows of a table, and dead letters, of no message."""

    def at(self, start_s: int) -> Window:
        """Return the window that begins there."""
        empty = dict.fromkeys(judging.COUNTED, 0)
        return self.by_start.setdefault(start_s, Window(start_s, self.width_s, empty))

    def column(self) -> Column:
        """Return the start of the window that the column ``at`` lies in, in seconds since the epoch."""
        from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

        return sql.floor(sql.unix_seconds("at") / self.width_s) * self.width_s

    def total(self, name: str) -> int:
        """Return one count over all windows."""
        return sum(window.counts[name] for window in self.by_start.values()) + self.undated.get(name, 0)

    def __iter__(self) -> Any:
        return iter(sorted(self.by_start.values(), key=lambda window: window.start_s))


@dataclass
class WindowedReport:
    """A route's report, and the same counts by time window."""

    report: RouteReport
    windows: list[Window]

    def document(self) -> dict[str, Any]:
        """Return the report for programs."""
        return {**self.report.document(), "windows": [window.document() for window in self.windows]}


def _text(start_s: int) -> str:
    """Return a time as text; one that no calendar has, since a producer says what it likes, by its number."""
    try:
        return datetime.fromtimestamp(start_s, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return f"@{start_s}"


def spread(judged: DataFrame, width_s: int | None) -> Windows:
    """Count what was judged by window; a width of None is chosen from the span of the timestamps."""
    found = Windows(width_s or _width(judged))
    for row in judging.counts(judged, found.column()).collect():
        counts = {name: int(row[name] or 0) if name in row else 0 for name in judging.COUNTED}
        if row.window is None:
            found.undated = counts
            continue
        window = found.at(int(row.window))
        window.counts = counts
        window.delays_ms = (int(row.delays[0]), int(row.delays[1])) if row.delays else None
        window.odd = bool(row.differs or row.scattered)
    if len(found.by_start) > WINDOWS_MAX:
        raise ConfigError(
            f"--window {found.width_s} gives {len(found.by_start):,} windows; choose a wider one"
        )
    return found


def _width(judged: DataFrame) -> int:
    first, last = judged.selectExpr("unix_seconds(min(at))", "unix_seconds(max(at))").head() or (None, None)
    span = (last - first) if first is not None and last is not None else 0
    return next((width for width in WIDTHS_S if span / width <= WINDOWS_MEANT), WIDTHS_S[-1])

"""An output that is compacted tells for a while only that something was never written to it: what compaction has taken looks alike.

Brokers leave alone what is younger than `min.compaction.lag.ms`, and go by the records' own times, which outputs have from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from relay.delivery.ports import Reader
from relay.message.record import LogPartition
from relay.monitor.entries import Begin, Page

_SHARE: Final = 2
"""Of the lag only the first half is relied on: publishers, brokers and workers each have a clock."""


def why_untold(reader: Reader, begin: Begin, pages: Iterable[Page], kept: Mapping[str, float], now_ms: float) -> str | None:
    """Return why nobody can tell what a transaction has not left in its outputs; None where they still do.

    ``pages`` are its entries, ``kept`` the milliseconds for which topics that are compacted leave older values of a key alone,
    ``now_ms`` the time by whichever clock is ahead: one that is behind would believe in what may be gone.
    """
    lags = [kept[output.topic] for output in begin.outputs if output.topic in kept]
    if not lags:
        return None
    spans: dict[LogPartition, tuple[int, int]] = {}
    for one in begin.inputs:
        if one.first < one.next:
            _widen(spans, LogPartition(one.topic, one.partition), one.first, one.next)
    for page in pages:
        _widen(spans, LogPartition(page.topic, page.partition), min(page.offsets), max(page.offsets) + 1)
    since = now_ms - min(lags) / _SHARE
    if not _has_gone(reader, spans) and all(
        record.timestamp()[1] > since for records in reader.read(spans) for record in records
    ):
        return None
    names = ", ".join(sorted({output.topic for output in begin.outputs if output.topic in kept}))
    return (
        f"{names} is compacted, and what transaction {begin.n} of {begin.transactional_id} delivered is as old as what may be gone "
        "there: whether it left more than still shows can no longer be told"
    )


def _widen(spans: dict[LogPartition, tuple[int, int]], place: LogPartition, first: int, following: int) -> None:
    before = spans.get(place, (first, following))
    spans[place] = min(before[0], first), max(before[1], following)


def _has_gone(reader: Reader, spans: Mapping[LogPartition, tuple[int, int]]) -> bool:
    """Has the log lost some of them, whose times nobody knows any more?"""
    return any(reader.watermarks(place)[0] > first for place, (first, _) in spans.items())

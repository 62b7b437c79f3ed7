"""A worker's monitor views: opened from checkpoints, kept over rebalances, saved when it is cheap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import structlog

from relay.delivery.evidence_reading import MonitorView
from relay.monitor.evidence import Evidence
from relay.monitor.index import DedupIndex

log = structlog.get_logger("relay.views")
SAVE_PERIOD_S: Final = 30.0
CUT_LOOKS: Final = 6
"""So many recoveries in a row, some ten seconds, find a monitor cut before it is believed: a broker that was cut off from its
peers, and not from clients, tells an old end (seen: for as long as that lasts, to one in five that may ask any of three)."""
RENEW_PERIOD_S: Final = 600.0
"""What has left the monitor goes many entries at once; asking more often finds nothing to drop."""


class Store(Protocol):
    """Keeps the index of one monitor partition over restarts; what it cannot read it forgets, with a reason."""

    def open(self, partition: int) -> tuple[DedupIndex, int]:
        """Return the index and the monitor offset up to which it is complete (0: from the beginning)."""

    def save(self, index: DedupIndex, monitor_offset: int) -> None:
        """Make what the index holds durable, complete up to ``monitor_offset``."""

    def renew(self, index: DedupIndex) -> None:
        """Drop what has left the monitor, of an index that was saved before; raises Unreachable if nobody can tell."""

    def forget(self, index: DedupIndex) -> None:
        """Throw away what an index holds, and what is kept of it over restarts."""

    def close(self, index: DedupIndex) -> None:
        """Let go of an index that is no longer needed here."""


class ViewKeeper:
    """Views by monitor partition; a partition that goes away is saved and closed."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._views: dict[int, MonitorView] = {}
        self._save_at = clock() + SAVE_PERIOD_S
        self._renew_at = clock() + RENEW_PERIOD_S

    def take(self, partitions: set[int], meanwhile: Callable[[], object] = bool) -> list[MonitorView]:
        """Return the views of exactly these monitor partitions; calls ``meanwhile`` after each that goes or comes.

        A view of a monitor that was cut is opened anew: what its index says was delivered may be no more, as the position
        may be an earlier one, and would be passed over. From here on what Kafka has counts, as for a process that starts.
        """
        for partition in set(self._views) - partitions:
            self._release(self._views.pop(partition))
            meanwhile()
        for partition in [one for one in partitions & set(self._views) if self._views[one].cut >= CUT_LOOKS]:
            log.error("the monitor was cut; its index is thrown away", partition=partition)
            index = self._views.pop(partition).index
            self._store.forget(index)
            self._store.close(index)
        for partition in partitions - set(self._views):
            self._views[partition] = self._open(partition)
            meanwhile()
        return [self._views[p] for p in sorted(partitions)]

    def views(self) -> list[MonitorView]:
        """Return the views held now."""
        return list(self._views.values())

    def tend(self, now: float) -> None:
        """Save now and then, so that a restart reads only the tail; more seldom, have dropped what is needed no more."""
        if now >= self._save_at:
            self._save_at = now + SAVE_PERIOD_S
            for view in self._views.values():
                self._save(view)
            if now >= self._renew_at:
                for view in self._views.values():
                    self._store.renew(view.index)
                self._renew_at = now + RENEW_PERIOD_S

    def close(self) -> None:
        """Save and close all."""
        for view in self._views.values():
            self._release(view)
        self._views.clear()

    def _open(self, partition: int) -> MonitorView:
        index, complete_to = self._store.open(partition)
        ranges = index.ranges
        evidence = Evidence(index.add_page, index.void, ranges.restore, ranges.restore_closing)
        return MonitorView(partition, index, evidence, read_to=complete_to, scan_from=complete_to)

    def _save(self, view: MonitorView) -> None:
        """Below the last begin of the last claimant everything is decided, and that begin is found again."""
        self._store.save(view.index, min(view.scan_from, view.read_to) if view.own_begin is None else view.scan_from)

    def _release(self, view: MonitorView) -> None:
        self._save(view)
        self._store.close(view.index)

"""Captures that no valid marker has committed: decided as ``relay verify`` decides them, by row, person, then hint."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from relay.audit import captures, tables, units
from relay.config.model import RelayConfig
from relay.jobs import facts
from relay.message.errors import RelayError
from relay.monitor.resolution import Resolutions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CAPTURES_ASKED: Final = 10_000


class CaptureOutcomes:
    """Asks the resources, the decisions of units and what persons said; ``notes`` names a resource that is away."""

    def __init__(self, config: RelayConfig, resolutions: Resolutions, stack: ExitStack) -> None:
        self._config = config
        self._resolutions = resolutions
        self._stores: dict[str, tables.Store] = {}
        self._uuids: dict[str, str] = {}
        self.notes: list[str] = []
        for name, resource in config.resources.items():
            try:
                store = tables.open_store(name, resource)
                stack.callback(store.close)
                self._uuids[name] = store.uuid()
            except RelayError as error:
                self.notes.append(str(error))  # in doubt: what no marker decides stays undecided
            else:
                self._stores[name] = store

    def of(self, unmarked: DataFrame, marked: DataFrame) -> DataFrame | None:
        """Decide the captures of messages without a valid committed marker, as ``relay verify`` does; None if there are none.

        A row decides, then a person's word, then the hint of an aborted marker among ``marked``.
        """
        asked = unmarked.groupBy("capture").agg({"resource": "min"}).withColumnRenamed("min(resource)", "resource")
        unmarked = asked.join(marked.where(f"marked = {facts.ABORTED}"), "capture", "left")
        found: list[tuple[bytes, str | None]] = []
        pending: list[Any] = []
        for row in unmarked.toLocalIterator():
            pending.append(row)
            if len(pending) == CAPTURES_ASKED:
                found += self._ask(pending)
                pending = []
        found += self._ask(pending)
        return unmarked.sparkSession.createDataFrame(found, "capture binary, outcome string") if found else None

    def _ask(self, rows: list[Any]) -> list[tuple[bytes, str | None]]:
        asked = captures.sorted_out(
            self._config,
            self._uuids,
            ((bytes(row.capture), bytes(row.resource or b""), row.marked == facts.ABORTED) for row in rows),
        )
        decided = units.outcomes(self._config, asked.of_units)
        for resource, some in asked.by_resource.items():
            decided |= self._stores[resource].captures(some)
        found = [
            (capture, captures.ended(capture, decided, self._resolutions, asked))
            for capture in (bytes(row.capture) for row in rows)
        ]
        return [(capture, outcome.value if outcome else None) for capture, outcome in found]

"""The cursor of a queue route on a simulated database: the table cursor's transaction, in which production's effect puts.

The effect runs at the client's side, statement by statement, as in `relay.delivery.table.postgresql.cursor`; a batch keeps the
one that it was prepared by, whichever connection it is written on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from relay.delivery.queue.effects import QueueEffect
from relay.delivery.table.mapping import BatchMapping
from relay.delivery.table.row_search import RowFault, search
from relay.delivery.table.verdicts import Arrivals, InboxAnswer, Limits, Prepared, TablePlan, effective
from relay.message.errors import MessageRejected
from relay.message.record import LogMessage
from relay.transfer.cursor import RangeRow
from tests.simulation.database_connection import Connection
from tests.simulation.database_cursor import SimulatedCursor
from tests.simulation.databases import Database

_ROWS_SAVEPOINT = 50


@dataclass(slots=True)
class _PreparedRows(Prepared):
    """A batch with the effect that formed its rows."""

    effect: QueueEffect


class SimulatedQueueCursor(SimulatedCursor):
    """The ``TableCursor`` of a route into a queue of a simulated database."""

    def __init__(
        self,
        database: Database,
        plan: TablePlan,
        limits: Limits | None,
        mapping: BatchMapping,
        effects: Callable[[Any], QueueEffect],
    ) -> None:
        super().__init__(database, plan, limits, mapping=mapping)
        self._effects = effects
        self._effect: QueueEffect | None = None

    def prepare(
        self, messages: Sequence[LogMessage], ranges: Sequence[RangeRow] = (), *, redriven: bool = False
    ) -> _PreparedRows:
        """Map messages into what is put."""
        by = self._effect  # once: the cursor's thread may connect again meanwhile
        assert by is not None, "claim partitions before preparing messages"
        mapped = self._mapping.map(messages, by.finish)
        return _PreparedRows(Arrivals.of(messages), mapped, by, ranges=ranges, redriven=redriven)

    def _set_up(self, connection: Connection) -> None:
        try:
            self._effect = self._effects(connection)
        except BaseException:
            self.close()
            raise

    def _take_effect(
        self, connection: Connection, prepared: Prepared, answer: InboxAnswer, *, one_by_one: bool
    ) -> dict[int, MessageRejected]:
        assert isinstance(prepared, _PreparedRows)
        mapped, chosen, by = prepared.mapped, effective(prepared, answer), prepared.effect
        tried = range(len(mapped.rows)) if chosen is None else chosen
        if not one_by_one or not tried:
            by.apply(connection, [mapped.rows[n] for n in tried])
        if not one_by_one:
            return dict(mapped.faults)
        found = search(tried, lambda run: self._try(connection, by, [mapped.rows[n] for n in run]))
        refused = {mapped.good[n]: fault.rejection for n, fault in found.faults.items()}
        connection.call(lambda backend: self._condemn(backend, prepared, refused), what="kill")
        return {**mapped.faults, **refused}

    def _try(self, connection: Connection, by: QueueEffect, rows: Sequence[Any]) -> None:
        self.progressed()
        connection.call(lambda backend: backend.savepoint(_ROWS_SAVEPOINT), what="savepoint")
        try:
            by.apply(connection, rows)
        except RowFault:
            connection.call(lambda backend: backend.rollback_to(_ROWS_SAVEPOINT), what="rollback to")
            raise
        connection.call(lambda backend: backend.release(_ROWS_SAVEPOINT), what="release")

"""Rows of a refused batch on trial: which of them PostgreSQL refuses for what they are, and which words mean something else.

An error that would also mean a wrong statement counts as a row's only if the very same statement takes another row now:
one of the same batch, or the last one that is known to have gone through. Else it stops the route, and no message dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg

from relay.delivery.postgresql_effects import Connection, Effect, Pieces
from relay.delivery.postgresql_failures import judge
from relay.delivery.row_search import RowFault, Searched, search
from relay.delivery.table import TablePlan
from relay.message.errors import MessageRejected, RelayError

_UNDO_ROWS: Final = "rollback to savepoint relay_rows; release savepoint relay_rows"
_UNDO_WITNESS: Final = "rollback to savepoint relay_witness; release savepoint relay_witness"
_CONSTRAINTS: Final = "23"
_FEW: Final = 3
"""Rows in doubt that may die beside fewer that go through, or one after the other by an earlier row's word."""


class Trials:
    """Writes a cursor's rows; of a batch that was refused, run by run behind savepoints."""

    def __init__(self, plan: TablePlan, pieces: Pieces, progressed: Callable[[], object]) -> None:
        self._plan = plan
        self._pieces = pieces
        self._progressed = progressed
        self._latest: tuple[Effect, Any] | None = None
        self._witness: tuple[Effect, Any] | None = None
        self._on_trust = 0

    def begin(self) -> None:
        """A transaction begins."""
        self._latest = None

    def committed(self) -> None:
        """What went through in this transaction may speak for the statement later on."""
        if self._latest is not None:
            self._witness, self._on_trust = self._latest, 0

    def write(self, connection: Connection, by: Effect, rows: Sequence[Any]) -> None:
        """Write the rows of a batch that is expected to go through; RowFault if a row may be at fault."""
        if not rows:
            return
        try:
            self._pieces.write(connection, by, rows)
        except psycopg.Error as error:
            raise self._refusal(connection, error) from None
        self._latest = by, rows[-1]

    def find(
        self, connection: Connection, by: Effect, rows: Sequence[Any], tried: Sequence[int], *, redriven: bool
    ) -> dict[int, MessageRejected]:
        """Write those of the rows that are to be tried, and return the causes of the ones at fault, by number.

        What is ``redriven`` has been dead: refused in whatever words it stays so, and stops nobody.
        """
        connection.execute("set constraints all immediate")
        found = search(
            tried, lambda run: self._attempt(connection, by, [rows[n] for n in run]), trusting=redriven
        )
        if found.through is not None:
            self._latest = by, rows[found.through]
        if not redriven:
            self._end_if_not_theirs(connection, found, len(tried))
        return {n: fault.rejection for n, fault in found.faults.items()}

    def _attempt(self, connection: Connection, by: Effect, rows: Sequence[Any]) -> None:
        """Write rows behind a savepoint; RowFault leaves nothing of them."""
        self._progressed()
        connection.execute("savepoint relay_rows")
        try:
            self._pieces.write(connection, by, rows)
        except psycopg.Error as error:
            failure = self._refusal(connection, error)
            if isinstance(failure, RowFault):
                connection.execute(_UNDO_ROWS)
            raise failure from None
        except RowFault:
            connection.execute(_UNDO_ROWS)
            raise
        connection.execute("release savepoint relay_rows")

    def _refusal(self, connection: Connection, error: psycopg.Error) -> RelayError | RowFault | psycopg.Error:
        if connection.closed or connection.broken:
            return error  # lost: whoever lent the connection says what that means
        return judge(error, self._plan, doubts=True)

    def _end_if_not_theirs(self, connection: Connection, found: Searched[int], tried: int) -> None:
        """Raise the doubt if no other row speaks for the statement, and against those that are in doubt.

        A row of the batch has gone all the way, and is asked again, since a function may be replaced at any time. An
        earlier one usually ends at its own key, behind its casts, generated columns and checks: that is less, so it says
        nothing of triggers, and few may die by it.
        """
        doubtful = found.doubtful()
        if not doubtful:
            return
        if self._latest is not None:
            is_shown = self._takes(connection, *self._latest, anyhow=True)
            # Triggers are not the same for each row: where most are refused, one of them is rather wrong.
            is_shown &= len(doubtful) <= max(_FEW, tried - len(found.faults))
        else:
            self._on_trust += len(doubtful)
            is_shown = (
                self._on_trust <= _FEW
                and all(fault.is_plain for fault in doubtful)
                and self._witness is not None
                and self._takes(connection, *self._witness)
            )
        if not is_shown:
            assert doubtful[0].doubt is not None
            raise doubtful[0].doubt

    def _takes(self, connection: Connection, by: Effect, row: Any, *, anyhow: bool = False) -> bool:
        """Does the statement take a row, but for its being there already? ``anyhow``: whatever its words for that are.

        Nothing is left of it.
        """
        connection.execute("savepoint relay_witness")
        try:
            self._attempt(connection, by, [row])
        except RowFault as fault:
            taken = fault.doubt is None and (anyhow or fault.rejection.code.startswith(_CONSTRAINTS))
        else:
            taken = True
        connection.execute(_UNDO_WITNESS)
        return taken

"""Rows of a refused batch on trial: which of them PostgreSQL refuses for what they are, and which words mean something else.

An error that would also mean a wrong statement counts as a row's only if the very same statement takes another row now:
one of the same batch, or the last one that is known to have gone through. Else it stops the route, and no message dies.

What asks to be tried again (a timeout, a deadlock, a failure to serialize) is tried again; a row that does so at every try,
alone, while others of its batch go through, is at fault as well. Where none goes through the database is slow, and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import psycopg

from relay.delivery.table.postgresql.effects import Connection, Effect, Pieces, RowTooSlow
from relay.delivery.table.postgresql.failures import judge
from relay.delivery.table.row_search import RowFault, Searched, regain, search
from relay.delivery.table.verdicts import Limits, TablePlan
from relay.message.errors import Fenced, MessageRejected, RelayError, Retriable

_UNDO_ROWS: Final = "rollback to savepoint relay_rows; release savepoint relay_rows"
_UNDO_WITNESS: Final = "rollback to savepoint relay_witness; release savepoint relay_witness"
_UNDO_BATCH: Final = "rollback to savepoint relay_batch"
_CONSTRAINTS: Final = "23"
_MISSES: Final = "23503"
"""foreign_key_violation: what a row refers to is not there."""
_FEW: Final = 3
"""Rows in doubt that may die beside fewer that go through, or one after the other by an earlier row's word."""
_TIMEOUT: Final = "57014"
_ASK_AGAIN: Final = frozenset({_TIMEOUT, "40001", "40P01"})
"""States in which a row's own trigger may end as well as the whole server."""
_DEADLOCK: Final = "DeadLockReport"
"""Where the server raises that two transactions wait for each other: it takes another one, and rows of ours before this one."""
_TRIES: Final = 3
"""Tries of a batch that ends so before its rows are looked at one by one."""
_RUNS: Final = 2
"""Times in a row that a row ends so alone, with a pause between them that grows, before it is at fault."""
_COMPANY: Final = 8
"""A batch of fewer rows, none of which goes through, is read anew, with what has come since: that may tell."""


class Trials:
    """Writes a cursor's rows; of a batch that was refused, run by run behind savepoints."""

    def __init__(self, plan: TablePlan, limits: Limits, pieces: Pieces, progressed: Callable[[], object]) -> None:
        self._plan = plan
        # Where a lock may be waited for as long as a statement may take, a timeout is the doing of whoever holds the lock.
        self._times = limits.lock_timeout_s < limits.statement_timeout_s
        self._batch: object | None = None
        self._tries = 0
        self._suspected: dict[int, int] = {}
        self._pieces = pieces
        self._progressed = progressed
        self._latest: tuple[Effect, Any] | None = None
        self._witness: tuple[Effect, Any] | None = None
        self._on_trust = 0

    def begin_batch(self, batch: object) -> None:
        """A batch is delivered, for the first time or again."""
        if batch is not self._batch:
            self._batch, self._tries, self._suspected = batch, 0, {}

    @property
    def suspects(self) -> bool:
        """Has the batch asked so often to be tried again that one of its rows is suspected?"""
        return self._tries >= _TRIES

    def met(self, error: psycopg.Error) -> None:
        """Count a try that was ended by an error of what was written."""
        self._tries += error.sqlstate in _ASK_AGAIN and not _is_deadlock(error)

    def begin(self) -> None:
        """A transaction begins."""
        self._latest = None

    def committed(self) -> None:
        """What went through in this transaction may speak for the statement later on."""
        self._batch = None
        if self._latest is not None:
            self._witness, self._on_trust = self._latest, 0

    def write(self, connection: Connection, by: Effect, rows: Sequence[Any]) -> None:
        """Write the rows of a batch that is expected to go through; RowFault if a row may be at fault."""
        if not rows:
            by.apply(connection, rows)  # a queue may have something to do all the same
            return
        try:
            self._pieces.write(connection, by, rows)
        except (psycopg.Error, RowTooSlow) as error:
            raise self._refusal(connection, error) from None
        self._latest = by, rows[-1]

    def find(
        self, connection: Connection, by: Effect, rows: Sequence[Any], tried: Sequence[int], *, redriven: bool
    ) -> dict[int, MessageRejected]:
        """Write those of the rows that are to be tried, and return the causes of the ones at fault, by number.

        What is ``redriven`` has been dead: refused in whatever words it stays so, and stops nobody.
        """
        if not tried:
            by.apply(connection, ())
        connection.execute("set constraints all immediate")
        connection.execute("savepoint relay_batch")

        def attempt(run: Sequence[int], *, at_once: bool = False) -> None:
            self._attempt(connection, by, [rows[n] for n in run], at_once=at_once)

        found = search(tried, attempt, trusting=redriven or len(tried) < _COMPANY)
        if found.through is not None:
            self._latest = by, rows[found.through]
        if not redriven:
            self._end_if_not_theirs(connection, found, len(tried))
        regain(
            tried,
            found,
            partial(attempt, at_once=True),
            misses=lambda fault: fault.rejection.code == _MISSES,
            undo=lambda: connection.execute(_UNDO_BATCH),
            may_follow=self._plan.mode == "insert",  # no row replaces another
        )
        connection.execute("release savepoint relay_batch")
        return {n: fault.rejection for n, fault in found.faults.items()}

    def _attempt(self, connection: Connection, by: Effect, rows: Sequence[Any], *, at_once: bool = False) -> None:
        """Write rows behind a savepoint; RowFault leaves nothing of them.

        ``at_once``: what is deferrable is looked at behind all of them.
        """
        self._progressed()
        connection.execute("savepoint relay_rows")
        try:
            if at_once:
                connection.execute("set constraints all deferred")
            self._pieces.write(connection, by, rows)
            if at_once:
                connection.execute("set constraints all immediate")
        except (psycopg.Error, RowTooSlow) as error:
            failure = self._refusal(connection, error)
            if isinstance(failure, RowFault):
                connection.execute(_UNDO_ROWS)
            raise failure from None
        except RowFault:
            connection.execute(_UNDO_ROWS)
            raise
        connection.execute("release savepoint relay_rows")

    def _refusal(self, connection: Connection, error: psycopg.Error | RowTooSlow) -> RelayError | RowFault | psycopg.Error:
        at: tuple[int, ...] = ()
        if isinstance(error, RowTooSlow):
            at, error = (error.at,), error.canceled
        if connection.closed or connection.broken:
            return error  # lost: whoever lent the connection says what that means
        failure = judge(error, self._plan, doubts=True)
        state = error.sqlstate
        if not isinstance(failure, Retriable) or state not in _ASK_AGAIN or _is_deadlock(error):
            return failure
        if not self.suspects or (state == _TIMEOUT and not self._times):
            self.met(error)
            return failure
        sentence = f"{self._plan.where} refuses the row: {state} ({type(error).__name__}) at each of many tries, where others go through"
        return RowFault(MessageRejected("apply", state, sentence), doubt=failure, at=at)

    def _end_if_not_theirs(self, connection: Connection, found: Searched[int], tried: int) -> None:
        """Raise the doubt if no other row speaks for the statement, and against those that are in doubt."""
        doubtful = found.doubtful()
        if not doubtful:
            return
        slow = {n: fault.doubt for n, fault in found.faults.items() if isinstance(fault.doubt, Retriable)}
        self._suspected = {n: self._suspected.get(n, 0) + 1 for n in slow}
        if slow and self._latest is None and tried < _COMPANY:
            raise Fenced(f"{self._plan.where}: no row of a small batch goes through ({doubtful[0]}); it is read anew, with what follows")
        if not self._is_shown(connection, doubtful, tried - len(found.faults)):
            assert doubtful[0].doubt is not None
            raise doubtful[0].doubt
        for n, doubt in slow.items():
            if self._suspected[n] < _RUNS:
                raise doubt

    def _is_shown(self, connection: Connection, doubtful: Sequence[RowFault], gone_through: int) -> bool:
        """Does another row speak for the statement?

        A row of the batch has gone all the way, and is asked again, since a function may be replaced, and a server become
        slow, at any time. An earlier one usually ends at its own key, behind its casts, generated columns and checks: that
        is less, so it says nothing of triggers, and few may die by it.
        """
        if self._latest is not None:
            # Triggers are not the same for each row: where most are refused, one of them is rather wrong.
            few = len(doubtful) <= max(_FEW, gone_through)
            return few and self._takes(connection, *self._latest, anyhow=True)
        self._on_trust += len(doubtful)
        return (
            self._on_trust <= _FEW
            and all(fault.is_plain for fault in doubtful)
            and self._witness is not None
            and self._takes(connection, *self._witness)
        )

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


def _is_deadlock(error: psycopg.Error) -> bool:
    """Has the server found two transactions to wait for each other, rather than a trigger said so?"""
    return error.diag.source_function == _DEADLOCK

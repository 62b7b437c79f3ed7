"""Rows of a refused batch on trial in SQLite: which of them it refuses, and which of them refer to nothing.

A deferred foreign key is looked at by COMMIT alone, which says that one is violated and not whose it is. So where COMMIT
refuses a batch, the file's foreign keys are checked behind each run of rows. A check looks through the whole file, so the
rows are taken from what it says where that can be: by their numbers in the route's own table.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from relay.delivery.table.row_search import RowFault, regain, search
from relay.delivery.table.sqlite.effects import REFUSED_VALUES, RowEffect, judge
from relay.delivery.table.verdicts import TablePlan
from relay.message.errors import MessageRejected, Stopped

_MISSES: Final = "SQLITE_CONSTRAINT_FOREIGNKEY"
_DANGLING: Final = 'select "table", rowid, parent, fkid from pragma_foreign_key_check'
_TRIGGER: Final = "select 1 from sqlite_master where type = 'trigger' limit 1"
_PLACE: Final = "select last_insert_rowid()"


class _Dangling(RowFault):
    """What a row refers to is not there, and nothing may have been said of it before COMMIT."""


class SqliteTrials:
    """Writes the rows of a refused batch, run by run behind savepoints."""

    def __init__(self, plan: TablePlan, progressed: Callable[[], object]) -> None:
        self._plan = plan
        self._progressed = progressed

    def find(
        self, connection: sqlite3.Connection, by: RowEffect, rows: Sequence[Any], tried: Sequence[int], *, references: bool
    ) -> dict[int, MessageRejected]:
        """Write those of the rows that are to be tried, and return the causes of the ones at fault, by number.

        ``references``: check what they refer to as well.
        """
        connection.execute("savepoint relay_batch")
        keys = _ForeignKeys(connection) if references else None

        def attempt(run: Sequence[int]) -> None:
            self._attempt(connection, by, [rows[n] for n in run], keys)

        found = search(tried, attempt)
        regain(
            tried,
            found,
            attempt,
            misses=lambda fault: isinstance(fault, _Dangling),
            undo=lambda: connection.execute("rollback to relay_batch"),
            may_follow=self._plan.mode == "insert",  # no row replaces another
        )
        connection.execute("release relay_batch")
        return {n: fault.rejection for n, fault in found.faults.items()}

    def _attempt(
        self, connection: sqlite3.Connection, by: RowEffect, rows: Sequence[Any], keys: _ForeignKeys | None
    ) -> None:
        """Write rows behind a savepoint; RowFault leaves nothing of them."""
        self._progressed()
        connection.execute("savepoint relay_rows")
        try:
            if keys is None:
                by.apply(connection, rows)
            else:
                self._apply_checked(connection, by, rows, keys)
        except (sqlite3.Error, *REFUSED_VALUES, RowFault) as error:
            failure = error if isinstance(error, RowFault) else judge(error, self._plan)
            if isinstance(failure, RowFault):
                if not connection.in_transaction:
                    raise Stopped(
                        f"{self._plan.where} rolls the whole transaction back for a row (RAISE(ROLLBACK) or ON CONFLICT "
                        "ROLLBACK); use ABORT there, so that the other messages can go on"
                    ) from None
                connection.execute("rollback to relay_rows")
                connection.execute("release relay_rows")
            raise failure from None
        connection.execute("release relay_rows")

    def _apply_checked(
        self, connection: sqlite3.Connection, by: RowEffect, rows: Sequence[Any], keys: _ForeignKeys
    ) -> None:
        """Write rows, noting where each comes to stand, and check what they refer to."""
        placed: dict[int | None, int] = {}
        (last,) = connection.execute(_PLACE).fetchone()
        for at, row in enumerate(rows):
            by.apply(connection, [row])
            (place,) = connection.execute(_PLACE).fetchone()
            if place != last:  # else it was updated, or left out
                placed[place] = at
            last = place
        violated = keys.violated()
        if not violated:
            return
        sentence = f"{self._plan.where} refuses the row: {_MISSES} (FOREIGN KEY constraint failed)"
        rejection = MessageRejected("apply", _MISSES, sentence)
        table = self._plan.table.rpartition(".")[2].casefold()
        found = [placed.get(number) if name.casefold() == table else None for name, number in violated]
        # Where a row may change another one, its number does not tell whose doing it is.
        is_told = len(placed) == len(rows) and self._plan.mode != "sql" and not keys.has_triggers
        at_fault = sorted({at for at in found if at is not None}) if is_told and None not in found else []
        raise _Dangling(rejection, at=at_fault)


class _ForeignKeys:
    """The file's foreign keys, some of which may have been violated while nobody looked: those are not counted."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._before = Counter(connection.execute(_DANGLING))
        self.has_triggers = connection.execute(_TRIGGER).fetchone() is not None

    def violated(self) -> list[tuple[str, int | None]]:
        """Return table and number of the rows whose keys are violated and were not before."""
        now = Counter(self._connection.execute(_DANGLING)) - self._before
        return [(table, number) for table, number, *_ in now]

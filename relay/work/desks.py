"""Connections to a handler's database: few, lent to one run at a time, each with one transaction that is begun when it is needed.

Nothing is begun before the handler's first statement, so a handler that only waits holds neither a lock nor a connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from relay.message.errors import ConfigError, InDoubt, Stopped
from relay.work.desk import DatabaseAway, Desk, TransactionTaken, check_call
from relay.work.given import Given
from relay.world import schedule

NOT_TO_END: Final = (
    "the handler may not end the transaction: leave COMMIT and ROLLBACK to the relay, which commits once the handler has returned, "
    "and rolls back if it raises"
)


class Desks:
    """Lends desks; at most ``limit`` connections are open, and who wants one more waits."""

    def __init__(self, make: Callable[[], Desk], limit: int) -> None:
        self._make = make
        self._free = schedule.fifo()
        for _ in range(limit):
            self._free.put(None)
        self.limit = limit

    def borrow(self) -> Desk:
        """Return a desk with a transaction begun; raises DatabaseAway or Unreachable."""
        desk: Desk | None = self._free.get()
        try:
            if desk is None or not desk.usable:
                if desk is not None:
                    desk.close()
                desk = self._made()
            desk.begin()
        except BaseException:
            self._free.put(None)
            if desk is not None:
                desk.close()
            raise
        return desk

    def _made(self) -> Desk:
        try:
            return self._make()
        except (ConfigError, Stopped, InDoubt) as wrong:
            # Wait: a person must mend it, or the queues there are opened once more; no message has done anything wrong.
            raise DatabaseAway(str(wrong)) from wrong

    def give_back(self, desk: Desk) -> None:
        """Take a desk back whose transaction has ended."""
        if not desk.usable:
            desk.close()
        self._free.put(desk)

    def close(self) -> None:
        """Close what is not lent now."""
        while True:
            try:
                desk: Desk | None = self._free.get_nowait()
            except schedule.Empty:
                return
            if desk is not None:
                desk.close()


class LeftToTheRelay:
    """Refuses what a driver's connection has: who commits by habit would have writes that stand without the message's DONE."""

    __slots__ = ()

    def commit(self) -> NoReturn:
        """Refused with TransactionTaken: what was written is committed together with the message's DONE."""
        raise TransactionTaken(NOT_TO_END)

    def rollback(self) -> NoReturn:
        """Refused with TransactionTaken: raise an error, and everything is rolled back; a part is by a savepoint."""
        raise TransactionTaken(NOT_TO_END)


class Database(LeftToTheRelay):
    """What a handler writes with: its first statement borrows a connection and begins; the relay ends the transaction."""

    __slots__ = ("_desks", "_given", "_is_over", "_process", "_turn", "desk")

    def __init__(self, desks: Desks) -> None:
        self._desks = desks
        self._process = os.getpid()
        self._turn = schedule.lock()
        self.desk: Desk | None = None
        self._is_over = False
        self._given = Given()

    def execute(self, query: Any, params: Any = None) -> Any:
        """Run one statement and return the driver's cursor; placeholders are the driver's."""
        with self._turn:
            return self._given.add(self._handlers().execute(query, params))

    def executemany(self, query: Any, params: Sequence[Any]) -> Any:
        """Run one statement for each of many parameters."""
        with self._turn:
            return self._given.add(self._handlers().executemany(query, params))

    @property
    def kind(self) -> str:
        """``postgresql`` or ``sqlite``: which placeholders and dialect the statements need."""
        with self._turn:
            return self._handlers().kind

    def end(self) -> None:
        """Let the statement that runs end, and none begin any more: the handler has returned.

        One of a thread that it left behind would borrow a desk for good, or, having waited for the driver's lock, run after
        the transaction and take effect by itself.
        """
        # Said first: who has waited for its turn finds it said, however many wait.
        self._is_over = True
        with self._turn:
            self._given.close()

    def is_time_over(self, error: BaseException) -> bool:
        """Tell whether an error came of a transaction here that took too long, and was ended for it."""
        return self.desk is not None and self.desk.is_time_over(error)

    def begun(self) -> Desk:
        """Return the desk, with a transaction begun."""
        if self.desk is None:
            self.desk = self._desks.borrow()
        return self.desk

    def finish(self) -> None:
        """Commit; raises what the desk's commit raises, and nothing is held any more then."""
        if self.desk is not None:
            try:
                self.desk.commit()
            except BaseException:
                self.give_up()
                raise
            self._done()

    def give_up(self) -> None:
        """Roll back."""
        if self.desk is not None:
            self.desk.rollback()
            self._done()

    def _handlers(self) -> Desk:
        check_call(self._process, is_over=self._is_over)
        return self.begun()

    def _done(self) -> None:
        assert self.desk is not None, "asked for above"
        desk, self.desk = self.desk, None
        self._desks.give_back(desk)

"""A desk: one connection to a handler's database, with one transaction at a time, and the ways in which that can end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from relay.message.errors import InDoubt, RelayError, Retriable
from relay.queue.attempts import ForgettableOutcomes
from relay.queue.port import QueueStore

OVER: Final = "the handler has returned, and its message is decided: let what it starts end, or await it, before"
ELSEWHERE: Final = (
    "another process than the handler's has a message, or what it writes with: let that process return what it has made, and "
    "publish and write it in the handler"
)
TAKEN: Final = "the handler has ended the transaction itself: leave COMMIT and ROLLBACK to the relay"
TIME_OVER: Final = (
    "the server has ended the handler's transaction, which paused or lasted for too long (idle_in_transaction_session_timeout, "
    "transaction_timeout): let the handler do what takes long before its first statement"
)


class EffectsInDoubt(InDoubt):
    """COMMIT was sent to the handler's database and its answer was lost."""


class CommitTooLong(EffectsInDoubt):
    """COMMIT was cancelled, or ended for having taken too long: a failure of what was written, unless it had committed by then."""


class DatabaseAway(Retriable):
    """The handler's database refuses for a reason of its own (away, busy, a deadlock): nothing happened, try later."""


class CallOver(RelayError):
    """A statement came after its handler had returned, or in another process: what it would write belongs to no message."""


def check_call(process: int, *, is_over: bool) -> None:
    """Raise CallOver unless the handler still runs, and in this process: what a copy elsewhere is given would be lost."""
    if is_over:
        raise CallOver(OVER)
    if process != os.getpid():
        raise CallOver(ELSEWHERE)


class TransactionTaken(RelayError):
    """The handler ended the transaction that is not its own: its writes stand, or fell, without its message's DONE; or it is refused that."""


class TimeOver(RelayError):
    """The server ended the handler's transaction, which had paused, or lasted, for longer than a limit of time lets it."""


class Desk(Protocol):
    """One connection with what is bound to it. ``kind`` is ``postgresql`` or ``sqlite``; ``stores`` are the queues in this database, by name."""

    stores: Mapping[str, QueueStore]
    outcomes: ForgettableOutcomes

    @property
    def kind(self) -> str:
        """Which dialect it speaks."""

    def begin(self) -> None:
        """Begin a transaction; raises DatabaseAway."""

    def execute(self, query: Any, params: Any = None) -> Any:
        """Run one statement of the handler and return the driver's cursor; raises the driver's errors."""

    def executemany(self, query: Any, params: Sequence[Any]) -> Any:
        """Run one statement for each of many parameters."""

    def is_away(self, error: BaseException) -> bool:
        """Tell whether an error is the database's doing, and not the handler's."""

    def is_time_over(self, error: BaseException) -> bool:
        """Tell whether an error, also of the relay's own statements here, came of a transaction that took too long."""

    def check(self) -> None:
        """Raise TransactionTaken unless the transaction begun is still open: what follows would commit by itself.

        Raises TimeOver if the handler was told that the server had ended it, and went on.
        """

    def commit(self) -> None:
        """Commit; raises EffectsInDoubt or CommitTooLong, DatabaseAway (surely not committed) or TransactionTaken."""

    def rollback(self) -> None:
        """Roll back; never raises. A connection that does not answer is closed, which rolls back too."""

    @property
    def usable(self) -> bool:
        """May another transaction begin on it?"""

    def close(self) -> None:
        """Close the connection."""


Bind = Callable[[Any], Mapping[str, QueueStore]]
"""Makes the stores of the queues in a database, bound to a connection of it."""

"""What a database must offer to take part in capture: one decision row per capture, written by whoever is first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from relay.message.envelope import ResourceName
from relay.message.errors import InDoubt, RelayError, Retriable


class RowLocked(Retriable):
    """A living publisher holds the decision row (or the whole database file): ask again later."""


class AnswerLost(InDoubt):
    """COMMIT was sent and no answer came."""


class NotTheTransactionBegun(InDoubt):
    """The block's own statements ended the database transaction that the capture had begun."""


class CommitRefused(RelayError):
    """The database answered that this transaction did not commit; the cause is the driver's error.

    ``Session.is_undone`` tells whether an earlier one, which the block ended itself, can have.
    """


class DecisionRow(NamedTuple):
    """How a capture ended; a committed one has its nonce.

    One that was committed without being ``proved`` was so by a COMMIT of the block's own, before the end of the block.
    """

    committed: bool
    nonce: bytes | None
    proved: bool


class UnmarkedRow(NamedTuple):
    """A committed capture whose markers are not known to be in the log.

    ``partitions`` is the JSON list of [topic, partition, first sequence, count], None if nothing was appended.
    """

    capture: bytes
    nonce: bytes
    partitions: bytes | None


class AgedRow(NamedTuple):
    """A decision that will not change any more, and its age in seconds."""

    capture: bytes
    partitions: bytes | None
    age_s: float


class Session(Protocol):
    """One connection, on which one capture at a time is made. Not for use by several threads at once."""

    uuid: str

    def begin(self) -> tuple[bytes, bytes]:
        """Begin a transaction whose first statement inserts the decision; return the capture's id and its nonce.

        Raises CaptureFenced if the row exists, Unreachable or RowLocked if nothing was begun.
        """

    def execute(self, query: Any, params: Any = None) -> Any:
        """Run one statement of the application and return the driver's cursor; raises the driver's errors.

        It has its rows, for any thread and also behind the block, and runs nothing more there.
        """

    def savepoint(self, number: int) -> None:
        """Set the savepoint ``number``."""

    def rollback_to(self, number: int) -> None:
        """Undo what came after the savepoint ``number``, and forget it."""

    def release(self, number: int) -> None:
        """Forget the savepoint ``number``, keep what came after it."""

    def is_intact(self, capture: bytes) -> bool:
        """Is the transaction still open, as far as can be told without asking over the network?"""

    @property
    def in_transaction(self) -> bool:
        """Would a statement be part of a transaction, for all that the client side knows, or take effect by itself?"""

    @property
    def failed(self) -> bool:
        """Is it not intact because a statement failed in it or the connection broke, rather than because it was ended?"""

    def decide(self, capture: bytes, partitions: bytes) -> None:
        """Write the partitions into the row, which proves that this is the transaction begun, and COMMIT.

        Raises NotTheTransactionBegun, CommitRefused (rolled back) or AnswerLost (unknown).
        """

    def is_undone(self, capture: bytes) -> bool:
        """After a rollback: is the decision surely not committed, by a statement of the block's own neither?

        False also if that cannot be read on this connection: then only the row tells, read on another.
        """

    def rollback(self) -> None:
        """Roll back; never raises. A connection that does not answer is closed, which rolls back too."""

    @property
    def usable(self) -> bool:
        """May another capture begin on it?"""

    def close(self) -> None:
        """Close the connection."""


class Decisions(Protocol):
    """The decision rows as a resolver sees them, on a connection of its own, one short transaction per call.

    Every method raises Unreachable when the database does not answer.
    """

    def uuid(self) -> str:
        """Return the database's own uuid, read now; ConfigError if it was never migrated."""

    def abort_if_undecided(self, capture: bytes) -> None:
        """Insert (capture, aborted) unless there is a row. Raises RowLocked when a living publisher holds it."""

    def read(self, captures: Sequence[bytes]) -> dict[bytes, DecisionRow]:
        """Return the rows that exist and are committed in the database's own sense."""

    def unmarked(self, older_than_s: float, limit: int) -> list[UnmarkedRow]:
        """Return committed captures that are not marked and were begun at least so long ago, by the database's clock."""

    def mark(self, captures: Sequence[bytes]) -> None:
        """Note that the markers of these captures are acknowledged in every partition."""

    def aged(self, older_than_s: float, limit: int, without: Sequence[str] = ()) -> list[AgedRow]:
        """Return rows older than that which are aborted, or committed and marked, and name none of the topics ``without``.

        Never a committed row that names no place at all, as where a block's own statements committed it: messages may ask for it.
        """

    def trim(self, captures: Sequence[bytes]) -> None:
        """Delete rows whose time is over."""

    def close(self) -> None:
        """Close the connection."""


def identity_of(name: str, decisions: Decisions) -> ResourceName:
    """Return the name with the uuid that the database says now, and close ``decisions``."""
    try:
        return ResourceName(name, decisions.uuid())
    finally:
        decisions.close()


class Resource(Protocol):
    """A database under the name the configuration gives it."""

    name: str

    @property
    def kind(self) -> str:
        """``postgresql`` or ``sqlite``."""

    def identity(self) -> ResourceName:
        """Return name and uuid, read now. Raises Unreachable, or ConfigError if it was never migrated."""

    def session(self) -> Session:
        """Open a connection for captures. Raises Unreachable, or ConfigError if it was never migrated."""

    def decisions(self) -> Decisions:
        """Open a connection for decisions. Raises Unreachable."""

    def create_tables(self) -> None:
        """Create what is missing of the relay's tables; `relay migrate` and tests call it, never the worker."""

    def renew_identity(self) -> str:
        """Give the database a new uuid (a copy used beside its original) and return it."""

    def frozen_writer(self) -> int | None:
        """Return the process id of the writer that blocks every other one, where the medium can tell."""

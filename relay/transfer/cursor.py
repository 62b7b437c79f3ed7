"""The cursor port: a position moves forward only, in the same database transaction as the effects and their proof."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from relay.message.errors import MessageRejected
from relay.message.record import LogMessage, LogPartition

DELIVERED: Final = 0
DEAD: Final = 1
SKIPPED: Final = 2
DUPLICATE: Final = 3
"""An outcome that is only answered: the inbox keeps the first arrival's own."""


class RangeRow(NamedTuple):
    """A publisher's range as the destination's database keeps it; ``publisher`` is 16 bytes, no state: forget it."""

    partition: LogPartition
    publisher: bytes
    state: bytes | None


class Claim(NamedTuple):
    """What a claim of a partition found: its epoch from now on, and the stored position (None: never delivered)."""

    epoch: int
    position: int | None
    ranges: Sequence[RangeRow] = ()


class InboxRow(NamedTuple):
    """One message that the destination has dealt with.

    ``applied`` grows from one delivery transaction of a partition to the next; messages of one transaction may share
    a number, since they became visible together.
    """

    digest: bytes
    content: bytes
    partition: LogPartition
    offset: int
    outcome: int
    applied: int


class Verdict(NamedTuple):
    """What became of one message of a delivered batch.

    ``applied`` is the number in the commit order, -1 if there is none. ``cause`` is set for a dead letter. A
    ``conflict`` is a duplicate whose key or value differ from those of the message that came first.
    """

    outcome: int
    applied: int
    cause: MessageRejected | None = None
    conflict: bool = False


class TableCursor(Protocol):
    """One worker's cursor in one database, used by one thread, but for ``prepare`` and ``abandon``.

    Every method that asks the database raises Unreachable (no connection to be had), Retriable (no effect, may be
    repeated), Stopped (a person must mend the table, its rights or the route).
    """

    progressed: Callable[[], object]
    """Called at each answer to a part of a batch that ``deliver`` takes apart, and while a statement is seen to work."""

    def claim(self, partitions: Mapping[LogPartition, bytes]) -> dict[LogPartition, Claim]:
        """Take the partitions (with their topic ids) over: raise each epoch and read its position.

        What an earlier claim of this cursor held is given up. Whoever held a partition before is Fenced from then on.
        """

    def inbox(self, partitions: Collection[LogPartition]) -> Iterator[list[InboxRow]]:
        """Yield the rows of claimed partitions that are not trimmed, each partition in the order of its offsets."""

    def prepare(
        self, messages: Sequence[LogMessage], ranges: Sequence[RangeRow] = (), *, redriven: bool = False
    ) -> Any:
        """Map messages, given in delivery order, into what ``deliver`` takes, which writes the ranges with them.

        ``redriven``: the inbox's word that one of them is dead counts no more, and trims that were asked for before are
        forgotten, since they might take the new word before the monitor has it. CPU only; any thread, after a claim.
        """

    def deliver(self, positions: Mapping[LogPartition, int], prepared: Any) -> list[Verdict]:
        """Give every message of a batch its one effect and move the positions, in one database transaction.

        ``positions`` names the partition of every message. Returns a verdict for each message, in their order.
        Raises Fenced if another worker claimed one of the partitions (nothing was written), InDoubt if the answer
        to COMMIT was lost: call again with the same arguments, and the inbox decides.
        """

    def trim(self, partition: LogPartition, below: int) -> bool:
        """Delete inbox rows below an offset, never at or above the position; True if there are more.

        A bounded number goes at once, in a transaction of its own; the rest goes with the next deliveries. Raises
        Fenced.
        """

    def abandon(self) -> None:
        """Break off the call under way, from another thread; it raises Retriable, or InDoubt if COMMIT was sent."""

    def close(self) -> None:
        """Give the connection back."""

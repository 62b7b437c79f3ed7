"""Searching a refused batch for the rows at fault: in halves, in the order of delivery, and with doubt where words mislead.

Some refusals say by themselves that they are a row's (a constraint, a value of a wrong form). Others would say the same
of a wrong statement or of a slow server; such a fault bears a doubt, and is a row's only if other rows go through.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from relay.message.errors import MessageRejected, RelayError, Retriable

Row = TypeVar("Row", bound=Hashable)

_DOUBTS: Final = 64
"""Rows refused in doubtful words, and none that goes through: the statement is taken for wrong, without asking the rest."""
_SLOW_DOUBTS: Final = 3
"""The same, where each of them costs the whole time of a statement."""
_ROUNDS: Final = 16
"""Rows that refer to each other in a longer chain, each to one behind it, are not followed to its end."""


class RowFault(Exception):
    """The database refuses a row for what it is; ``rejection`` is the message's cause if it was alone.

    ``doubt`` is what to raise instead unless other rows show that it is the row's doing; it ``is_plain`` if it arose
    before the row was compared with others in the table. ``at`` is the place in its run of a row that is known to have
    been alone when it was refused.
    """

    def __init__(
        self,
        rejection: MessageRejected,
        doubt: RelayError | None = None,
        at: int | None = None,
        *,
        is_plain: bool = False,
    ) -> None:
        super().__init__(str(rejection))
        self.rejection = rejection
        self.doubt = doubt
        self.is_plain = is_plain
        self.at = at


@dataclass(slots=True)
class Searched(Generic[Row]):
    """The rows at fault, and the last one that went through."""

    faults: dict[Row, RowFault] = field(default_factory=dict)
    through: Row | None = None

    def doubtful(self) -> list[RowFault]:
        """Return the faults that are in doubt."""
        return [fault for fault in self.faults.values() if fault.doubt is not None]

    def end_if_hopeless(self) -> None:
        """Raise a doubt if so many rows have one, and none went through, that it is not theirs."""
        if self.through is None:
            doubts = [fault.doubt for fault in self.doubtful() if fault.doubt is not None]
            slow = [doubt for doubt in doubts if isinstance(doubt, Retriable)]
            if len(doubts) >= _DOUBTS or len(slow) >= _SLOW_DOUBTS:
                raise doubts[0]


def search(
    rows: Sequence[Row], attempt: Callable[[Sequence[Row]], None], *, trusting: bool = False
) -> Searched[Row]:
    """Apply rows in their order, halving what is refused down to the rows at fault, and return those.

    ``attempt`` applies a run of rows wholly, or raises RowFault and leaves nothing of it. Unless ``trusting``, raises the
    doubt of the first ones where all of them are in doubt.
    """
    found: Searched[Row] = Searched()
    waiting = [rows] if rows else []
    while waiting:
        run = waiting.pop()
        try:
            attempt(run)
        except RowFault as fault:
            at = 0 if len(run) == 1 else fault.at
            if at is None:
                middle = len(run) // 2
                waiting += [run[middle:], run[:middle]]
            else:
                found.faults[run[at]] = fault
                if not trusting:
                    found.end_if_hopeless()
                waiting += [part for part in (run[at + 1 :], run[:at]) if part]
        else:
            found.through = run[-1]
    return found


def regained(
    refused: Sequence[Row], attempt: Callable[[Sequence[Row]], None], *, misses: Callable[[RowFault], bool]
) -> list[Row]:
    """Apply rows again that were refused for missing another one, and return those that go through by now.

    The other one may have come behind them, or be refused for the same reason: so again while any goes through. They are
    behind the others then, where they do not belong. Raises a doubt that is met.
    """
    waiting, gone = list(refused), list[Row]()
    for _ in range(_ROUNDS):
        found = search(waiting, attempt, trusting=True)
        for fault in found.doubtful():
            assert fault.doubt is not None
            raise fault.doubt
        passed = [row for row in waiting if row not in found.faults]
        waiting = [row for row in waiting if row in found.faults and misses(found.faults[row])]
        gone += passed
        if not passed or not waiting:
            break
    return gone


def find_faults(rows: Sequence[Row], attempt: Callable[[Sequence[Row]], None]) -> dict[Row, MessageRejected]:
    """Apply rows as ``search`` does, and return the causes of those at fault."""
    return {row: fault.rejection for row, fault in search(rows, attempt).faults.items()}

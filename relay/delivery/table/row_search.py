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
    before the row was compared with others in the table. ``at`` are the places in their run of rows that are known to be
    refused, each for itself.
    """

    def __init__(
        self,
        rejection: MessageRejected,
        doubt: RelayError | None = None,
        at: Sequence[int] = (),
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

    def raise_doubt(self) -> None:
        """Raise a doubt if there is one."""
        for fault in self.doubtful():
            assert fault.doubt is not None
            raise fault.doubt

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
            at = (0,) if len(run) == 1 else fault.at
            if at:
                found.faults.update((run[n], fault) for n in at)
                if not trusting:
                    found.end_if_hopeless()
                waiting += [part for part in _others(run, at) if part]
            else:
                middle = len(run) // 2
                waiting += [run[middle:], run[:middle]]
        else:
            found.through = run[-1]
    return found


def _others(run: Sequence[Row], at: Sequence[int]) -> list[Sequence[Row]]:
    """Return what remains of a run, what is to be tried last first."""
    if len(at) == 1:
        return [run[at[0] + 1 :], run[: at[0]]]
    gone = set(at)
    return [[row for n, row in enumerate(run) if n not in gone]]


def regain(
    tried: Sequence[Row],
    found: Searched[Row],
    attempt: Callable[[Sequence[Row]], None],
    *,
    misses: Callable[[RowFault], bool],
    undo: Callable[[], object],
    may_follow: bool,
) -> None:
    """Let rows go through that were refused only because what they refer to lies behind them in the batch.

    Which they are is found out behind the others; then ``undo`` takes everything back, and all are applied once more, in
    their order and at once, as they would have been without a bad row among them. Where that is refused (too many for
    one statement, or each has its own) they follow the others if they ``may``. Raises a doubt that is met.
    """
    refused = [row for row in tried if row in found.faults and misses(found.faults[row])]
    gone = _gone_behind(refused, attempt, misses)
    if not gone:
        return
    undo()
    try:
        attempt([row for row in tried if row in gone or row not in found.faults])
    except RowFault:
        again = search([row for row in tried if row not in found.faults], attempt, trusting=True)
        late = [row for row in tried if row in gone] if may_follow else []
        again.faults |= search(late, attempt, trusting=True).faults
        again.raise_doubt()
        found.faults |= again.faults
        gone = set(late) - again.faults.keys()
    for row in gone:
        del found.faults[row]


def _gone_behind(
    refused: Sequence[Row], attempt: Callable[[Sequence[Row]], None], misses: Callable[[RowFault], bool]
) -> set[Row]:
    """Apply rows behind the others, again while any goes through: they may wait for each other."""
    waiting, gone = refused, set[Row]()
    for _ in range(_ROUNDS):
        found = search(waiting, attempt, trusting=True)
        found.raise_doubt()
        passed = [row for row in waiting if row not in found.faults]
        waiting = [row for row in waiting if row in found.faults and misses(found.faults[row])]
        gone.update(passed)
        if not passed or not waiting:
            break
    return gone

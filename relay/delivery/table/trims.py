"""Trims: which inbox rows are to go, and how many of them at once.

They go beside batches, in the same transactions: a database that takes longer for so many than a statement may must not
hold up what it delivers. After a failure it is half as many, and after each full step a little more again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from relay.message.record import LogPartition

TRIM_ROWS: Final = 20_000
"""Inbox rows deleted in one transaction at most: as many as a batch brings by default, so that trimming keeps up."""
_MORE: Final = 16
"""A step that deleted all it could lengthens the next one by a sixteenth: too long a step costs a whole timeout."""

Delete = Callable[[LogPartition, int, int], int]
"""(partition, below, limit) -> how many rows it deleted; raises if it deleted none of them."""


class Trims:
    """What one cursor was asked to trim; no I/O."""

    def __init__(self) -> None:
        self._asked: dict[LogPartition, int] = {}
        self._at_once = TRIM_ROWS

    def ask(self, partition: LogPartition, below: int) -> None:
        """Rows of a partition below this offset may go."""
        self._asked[partition] = max(below, self._asked.get(partition, 0))

    def asks(self, partition: LogPartition) -> bool:
        """Is anything of this partition still to go?"""
        return partition in self._asked

    def due(self, positions: Collection[LogPartition]) -> bool:
        """Is there anything to go in these partitions?"""
        return not self._asked.keys().isdisjoint(positions)

    def run(self, positions: Mapping[LogPartition, int], delete: Delete) -> dict[LogPartition, int]:
        """Delete rows below what is asked for and below the positions; raises what ``delete`` raises.

        Returns which trims are complete, and up to where: they are ``forgotten`` when the transaction has committed.
        """
        complete = {}
        room = most = min(self._at_once, TRIM_ROWS)
        for partition in [partition for partition in self._asked if partition in positions]:
            below = self._asked[partition]
            try:
                deleted = delete(partition, min(below, positions[partition]), room)
            except Exception:
                self._at_once = max(1, room // 2)
                raise
            if deleted < room:
                complete[partition] = below
            room -= deleted
            if room <= 0:
                self._at_once = min(TRIM_ROWS, most + max(1, most // _MORE))
                break
        return complete

    def forget(self, complete: Mapping[LogPartition, int]) -> None:
        """These trims are complete, unless more was asked for meanwhile."""
        for partition, below in complete.items():
            if self._asked.get(partition) == below:
                del self._asked[partition]

    def clear(self) -> None:
        """Nothing is to go any more; how many rows at once are too many stays known."""
        self._asked.clear()

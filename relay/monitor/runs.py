"""A set of numbers as sorted, disjoint runs: constant size while the numbers are closed without gaps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import sub


class Runs:
    """Runs with both ends included; neighbours that touch are one."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, flat: Sequence[int] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.update(flat)

    def add(self, first: int, last: int) -> None:
        """Add the numbers from ``first`` to ``last``."""
        lasts = self._lasts
        if lasts and lasts[-1] == first - 1:
            lasts[-1] = last
            return
        low = bisect_left(lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, lasts[high - 1])
        self._firsts[low:high] = [first]
        lasts[low:high] = [last]

    def update(self, flat: Sequence[int]) -> None:
        """Add runs given as first, last, first, last, ..."""
        for first, last in zip(flat[::2], flat[1::2], strict=True):
            self.add(first, last)

    def add_numbers(self, numbers: Sequence[int]) -> None:
        """Add single numbers in any order; consecutive ones cost one step together."""
        self.update(collapsed(numbers))

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and self._lasts[at] >= number

    def __len__(self) -> int:
        """How many runs there are."""
        return len(self._firsts)

    @property
    def lowest_run(self) -> tuple[int, int] | None:
        """The run with the lowest numbers."""
        return (self._firsts[0], self._lasts[0]) if self._firsts else None

    @property
    def highest(self) -> int:
        """The highest number, 0 if there is none."""
        return self._lasts[-1] if self._lasts else 0

    @property
    def flat(self) -> list[int]:
        """The runs as first, last, first, last, ..."""
        return [end for run in zip(self._firsts, self._lasts, strict=True) for end in run]

    def shorten(self, runs: int) -> int:
        """Keep at most so many runs: drop the shortest, never the lowest. Returns how many numbers were dropped."""
        excess = len(self._firsts) - max(runs, 1)
        if excess <= 0:
            return 0
        lengths = list(map(sub, self._lasts, self._firsts))
        shortest = sorted(range(1, len(lengths)), key=lengths.__getitem__)[:excess]
        gone = set(shortest)
        self._firsts = [first for at, first in enumerate(self._firsts) if at not in gone]
        self._lasts = [last for at, last in enumerate(self._lasts) if at not in gone]
        return sum(lengths[at] + 1 for at in shortest)

    def take_below(self, limit: int) -> list[int]:
        """Take out the runs that end below a number, and return them flat."""
        count = bisect_left(self._lasts, limit)
        taken = [end for run in zip(self._firsts[:count], self._lasts[:count], strict=True) for end in run]
        del self._firsts[:count], self._lasts[:count]
        return taken

    def drop_highest(self, runs: int) -> None:
        """Keep only so many of the lowest runs."""
        del self._firsts[runs:], self._lasts[runs:]


def collapsed(numbers: Sequence[int]) -> list[int]:
    """Return numbers, in any order, as flat runs: one comparison of lists if they are consecutive."""
    if not numbers:
        return []
    first, last = numbers[0], numbers[-1]
    if last - first == len(numbers) - 1 and (last == first or list(numbers) == list(range(first, last + 1))):
        return [first, last]
    flat: list[int] = []
    for number in sorted(set(numbers)):
        if flat and number == flat[-1] + 1:
            flat[-1] = number
        else:
            flat += (number, number)
    return flat


def is_increasing(numbers: Iterable[int]) -> bool:
    """Is each number above the one before it?"""
    listed = list(numbers)
    return all(map(int.__lt__, listed, listed[1:]))

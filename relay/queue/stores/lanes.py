"""Which of the messages that wait may be taken now: lanes, without gap and by handle; pure, the same for every SQL store."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

Lane = tuple[int, int]
"""A group's number and `lane_number`."""


class Candidate(NamedTuple):
    """A delivery that waits for its subscriber. ``lane`` None: no order."""

    handle: int
    group: int
    lane: int | None
    rank: int
    again_at: int | None
    expires_at: int | None
    attempt: int = 0
    failures: int = 0
    shape: int = 0


def lane_number(lane: bytes) -> int:
    """Return 64 bits for a lane: two lanes of one number wait for each other needlessly, and nothing worse."""
    return int.from_bytes(blake2b(lane, digest_size=8).digest(), "big", signed=True)


@dataclass(slots=True)
class Closed:
    """What keeps lanes shut for one holder: whole lanes, and lanes from a handle on."""

    lanes: set[Lane] = field(default_factory=set)
    numbers: frozenset[int] = frozenset()
    """Lanes of every group: the taker leaves them out."""
    newest: dict[Lane, int] = field(default_factory=dict)
    """The newest message of a lane that this holder has: what is older must wait until it is given back."""
    places: dict[Lane, int] = field(default_factory=dict)
    """The oldest message of a lane that keeps its place, though this subscriber may not take it now."""

    @classmethod
    def without(cls, lanes: Collection[bytes]) -> Closed:
        """Begin with the lanes that a taker leaves out."""
        return cls(numbers=frozenset(map(lane_number, lanes)))

    def hold(self, group: int, lane: int, handle: int, *, own: bool) -> None:
        """Note that a message is in a worker's hands."""
        if own:
            self.newest[group, lane] = max(handle, self.newest.get((group, lane), handle))
        else:
            self.lanes.add((group, lane))

    def place(self, group: int, lane: int, handle: int) -> None:
        """Note that a message keeps its place."""
        self.places[group, lane] = min(handle, self.places.get((group, lane), handle))

    def gives(self, lane: Lane, handle: int) -> bool:
        """Tell whether a lane may give this message, as far as what is said of lanes goes."""
        if lane in self.lanes or lane[1] in self.numbers:
            return False
        return self.newest.get(lane, 0) <= handle <= self.places.get(lane, handle)

    def admit(self, candidates: Iterable[Candidate], limit: int, now: int, latest: int) -> list[Candidate]:
        """Return what may be taken, up to ``limit``; those of a lane must come by handle. No retry lies beyond ``latest``.

        What is said here of a lane holds for further calls too: a lane that stopped stays shut.
        """
        given: list[Candidate] = []
        lanes, numbers, newest, places = self.lanes, self.numbers, self.newest, self.places
        for candidate in candidates:
            handle, group, number, _, again_at, expires_at, *_ = candidate
            if expires_at is not None and expires_at <= now:
                continue
            waits = again_at is not None and now < again_at <= latest
            if number is not None:
                lane = (group, number)
                if lane in lanes or number in numbers:
                    continue
                if waits or not newest.get(lane, 0) <= handle <= places.get(lane, handle):
                    lanes.add(lane)
                    continue
            elif waits:
                continue
            given.append(candidate)
            if len(given) == limit:
                break
        return given

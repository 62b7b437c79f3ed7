"""What a worker says of captures that are undecided: their messages wait, and a worker that is to end when it is idle does not."""

from __future__ import annotations

from typing import Final

from relay.log.holds import Hold
from relay.log.intake import Intake
from relay.world.seldom import SAID_EVERY_S

DETAIL_CHARACTERS_MAX: Final = 300
PATIENCE_S: Final = 5.0
"""Most captures are decided sooner."""
LOOK_S: Final = 1.0


class HeldUp:
    """Tells, twice a minute at most, what messages wait for."""

    def __init__(self) -> None:
        self._say_at = float("-inf")

    def due(self, intake: Intake, now: float) -> str | None:
        """Return the sentence if it is time: what waits for longest, and how much does; None if nothing does for long."""
        if now < self._say_at:
            return None
        said = _of_holds(intake, now) or _of_lost(intake)
        self._say_at = now + (LOOK_S if said is None else SAID_EVERY_S)
        waiting = intake.held()
        return None if said is None else f"{waiting} message{'s wait' if waiting > 1 else ' waits'}{said}"


def why(hold: Hold) -> str:
    """Return why a capture is undecided: which process holds the database's file, say, or which database answers instead."""
    return f"{hold.waiting.value}: {hold.detail[:DETAIL_CHARACTERS_MAX]}" if hold.detail else hold.waiting.value


def lost(first: int, following: int) -> str:
    """Say that what waited has left the log."""
    return f"held messages at offsets {first} to {following - 1} have left the log; see `relay indoubt list`"


def _of_holds(intake: Intake, now: float) -> str | None:
    open_ones = {place: holds for place, held in intake.partitions.items() if (holds := held.holds())}
    if not open_ones:
        return None
    place = min(open_ones, key=lambda one: open_ones[one][0].first_seen)
    first = open_ones[place][0]
    if now - first.first_seen < PATIENCE_S:
        return None
    captures = len({hold.capture for holds in open_ones.values() for hold in holds})
    resource = "" if first.resource is None else f" of resource {first.resource.encode().decode()[:DETAIL_CHARACTERS_MAX]}"
    return (
        f" for {captures} capture{'s that are' if captures > 1 else ' that is'} undecided, for {now - first.first_seen:.0f} s already; "
        f"the first is {first.capture.hex()}{resource}, from {place.topic}[{place.partition}]@{first.first_offset} on: {why(first)}; "
        "see `relay indoubt list`"
    )


def _of_lost(intake: Intake) -> str | None:
    for place, held in intake.partitions.items():
        span = held.lost()
        if span is not None:
            return f"; {place.topic}[{place.partition}]: {lost(*span)}"
    return None

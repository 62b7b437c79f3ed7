"""Where a topic route's messages go: which output partition is a lane's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from relay.message.record import LogMessage, LogPartition

LANE_KEPT_MAX: Final = 1024
"""A lane's name may be a key or a source as large as a record; such a one is not remembered."""
LANES_KEPT: Final = 100_000


def place_of(lane: bytes, places: Sequence[LogPartition]) -> LogPartition:
    """Return the one of a topic's partitions that a lane's records have."""
    return places[crc32(lane) % len(places)]


class LaneOutputs:
    """The output partition is a function of the lane, so a lane's order is the order of one partition."""

    def __init__(self, places: Sequence[LogPartition]) -> None:
        self.places = places
        self._known: dict[bytes, LogPartition] = {}

    def sort(self, messages: Sequence[LogMessage]) -> dict[LogPartition, list[LogMessage]]:
        """Return the messages by their output partition."""
        known = self._known
        groups: dict[LogPartition, list[LogMessage]] = {}
        for message in messages:
            output = known.get(message.lane) or self._output(message.lane)
            group = groups.get(output)
            if group is None:
                groups[output] = [message]
            else:
                group.append(message)
        return groups

    def _output(self, lane: bytes) -> LogPartition:
        if len(self._known) > LANES_KEPT:
            self._known.clear()
        found = place_of(lane, self.places)
        if len(lane) <= LANE_KEPT_MAX:
            self._known[lane] = found
        return found

"""Held messages whose payload was let go are read again after their capture's outcome, in bounded pieces."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Final

import structlog

from relay.delivery.ports import Reader
from relay.log.holds import PartitionHolds
from relay.log.intake import Intake
from relay.message.errors import Stopped
from relay.message.record import LogMessage, LogPartition, lane_name
from relay.world import clock

log = structlog.get_logger("relay.reloading")
OFFSETS_PER_PIECE: Final = 5_000
BYTES_PER_PIECE: Final = 16 * 1024**2
"""A piece ends behind what the reader gave last when it has so many."""
TURN_S: Final = 1.0
"""So soon the worker polls again: past max.poll.interval.ms it would lose its partitions, and begin anew for ever."""
_offset: Final = attrgetter("offset")

MayPass = Callable[[LogPartition, int, int], bool]
"""Has a person decided that offsets which have left the log, first and next, are passed as lost?"""


def _nobody(_place: LogPartition, _first: int, _next: int) -> bool:
    """Without a book nobody can have decided."""
    return False


class Reloading:
    """Reads the decided ranges of a worker's lanes again through a reader of its own."""

    def __init__(self, open_reader: Callable[[], AbstractContextManager[Reader]], may_pass: MayPass = _nobody) -> None:
        self._open_reader = open_reader
        self._may_pass = may_pass
        self.lost = 0

    def turn(self, intake: Intake, room: int, most_bytes: int) -> None:
        """Read at most ``room`` offsets for lanes that wait for nothing but their payload; pass what a person lets go.

        Nothing is read while ``most_bytes`` are ready.
        """
        for partition, held in intake.partitions.items():
            span = held.lost() if held.lanes_blocked else None
            if span is not None and self._may_pass(partition, *span):
                self.lost += held.pass_lost()
        wanted = [(partition, held) for partition, held in intake.partitions.items() if held.reloads()]
        if not wanted or room <= 0 or intake.ready_bytes() >= most_bytes:
            return
        limit = clock.monotonic() + TURN_S
        with self._open_reader() as reader:
            for partition, held in wanted:
                if room <= 0 or intake.ready_bytes() >= most_bytes or clock.monotonic() > limit:
                    return
                room -= self._piece(reader, intake, partition, held)

    def _piece(self, reader: Reader, intake: Intake, partition: LogPartition, held: PartitionHolds) -> int:
        """Read one piece of the log, once for all lanes that go on in it; return how many messages came of it."""
        low, _high = reader.watermarks(partition)
        for lane, spilled in held.reloads():
            if low > spilled.first:
                log.error("lost to retention", at=f"{partition.topic}[{partition.partition}]@{spilled.first}", low=low)
                held.lose(lane, low)
        heads = held.reloads()
        if not heads:
            return 0
        first = min(spilled.first for _, spilled in heads)
        end = min(first + OFFSETS_PER_PIECE, held.read_to)
        found: dict[bytes, list[LogMessage]] = {}
        size = 0
        for records in reader.read({partition: (first, end)}):
            for record in records:
                message = intake.derive(record, partition.topic, partition.partition)
                if message is not None:
                    found.setdefault(lane_name(message.lane), []).append(message)
                    size += message.size
            if size >= BYTES_PER_PIECE:
                end = (records[-1].offset() or 0) + 1
                break
        before = len(held.ready)
        try:
            for lane, _ in heads:
                self._hand_on(held, lane, found.get(lane, []), end)
        except LookupError as lost:
            raise Stopped(
                f"{lost} although it still begins below them: {partition.topic!r} was compacted, or records were deleted "
                "from it; find out which before the position is moved"
            ) from lost
        return len(held.ready) - before

    def _hand_on(self, held: PartitionHolds, lane: bytes, messages: list[LogMessage], end: int) -> None:
        """Give a lane what was read below ``end``: also ranges that it comes to only by this."""
        while (head := held.reload_of(lane)) is not None and head.first < end:
            upto = min(head.last + 1, end)
            at = bisect_left(messages, head.first, key=_offset)
            self.lost += held.reloaded(lane, messages[at : bisect_left(messages, upto, key=_offset)], upto)

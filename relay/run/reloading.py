"""Held messages whose payload was let go are read again after their capture's outcome, in bounded pieces."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import structlog

from relay.delivery.ports import Reader
from relay.log.holds import PartitionHolds, Spilled
from relay.log.intake import Intake
from relay.message.errors import Stopped
from relay.message.record import LogMessage, LogPartition

log = structlog.get_logger("relay.reloading")
OFFSETS_PER_PIECE: Final = 5_000

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

    def turn(self, intake: Intake, room: int) -> None:
        """Read at most ``room`` offsets for lanes that wait for nothing but their payload; pass what a person lets go."""
        for partition, held in intake.partitions.items():
            span = held.lost() if held.lanes_blocked else None
            if span is not None and self._may_pass(partition, *span):
                self.lost += held.pass_lost()
        wanted = [
            (partition, held, lane, spilled)
            for partition, held in intake.partitions.items()
            for lane, spilled in held.reloads()
        ]
        if not wanted or room <= 0:
            return
        with self._open_reader() as reader:
            for partition, held, lane, spilled in wanted:
                if room <= 0:
                    return
                room -= self._piece(reader, intake, partition, held, lane, spilled)

    def _piece(
        self,
        reader: Reader,
        intake: Intake,
        partition: LogPartition,
        held: PartitionHolds,
        lane: bytes,
        spilled: Spilled,
    ) -> int:
        end = min(spilled.last + 1, spilled.first + OFFSETS_PER_PIECE)
        found: list[LogMessage] = []
        low, _high = reader.watermarks(partition)
        if low > spilled.first:
            log.error("lost to retention", at=f"{partition.topic}[{partition.partition}]@{spilled.first}", low=low)
            held.lose(lane, low)
            return 0
        for records in reader.read({partition: (spilled.first, end)}):
            for record in records:
                message = intake.derive(record, partition.topic, partition.partition)
                if message is not None:
                    found.append(message)
        try:
            self.lost += held.reloaded(lane, found, end)
        except LookupError as lost:
            raise Stopped(
                f"{lost} although it still begins below them: {partition.topic!r} was compacted, or records were deleted "
                "from it; find out which before the position is moved"
            ) from lost
        return end - spilled.first

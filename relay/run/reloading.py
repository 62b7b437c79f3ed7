"""Held messages whose payload was let go are read again after their capture's outcome, in bounded pieces."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from relay.delivery.ports import Reader
from relay.log.holds import PartitionHolds, Spilled
from relay.log.intake import Intake
from relay.message.errors import Stopped
from relay.message.record import LogMessage, LogPartition

OFFSETS_PER_PIECE: Final = 5_000


class Reloading:
    """Reads the decided ranges of a worker's lanes again through a reader of its own."""

    def __init__(self, open_reader: Callable[[], AbstractContextManager[Reader]]) -> None:
        self._open_reader = open_reader

    def turn(self, intake: Intake, room: int) -> None:
        """Read at most ``room`` offsets for lanes that wait for nothing but their payload."""
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
        if low <= spilled.first:
            for records in reader.read({partition: (spilled.first, end)}):
                for record in records:
                    message = intake.derive(record, partition.topic, partition.partition)
                    if message is not None:
                        found.append(message)
        try:
            held.reloaded(lane, found, end)
        except LookupError as lost:
            raise Stopped(
                f"{lost}: they are lost to retention; lengthen the retention of {partition.topic!r} and pass them by hand"
            ) from lost
        return end - spilled.first

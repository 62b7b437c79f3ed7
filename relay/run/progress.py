"""What a worker says of itself: positions, holds, counts and when it last moved; written every two seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from relay.delivery.destination import Destination
from relay.log.holds import PartitionHolds, Waiting
from relay.log.intake import Intake
from relay.message.record import LogPartition
from relay.run import held_up
from relay.run.unread import Unread, nothing_unread
from relay.world import clock
from relay.world.seldom import AT_THE_END, Seldom

log = structlog.get_logger("relay.progress")
PERIOD_S: Final = 2.0
WAITING_SHOWN_MAX: Final = 20
STEP_MS: Final = 1000
"""By so much the wall clock was set, rather than that two readings of two clocks lie apart."""

Write = Callable[[dict[str, Any], bool], None]
"""Given the record and whether it is the last one, make it readable for others."""


class Progress:
    """Collects a worker's status and writes it now and then."""

    def __init__(
        self, identity: Mapping[str, Any], write: Write, lost: Callable[[], int] = int, unread: Unread | None = None
    ) -> None:
        self._identity = {**identity, "started_at": clock.wall_ms()}
        # Moments are kept by the clock that nobody sets, and told by how long ago they were: else a wall clock that is put
        # back hides for as long that a partition stands still, and one that is put on calls the next message's wait a stall.
        self._started = clock.monotonic()
        self._write = write
        self._lost = lost
        self._unread = unread or nothing_unread()
        self._told_unread: set[LogPartition] = set()
        self._held_up = held_up.HeldUp()
        self._stuck: dict[LogPartition, str] = {}
        self._state = "recovering"
        self._beat_at = 0.0
        self._moved_at = clock.monotonic()
        self._ends: dict[LogPartition, int] = {}
        self._positions: dict[LogPartition, int] = {}
        self._partition_moved: dict[LogPartition, float] = {}
        self._last_error: str | None = None
        self._last_error_at: float | None = None
        self._failing_since: float | None = None
        self._last: tuple[Intake, Destination] | None = None
        self._dead_seen: dict[str, int] = {}
        self._dead = Seldom()

    def state(self, name: str) -> None:
        """Note what the worker does now: recovering, running, stuck, draining or stopped."""
        self._state = name
        self._beat_at = 0.0
        if name == "draining":
            self._last_error = self._last_error_at = self._failing_since = None  # it would seem to be why the worker stopped
        if name in ("recovering", "stuck", "draining", "stopped") and self._last is not None:
            self._write(self._record(*self._last), name == "stopped")

    def lost_all(self) -> None:
        """Note that the group took the partitions away: what is theirs to tell, others tell by now."""
        self._state = "recovering"

    def took_over(self, now: float) -> None:
        """Note that an assignment was recovered and is read from here on."""
        self._ends.clear()
        self._stuck.clear()
        self._told_unread.clear()
        self._failing_since = None
        self._moved_at = now
        self.state("running")

    def moved(self, now: float) -> None:
        """Note that a batch went on its way."""
        self._moved_at = now

    def stuck(self, partitions: Iterable[LogPartition], why: str) -> None:
        """Note that these partitions cannot go on until somebody or something helps; shown until the next take-over."""
        self._stuck = dict.fromkeys(partitions, why[:500])
        self.state("stuck")

    def failed(self, why: str) -> None:
        """Note the last failure, for people."""
        self._last_error, self._last_error_at = why[:500], clock.monotonic()
        if self._failing_since is None:
            self._failing_since = self._last_error_at

    def caught_up(self, partition: LogPartition, end: int) -> None:
        """Note that the reader has seen the end of a partition."""
        self._ends[partition] = end
        if self._positions.get(partition, 0) >= end:
            self._partition_moved[partition] = clock.monotonic()

    def idle_for(self, now: float, partitions: Iterable[LogPartition]) -> float:
        """Seconds since anything moved; 0 as long as some partition was not read to its end."""
        for partition in partitions:
            if partition not in self._ends:
                return 0.0
        return now - self._moved_at

    def is_held_up(self, now: float, intake: Intake) -> bool:
        """Do messages wait for captures that are undecided? Say for which, now and then: a worker that is to end does not."""
        if not intake.held():
            return False
        why = self._held_up.due(intake, now)
        if why is not None:
            log.warning("not idle", route=self._identity["route"], reason=why)
        return True

    def has_read_all(self, now: float, intake: Intake) -> bool:
        """Ask the brokers whether the log has more than the reader was given, and say what keeps it from that."""
        reached = {p: max(self._ends.get(p, 0), held.read_to) for p, held in intake.partitions.items()}
        if self._unread.is_all(reached, now):
            return True
        for place in self._unread.missed - self._told_unread:
            self._told_unread.add(place)
            why = self._unread.why(place, reached[place])
            log.warning("not idle", route=self._identity["route"], topic=place.topic, partition=place.partition, reason=why)
        return False

    def beat(
        self, now: float, intake: Intake, destination: Destination, running: Mapping[LogPartition, int]
    ) -> None:
        """Write the status if it is time."""
        self._last = (intake, destination)
        for partition, position in running.items():
            if self._positions.get(partition) != position:
                self._positions[partition] = position
                self._partition_moved[partition] = clock.monotonic()
        if now < self._beat_at:
            return
        self._beat_at = now + PERIOD_S
        self._unread.look({p: held.read_to for p, held in intake.partitions.items() if self._seems_done(p, held)}, now)
        self._write(self._record(intake, destination), False)

    def _say_dead(self, causes: Mapping[str, int]) -> None:
        """A dead letter is a message that somebody misses: an operator reads of it without asking."""
        for code, count in causes.items():
            if count > self._dead_seen.get(code, 0):
                self._dead.count(code, count - self._dead_seen.get(code, 0))
        self._dead_seen = dict(causes)
        due = self._dead.due(AT_THE_END if self._state == "stopped" else clock.monotonic())
        if due:
            log.warning("dead letters", route=self._identity["route"], causes=due, see="relay deadletter list")

    def _record(self, intake: Intake, destination: Destination) -> dict[str, Any]:
        counts = destination.counts
        self._say_dead(counts.causes)
        at, now = clock.wall_ms(), clock.monotonic()

        def told(moment: float | None) -> int | None:
            return None if moment is None else at - round((now - moment) * 1000)

        return {
            **self._started_identity(at - round((now - self._started) * 1000)),
            "at": at,
            "state": self._state,
            "partitions": [
                *(self._partition(partition, intake, destination, told) for partition in sorted(intake.partitions)),
                *(_waits(place, why) for place, why in self._stuck.items() if place not in intake.partitions),
            ],
            "counts": {
                "delivered": counts.delivered,
                "duplicates": counts.duplicates,
                "conflicts": counts.conflicts,
                "dead": counts.dead,
                "aborted": sum(held.aborted for held in intake.partitions.values()),
                "transactions": counts.transactions,
                "recoveries": counts.recoveries,
                "settled": counts.settled,
                "resent": counts.resent,
                "told": counts.told,
                "lost": self._lost(),
            },
            "causes": dict(counts.causes),
            "last_error": self._last_error,
            "last_error_at": told(self._last_error_at),
            "failing_since": told(self._failing_since),
        }

    def _started_identity(self, started_at: int) -> dict[str, Any]:
        """A start is told as one moment, since counters begin with it, until the wall clock was set."""
        if abs(started_at - self._identity["started_at"]) > STEP_MS:
            self._identity["started_at"] = started_at
        return self._identity

    def _position(self, partition: LogPartition, held: PartitionHolds) -> int:
        return self._positions.get(partition, held.position())

    def _seems_done(self, partition: LogPartition, held: PartitionHolds) -> bool:
        """Is all delivered that the reader knows of?"""
        return self._position(partition, held) >= max(self._ends.get(partition, 0), held.read_to)

    def _partition(
        self, partition: LogPartition, intake: Intake, destination: Destination, told: Callable[[float | None], int | None]
    ) -> dict[str, Any]:
        held = intake.partitions[partition]
        position = self._position(partition, held)
        end = max(self._ends.get(partition, 0), held.read_to, self._unread.end(partition))
        now = clock.monotonic()
        lost = held.lost()
        if end <= position:
            self._partition_moved[partition] = now
        return {
            "topic": partition.topic,
            "partition": partition.partition,
            "position": position,
            "end": end,
            "lag": max(0, end - position),
            "held": held.held,
            "waiting": [
                {
                    "capture": hold.capture.hex(),
                    "why": held_up.why(hold),
                    "since_ms": int((now - hold.first_seen) * 1000),
                    "resource": hold.resource.encode().decode() if hold.resource is not None else None,
                    "first_offset": hold.first_offset,
                    "needs_person": hold.waiting is Waiting.STUCK,
                }
                for hold in held.holds()[:WAITING_SHOWN_MAX]
            ],
            "lanes_blocked": held.lanes_blocked,
            "in_doubt": held.still_to_hand_on(destination.in_doubt.get(partition, 0)),
            "unread": self._unread.why(partition, held.read_to) if self._seems_done(partition, held) else None,
            "stuck": self._stuck.get(partition) or (held_up.lost(*lost) if lost is not None else None),
            "lost_first": lost[0] if lost is not None else None,
            "lost_next": lost[1] if lost is not None else None,
            "last_progress_at": told(self._partition_moved.get(partition)),
        }


def _waits(partition: LogPartition, why: str) -> dict[str, Any]:
    """A partition that was never taken over: all that is known of it is why."""
    return {"topic": partition.topic, "partition": partition.partition, "stuck": why}

"""A reader that sees each message once, committed, and behind the message that stood before it in the log.

It reads log and output together, read_committed, while everything happens. It knows a message by source and id alone
and shares nothing with the relay's bookkeeping or with the auditor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from relay.capture.outcomes import is_marker
from relay.config.model import RelayConfig
from relay.kafka import settings
from relay.kafka.reading import PartitionReader
from relay.kafka.tail import tail
from relay.message.envelope import ID, SOURCE
from relay.message.errors import RelayError, Stuck
from relay.message.record import LogPartition
from relay.world import clock, schedule

ABORTED: Final = b'"fate":"abort"'
"""Stands in the value of every message whose transaction its publisher means to abort."""
EXAMPLES_MAX: Final = 20
QUIET_S: Final = 2.0
LOOK_S: Final = 10.0

MessageId = tuple[bytes, bytes]
"""Source and id."""
Lane = tuple[str, int, bytes]
"""Log topic, log partition and source: within it, and within one output partition, order holds."""


class Anomaly(NamedTuple):
    """Something the reader must never see; ``kind`` is a field of ``Watched``."""

    kind: str
    detail: str


class Seen(NamedTuple):
    """A record as the checks need it."""

    partition: LogPartition
    offset: int
    id: MessageId
    is_aborted: bool


@dataclass
class Watched:
    """What the reader counted."""

    logged: int = 0
    shown: int = 0
    duplicates: int = 0
    aborted: int = 0
    inversions: int = 0
    phantoms: int = 0
    examples: list[str] = field(default_factory=list)


class Checks:
    """Judges records as they come; log and output come in any order to one another. Pure.

    With ``logs`` empty only duplicates are judged: where the log is not read nothing can be said of order.
    """

    def __init__(self, logs: Iterable[str], tell: Callable[[Anomaly], None] = lambda _: None) -> None:
        self.watched = Watched()
        self.times: dict[MessageId, int] = {}
        self._logs = frozenset(logs)
        self._tell = tell
        self._first: dict[MessageId, tuple[Lane, int]] = {}
        self._reached: dict[LogPartition, int] = {}
        self._ahead: dict[tuple[LogPartition, Lane], tuple[int, MessageId]] = {}
        self._waiting: dict[tuple[LogPartition, bytes], deque[Seen]] = {}

    def take(self, record: Seen) -> None:
        """Judge one record; one that the reader is given again is not looked at twice."""
        if record.offset <= self._reached.get(record.partition, -1):
            return
        self._reached[record.partition] = record.offset
        if record.partition.topic in self._logs:
            self._log(record)
        else:
            self._output(record)

    def conclude(self) -> Watched:
        """Return the counts; outputs that still wait for their message in the log are phantoms."""
        for queue in self._waiting.values():
            self._settle(queue)
            for record in queue:
                self._blame("phantoms", record, "it is nowhere in the log")
            queue.clear()
        return self.watched

    def _log(self, record: Seen) -> None:
        self.watched.logged += 1
        lane = (record.partition.topic, record.partition.partition, record.id[0])
        self._first.setdefault(record.id, (lane, record.offset))

    def _output(self, record: Seen) -> None:
        self.watched.shown += 1
        times = self.times[record.id] = self.times.get(record.id, 0) + 1
        if record.is_aborted:
            self._blame("aborted", record, "its publisher aborted it")
        if times > 1:
            self._blame("duplicates", record, f"it is there {times} times")
        elif self._logs:
            queue = self._waiting.setdefault((record.partition, record.id[0]), deque())
            queue.append(record)
            self._settle(queue)

    def _settle(self, queue: deque[Seen]) -> None:
        """Judge the order of those whose place in the log is known, each after those shown before it.

        One that the log has not shown yet lets only itself wait; judged later, it may only be reported too mildly.
        """
        while queue and (place := self._first.get(queue[0].id)) is not None:
            record, (lane, offset) = queue.popleft(), place
            before, other = self._ahead.get((record.partition, lane), (-1, record.id))
            if offset < before:
                self._blame("inversions", record, f"in the log it stands before {_name(other)}, which was shown first")
            else:
                self._ahead[record.partition, lane] = (offset, record.id)

    def _blame(self, kind: str, record: Seen, why: str) -> None:
        setattr(self.watched, kind, getattr(self.watched, kind) + 1)
        detail = f"{record.partition.topic}[{record.partition.partition}]@{record.offset} {_name(record.id)}: {why}"
        if len(self.watched.examples) < EXAMPLES_MAX:
            self.watched.examples.append(f"{kind}: {detail}")
            self._tell(Anomaly(kind, detail))


class Watch:
    """The reader's thread; ``end`` waits until it has seen everything up to the given ends."""

    def __init__(
        self, config: RelayConfig, firsts: Mapping[LogPartition, int], checks: Checks, note: Callable[[str], None]
    ) -> None:
        self._checks = checks
        self._note = note
        self._reached = dict(firsts)
        self._moved_at = clock.monotonic()
        self._stopping = schedule.event()
        group = f"{config.relay.name}.chaos-reader"
        self._settings = settings.consumer(config.kafka, config.timing, group, log_level=0)
        self._thread = schedule.start_thread("chaos-reader", self._run)

    @property
    def places(self) -> list[LogPartition]:
        """The partitions that it reads."""
        return list(self._reached)

    def end(self, ends: Mapping[LogPartition, int], timeout_s: float) -> list[LogPartition]:
        """Read up to the ends, then stop; return the partitions whose end was not reached.

        Behind the last record there may be only markers, which no reader is shown: after a silence another one looks for records.
        """
        limit = clock.monotonic() + timeout_s
        while clock.monotonic() < limit:
            behind = self._behind(ends)
            if not behind or (self._thread.is_alive() and clock.monotonic() - self._moved_at > QUIET_S):
                break
            clock.sleep(0.1)
        alive = self._thread.is_alive()
        self.stop()
        return self._missed(self._behind(ends)) if alive else list(ends)

    def _behind(self, ends: Mapping[LogPartition, int]) -> dict[LogPartition, tuple[int, int]]:
        """Return from where to where it has seen no record."""
        reached = {place: self._reached.get(place, 0) for place in ends}
        return {place: (reached[place], end) for place, end in ends.items() if reached[place] < end}

    def _missed(self, behind: Mapping[LogPartition, tuple[int, int]]) -> list[LogPartition]:
        """Return where another reader finds records."""
        found = set()
        with PartitionReader(self._settings, committed=True, clock=clock.monotonic, deadline_s=LOOK_S) as reader:
            try:
                for records in reader.read(behind):
                    found |= {LogPartition(record.topic(), record.partition()) for record in records}
            except Stuck:
                pass  # Go on: what somebody's open transaction hides is for no reader to see.
            except RelayError as error:
                self._note(f"whether the reader has come to its end cannot be told: {error}")
        return sorted(found)

    def stop(self) -> None:
        """Stop reading."""
        self._stopping.set()
        self._thread.join(10)

    def _run(self) -> None:
        try:
            for records in tail(self._settings, list(self._reached), dict(self._reached)):
                for record in records:
                    self._take(record)
                if records:
                    self._moved_at = clock.monotonic()
                if self._stopping.is_set():
                    return
        except (RelayError, RuntimeError, ValueError) as error:
            self._note(f"the reader ended: {error}")
            raise

    def _take(self, record: Any) -> None:
        headers = dict(record.headers() or ())
        partition = LogPartition(record.topic(), record.partition())
        self._reached[partition] = record.offset() + 1
        if ID not in headers or is_marker(record.key(), headers):
            return
        aborted = ABORTED in (record.value() or b"")
        self._checks.take(Seen(partition, record.offset(), (headers.get(SOURCE) or b"", headers[ID]), aborted))


def _name(message: MessageId) -> str:
    return "/".join(part.decode("utf-8", "replace") for part in message)

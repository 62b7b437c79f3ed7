"""Whole partitions read once, in order, up to their high watermark; a partition that does not end is named.

For the auditor: apart from the client library it shares no code with the workers' readers. An end is reached by a
record's offset + 1 or by an end-of-partition event, never by counting records: transaction markers, aborted
records and compaction leave gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from relay.kafka import settings
from relay.kafka.clients import Consumer
from relay.kafka.failures import is_of_group, unavailable
from relay.kafka.groups import denial
from relay.message.errors import RelayError, Unreachable
from relay.message.record import LogPartition, Record
from relay.world import clock

BATCH_RECORDS: Final = 10_000
LEFT_REMEDY: Final = "; retention takes what is being read: try again, or lengthen it"
WAIT_S: Final = 0.1
HEAR_S: Final = 1.0
DEADLINE_S: Final = 40.0
"""Longer than the default transaction timeout (10 s) and the broker's pause before it ends one (10 s) together."""

COORDINATOR_MOVES: Final = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE}
)
"""So a broker answers for a moment after it was started, or has taken the group over: ask again."""

Range = tuple[int, int]
Progress = Callable[[LogPartition, int], None]


class Scanned(NamedTuple):
    """A record with what the scan already asked of it; ``place`` is the partition's index in the ranges."""

    place: int
    offset: int
    message: Message


class Scan:
    """Reads partitions read_committed, without a group; ``group`` only names it where the broker wants a name."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        timing: settings.TimingLike,
        group: str,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._kafka = kafka
        self._timing = timing
        self._deadline_s = deadline_s
        # The client's own log lines would repeat, in other words, the sentence that is raised.
        over: dict[str, Any] = {"enable.partition.eof": True, "log_level": 0}
        self._consumer = Consumer(settings.consumer(kafka, timing, group, **over))
        self._heard_of: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def read(
        self, ranges: Mapping[LogPartition, Range], progress: Progress = lambda _partition, _offset: None
    ) -> Iterator[list[Scanned]]:
        """Yield the committed records of each partition in [first, end), in batches, each partition in order.

        ``progress`` is told how far each partition has come. Raises Unreachable, naming the partition and its offset, when none of the open partitions moves for the
        deadline or one cannot be read; ConfigError where that is not allowed.
        """
        reading = _Reading(ranges)
        if not reading.ends:
            return
        self._hear_of({partition.topic for partition in reading.ends})
        self._consumer.assign([TopicPartition(p.topic, p.partition, ranges[p][0]) for p in reading.ends])
        limit = clock.monotonic() + self._deadline_s
        try:
            while reading.ends:
                before = sum(reading.reached)
                # The client waits for as many as it is asked for: one is waited for, the others are what has come with it.
                first = self._consumer.consume(1, WAIT_S)
                records = reading.sort([*first, *self._consumer.consume(BATCH_RECORDS, 0)] if first else [])
                for partition, offset in reading.moved():
                    progress(partition, offset)
                if sum(reading.reached) > before:
                    limit = clock.monotonic() + self._deadline_s
                elif reading.ends and clock.monotonic() > limit:
                    raise Unreachable(reading.stuck(self._deadline_s))
                if records:
                    yield records
        finally:
            self._consumer.unassign()

    def _hear_of(self, topics: set[str]) -> None:
        """Have the client know who leads topics: by itself it asks for what it is assigned later once a second only."""
        for topic in topics - self._heard_of:
            with suppress(KafkaException):  # the reading finds out, and says what of
                self._consumer.list_topics(topic, timeout=HEAR_S)
        self._heard_of |= topics

    def one(self, partition: LogPartition, offset: int) -> Message | None:
        """Return the record at an offset, None if it is gone."""
        try:
            place = TopicPartition(partition.topic, partition.partition)
            low, _high = self._consumer.get_watermark_offsets(place, timeout=self._deadline_s)
        except KafkaException as error:
            raise _unread(f"{partition.topic}[{partition.partition}]", error.args[0]) from error
        if offset < low:
            return None
        for records in self.read({partition: (offset, offset + 1)}):
            for record in records:
                return record.message
        return None

    def committed(self, group: str, partitions: Iterable[LogPartition]) -> dict[LogPartition, int]:
        """Return a group's committed offsets, stable ones only; partitions without one are absent."""
        asker = Consumer(settings.consumer(self._kafka, self._timing, group, log_level=0))
        wanted = [TopicPartition(p.topic, p.partition) for p in partitions]
        limit = clock.monotonic() + self._deadline_s
        found = None
        try:
            while found is None:
                try:
                    found = asker.committed(wanted, self._deadline_s)
                except KafkaException as error:
                    if error.args[0].code() not in COORDINATOR_MOVES or clock.monotonic() > limit:
                        why = denial(asker) or error
                        raise _unread(f"the committed offsets of group {group}", why.args[0]) from error
                    clock.sleep(WAIT_S)
        finally:
            asker.close()
        for place in found:
            if place.error is not None:
                raise _unread(f"the committed offset of group {group} in {place.topic}[{place.partition}]", place.error)
        return {LogPartition(p.topic, p.partition): p.offset for p in found if p.offset >= 0}


def broker_time(message: Message | Record) -> int:
    """Return when the broker appended a record, in milliseconds; -1 where its writer gave the time."""
    kind, at = message.timestamp()
    return at if kind == TIMESTAMP_LOG_APPEND_TIME else -1


class _Reading:
    """How far each partition of one read has come."""

    def __init__(self, ranges: Mapping[LogPartition, Range]) -> None:
        self.ends = {partition: end for partition, (first, end) in ranges.items() if first < end}
        self.reached = [first for first, _end in ranges.values()]
        self._names = list(ranges)
        self._places = {(p.topic, p.partition): place for place, p in enumerate(ranges)}
        self._limits = [end for _first, end in ranges.values()]
        self._shown = list(self.reached)

    def sort(self, batch: list[Message]) -> list[Scanned]:
        """Return the records that lie in the ranges, and note which partitions are finished."""
        places, limits, reached = self._places, self._limits, self.reached
        records = []
        for message in batch:
            offset = message.offset()
            error = message.error()
            if error is not None and (is_of_group(error) or message.topic() is None):
                continue  # of no partition: a group's coordinator was looked for, say, and that has failed
            place = places[message.topic(), message.partition()]  # type: ignore[index]
            if error is not None:
                self._event(place, error, offset or 0)
            elif offset is not None and offset < limits[place]:
                records.append(Scanned(place, offset, message))
                reached[place] = offset + 1
            else:
                # A gap before the end; where writers never pause, no event of an end would ever tell.
                reached[place] = limits[place]
        for partition in [p for p in self.ends if reached[places[p]] >= limits[places[p]]]:
            del self.ends[partition]
        return records

    def moved(self) -> list[tuple[LogPartition, int]]:
        """Return the partitions that moved since they were last asked for, with the offset reached."""
        found = [
            (self._names[place], offset)
            for place, offset in enumerate(self.reached)
            if offset != self._shown[place]
        ]
        self._shown = list(self.reached)
        return found

    def stuck(self, seconds: float) -> str:
        """Say where the reading stands still."""
        where = ", ".join(
            f"{p.topic}[{p.partition}] at offset {self.reached[self._places[p]]} of {end}"
            for p, end in self.ends.items()
        )
        return (
            f"reading stands still for {seconds:g} s: {where}; either the broker is away or a Kafka transaction is "
            "still open there: wait for its timeout, or end it (kafka-transactions.sh), and try again"
        )

    def _event(self, place: int, error: KafkaError, offset: int) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            # An earlier end of partition (an open transaction hides the rest) does not count.
            self.reached[place] = max(self.reached[place], min(offset, self._limits[place]))
        elif not error.retriable():
            name = self._names[place]
            left = error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
            raise _unread(f"{name.topic}[{name.partition}]", error, LEFT_REMEDY if left else "")


def _unread(what: str, error: KafkaError, remedy: str = "") -> RelayError:
    return unavailable(f"{what} cannot be read: {error.str()}", error, remedy)

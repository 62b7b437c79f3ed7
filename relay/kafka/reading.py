"""Reading partitions by hand, without a group: up to a given end, never past a deadline without saying so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from relay.kafka.clients import Consumer
from relay.kafka.failures import (
    LEADER_MOVES,
    MISSING,
    is_denied,
    is_of_group,
    kafka_error,
    sentence,
    unavailable,
)
from relay.message.errors import ConfigError, RelayError, Stopped, Stuck
from relay.message.record import LogPartition
from relay.world import clock as pausing

BATCH_RECORDS: Final = 10_000
POLL_S: Final = 0.2
LOOKS_ANEW: Final = 6
_ANEW_PAUSE_S: Final = 0.25
_LEADER_PAUSE_S: Final = 0.05


class PartitionReader:
    """A consumer that is told what to read; ``committed`` hides aborted and undecided transactions.

    A read waits up to POLL_S for ``batch`` records at a time, also at its end: where few are read, 1 spares that wait.
    It calls ``meanwhile`` between these; whatever that raises ends it behind the records that it has yielded. What
    the broker does not allow raises ``denied``.
    """

    def __init__(
        self,
        settings: Mapping[str, object],
        *,
        committed: bool,
        clock: Callable[[], float],
        deadline_s: float,
        batch: int = BATCH_RECORDS,
        meanwhile: Callable[[], object] = bool,
        denied: type[ConfigError | Stopped] = ConfigError,
    ) -> None:
        over = {
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        self._given = {**settings, **over}
        self._consumer = Consumer(self._given)
        self._clock = clock
        self._deadline_s = deadline_s
        self._batch = batch
        self._meanwhile = meanwhile
        self._denied = denied
        self._unheard_of: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave; the reader cannot be used again."""
        self._consumer.close()

    def renew(self) -> None:
        """Forget who leads: this handle may go on asking the leader it knew, dead or not."""
        self._consumer.hear()
        self._consumer = Consumer(self._given)

    def watermarks(self, partition: LogPartition) -> tuple[int, int]:
        """Return (low, high) as the broker says now; with a read_uncommitted handle, high is the high watermark."""
        place = TopicPartition(partition.topic, partition.partition)
        limit = self._clock() + self._deadline_s
        is_new = False
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(place, timeout=self._deadline_s)
            except KafkaException as error:
                self.renew()
                reason = kafka_error(error)
                if reason is not None and reason.code() == KafkaError._UNKNOWN_PARTITION and not is_new:
                    is_new = True  # One that was there before counts for minutes the partitions that it knew at first.
                    continue
                if reason is None or reason.code() not in LEADER_MOVES or self._clock() >= limit:
                    if unseen := unseen_because(self._consumer, partition.topic, error, self._deadline_s):
                        raise self._unread(f"the ends of {partition.topic}[{partition.partition}]", unseen) from error
                    gone = reason is not None and reason.code() in MISSING
                    remedy = f"; if {partition.topic} was deleted, create it again as it was" if gone else ""
                    raise self._unread(f"the ends of {partition.topic}[{partition.partition}]", error, remedy) from error
                pausing.sleep(_LEADER_PAUSE_S)
            else:
                return low, high

    def end_anew(self, partition: LogPartition, least: int) -> int:
        """Return the high watermark, asked by new clients while it is below ``least``: a broker that is cut off from its peers, and
        not from clients, tells the end of the time when it led, and whom a client asks first is chance.
        """
        high = -1
        for _ in range(LOOKS_ANEW):
            self.renew()
            high = self.watermarks(partition)[1]
            if high >= least:
                break
            pausing.sleep(_ANEW_PAUSE_S)
        return high

    def ends(self, places: Collection[LogPartition], wait_s: float | None = None) -> dict[LogPartition, int]:
        """Return where partitions end, by one request to each leader; with ``committed`` their last stable offsets.

        Raises Unreachable after ``wait_s`` seconds, the reader's own deadline if none are given.
        """
        if not places:
            return {}  # the client refuses to ask for nothing
        patience = self._deadline_s if wait_s is None else wait_s
        limit = self._clock() + patience
        while True:
            try:
                return latest(self._consumer, places, patience)
            except KafkaException as error:
                self.renew()
                reason = kafka_error(error)
                if reason is None or reason.code() not in LEADER_MOVES or self._clock() >= limit:
                    gone = reason is not None and reason.code() in MISSING
                    remedy = "; if one of them was deleted, create it again as it was" if gone else ""
                    raise self._unread(f"the ends of {named(places)}", error, remedy) from error
                pausing.sleep(_LEADER_PAUSE_S)

    def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[list[Any]]:
        """Yield batches of records until each partition is read from ``first`` to ``end`` (exclusive).

        A partition is finished when an end-of-partition event or a record's offset + 1 reaches its end: positions do
        not count transaction markers. Raises Stuck, naming the partition, when nothing moves for the deadline.
        """
        open_ends = {partition: end for partition, (first, end) in ranges.items() if first < end}
        if not open_ends:
            return
        consumer = self._consumer
        consumer.assign([TopicPartition(p.topic, p.partition, ranges[p][0]) for p in open_ends])
        limit = self._clock() + self._deadline_s
        awaited = sum(end - ranges[partition][0] for partition, end in open_ends.items())
        try:
            while open_ends:
                # Asking for more than is to come would wait for it.
                batch = consumer.consume(min(self._batch, max(awaited, 1)), POLL_S)
                records = self._sort(batch, open_ends)
                awaited -= len(records)
                if records:
                    limit = self._clock() + self._deadline_s
                    yield records
                elif open_ends and self._clock() > limit:
                    stuck = ", ".join(f"{p.topic}[{p.partition}] before offset {end}" for p, end in open_ends.items())
                    raise Stuck(f"reading is stuck for {self._deadline_s:.0f} s: {stuck}")
                self._meanwhile()
        finally:
            consumer.unassign()

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 if there is none, by the word of several new clients: a broker that is asked first
        may not know it for a moment.
        """
        if topic in self._unheard_of:
            return 0
        for _ in range(LOOKS_ANEW):
            if count := self._partitions(topic):
                return count
            self.renew()
            pausing.sleep(_ANEW_PAUSE_S)
        self._unheard_of.add(topic)
        return 0

    def _partitions(self, topic: str) -> int:
        try:
            found = self._consumer.list_topics(topic, timeout=self._deadline_s).topics[topic]
            if found.error is not None and found.error.code() not in MISSING:
                raise KafkaException(found.error)
        except KafkaException as error:
            raise self._unread(f"the partitions of {topic}", error) from error
        return len(found.partitions)

    def still_open(self, ends: Mapping[LogPartition, int], wait_s: float) -> set[LogPartition]:
        """Return the partitions where, after ``wait_s`` seconds, a transaction is still open below the given end.

        For a handle with ``committed``: high is the last stable offset then.
        """
        limit = self._clock() + wait_s
        left = set(ends)
        while left:
            found = self.ends(left)
            left = {partition for partition in left if found[partition] < ends[partition]}
            if not left or self._clock() >= limit:
                break
            self._meanwhile()
            pausing.sleep(_LEADER_PAUSE_S)
        return left

    def _sort(self, batch: list[Any], open_ends: dict[LogPartition, int]) -> list[Any]:
        records = []
        for message in batch:
            partition = LogPartition(message.topic() or "", message.partition() or 0)
            offset = message.offset() or 0
            error = message.error()
            if error is None:
                end = open_ends.get(partition)
                if end is None or offset >= end:
                    open_ends.pop(partition, None)
                    continue
                records.append(message)
                if offset + 1 >= end:
                    del open_ends[partition]
            elif error.code() == KafkaError._PARTITION_EOF:
                if offset >= open_ends.get(partition, offset + 1):
                    del open_ends[partition]
            elif not error.retriable() and not is_of_group(error):
                raise self._unread(f"{partition.topic}[{partition.partition}]", KafkaException(error))
        return records

    def _unread(self, what: str, failure: KafkaException, remedy: str = "") -> RelayError:
        """Return what to raise: a right that is missing comes by no waiting."""
        return unavailable(f"{what} cannot be read: {sentence(failure)}", kafka_error(failure), remedy, denied=self._denied)


def named(places: Collection[LogPartition]) -> str:
    """Return the topics of what was asked for at once, for a sentence: a broker's answer does not name what it lacks."""
    return f"{', '.join(sorted({place.topic for place in places}))} ({len(places)} partitions)"


def latest(consumer: Consumer, places: Collection[LogPartition], wait_s: float) -> dict[LogPartition, int]:
    """Return where partitions end under the handle's isolation level, by one request to each leader. Raises KafkaException."""
    # As a time the client takes it for "latest".
    asked = [TopicPartition(place.topic, place.partition, OFFSET_END) for place in places]
    found = consumer.offsets_for_times(asked, timeout=wait_s)
    failed = [one.error for one in found if one.error is not None]
    if failed:
        raise KafkaException(failed[0])
    return {LogPartition(one.topic, one.partition): one.offset for one in found}


def unseen_because(consumer: Consumer, topic: str, failure: KafkaException, timeout_s: float) -> KafkaException | None:
    """Return what the broker says of a topic that the client knows no partition of, if it is that this may not be told."""
    reason = kafka_error(failure)
    if reason is None or reason.code() not in MISSING:
        return None
    try:
        error = consumer.list_topics(topic, timeout=timeout_s).topics[topic].error
    except KafkaException:
        return None
    return KafkaException(error) if error is not None and is_denied(error) else None

"""Values read back from the log by place: for a queue that keeps only its index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Final

from relay.kafka import settings
from relay.kafka.failures import MISSING, kafka_error
from relay.kafka.reading import PartitionReader
from relay.kafka.settings import TimingLike
from relay.kafka.topics import Topics
from relay.message.errors import ConfigError, Stuck, Unreachable
from relay.message.record import LogPartition
from relay.queue.message import Place
from relay.queue.port import StoreAway
from relay.world import clock

GAP: Final = 1000
"""Offsets nearer than this are read in one run: reading past so many records costs less than a new fetch."""
DEADLINE_S: Final = 10.0


class LogValues:
    """A reader without a group. What was put into a queue was committed, so it reads whatever is there.

    The digest in the index tells whether a record is the one that was put: a topic may have been made anew.
    """

    def __init__(self, kafka: Mapping[str, str], timing: TimingLike, name: str) -> None:
        self._kafka, self._timing = kafka, timing
        given = settings.consumer(kafka, timing, name, log_level=0)
        self._reader = PartitionReader(given, committed=False, clock=clock.monotonic, deadline_s=DEADLINE_S)

    def read(self, places: Sequence[Place]) -> dict[Place, bytes | None]:
        """Return the values that are there, each partition read in the order of its offsets; see `relay.queue.values.Values`."""
        wanted: dict[LogPartition, dict[int, list[Place]]] = {}
        for place in places:
            offsets = wanted.setdefault(LogPartition(place.topic, place.partition), {})
            # One of each topic that had this name: the digest in the index tells whose the value is.
            offsets.setdefault(place.offset, []).append(place)
        found: dict[Place, bytes | None] = {}
        try:
            runs = {
                partition: self._runs(partition, offsets) for partition, offsets in wanted.items()
            }
            for ranges in _rounds(runs):
                for batch in self._reader.read(ranges):
                    for record in batch:
                        offsets = wanted[LogPartition(record.topic(), record.partition())]
                        found.update(dict.fromkeys(offsets.get(record.offset(), ()), record.value()))
        except (Stuck, Unreachable, ConfigError) as error:
            raise StoreAway(f"the log with the queue's values does not answer: {error}") from error
        return found

    def _runs(self, partition: LogPartition, places: Mapping[int, list[Place]]) -> list[tuple[int, int]]:
        """Return what is to be read of a partition, [first, end); nothing of what lies below its low watermark.

        Raises Unreachable for what lies at or above its high watermark, unless the topic is another one by now.
        """
        try:
            low, high = self._reader.watermarks(partition)
        except Unreachable as error:
            found = kafka_error(error)
            if found is not None and found.code() in MISSING and self._is_gone(partition, places):
                return []
            raise
        beyond = [place for offset, some in places.items() if offset >= high for place in some]
        if beyond and not self._is_another(partition, beyond):
            # What was put was acknowledged: a leader that was replaced, and does not know yet, shows less than there is.
            self._reader.renew()
            raise Unreachable(
                f"{partition.topic}[{partition.partition}] ends at offset {high} as its leader says, before what the queue has of it: "
                "the leader is behind, or lost it; `relay message withdraw` gives up what will not come back"
            )
        there = [offset for offset in sorted(places) if low <= offset < high]
        if not there:
            return []
        breaks = [number for number, (one, other) in enumerate(pairwise(there), 1) if other - one > GAP]
        pieces = zip([0, *breaks], [*breaks, len(there)], strict=True)
        return [(there[begin], there[end - 1] + 1) for begin, end in pieces]

    def _is_gone(self, partition: LogPartition, places: Mapping[int, list[Place]]) -> bool:
        """Tell whether the topic was deleted, or made anew without this partition; a client may just not have heard of it."""
        with Topics(self._kafka, self._timing) as topics:
            found = topics.describe([partition.topic], settings=False).get(partition.topic)
        if found is None:
            return True
        # A topic only grows: whoever lists fewer partitions of the same one lags behind.
        same = any(place.topic_id == found.topic_id.hex() for place in chain(*places.values()))
        return not same and found.partitions <= partition.partition

    def _is_another(self, partition: LogPartition, places: Sequence[Place]) -> bool:
        """Tell whether the topic in which these lay was deleted: there is none, or one with another id."""
        with Topics(self._kafka, self._timing) as topics:
            found = topics.describe([partition.topic], settings=False).get(partition.topic)
        return found is None or all(place.topic_id != found.topic_id.hex() for place in places)

    def close(self) -> None:
        """Leave."""
        self._reader.close()


def _rounds(
    runs: Mapping[LogPartition, list[tuple[int, int]]],
) -> Iterator[dict[LogPartition, tuple[int, int]]]:
    """Yield one run of each partition at a time."""
    for number in range(max(map(len, runs.values()), default=0)):
        yield {partition: one[number] for partition, one in runs.items() if number < len(one)}

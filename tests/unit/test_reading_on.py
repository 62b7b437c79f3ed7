"""What a recovery reads of the monitor, and keeps of it: each record once a view, nothing that its own process knows."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from relay.message.record import LogPartition
from relay.monitor.entries import Begin
from tests.unit.memory_kafka import MemoryKafka, MemoryReader, Stored
from tests.unit.numbered_messages import LOG, MONITOR, batch, captured, out, start, view
from tests.unit.test_numbered_delivery import TopicProcess
from tests.unit.test_recovery_again import COUNT, OUT, Process, after_a_stray_commit, delivered, entries

BATCHES = 100


def begins_in_memory() -> int:
    return sum(isinstance(one, Begin) for one in gc.get_objects())


class Counting(MemoryKafka):
    """Notes what is read, and how many begins its readers have in memory at most."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = 40
        self.read: list[tuple[LogPartition, bool, int]] = []
        self.begins = 0
        self.others = begins_in_memory()
        """Those that modules of other tests keep."""

    def reader(self, *, committed: bool, meanwhile: Callable[[], object] = bool) -> MemoryReader:
        return CountingReader(self, committed, meanwhile)

    def stay(self) -> None:
        self.begins = max(self.begins, begins_in_memory() - self.others)

    def monitor_read(self, *, committed: bool) -> list[int]:
        """Take the offsets of the monitor that were read so since the last call."""
        found = [offset for place, how, offset in self.read if (place, how) == (MONITOR, committed)]
        self.read = [one for one in self.read if one[:2] != (MONITOR, committed)]
        return found


class CountingReader(MemoryReader):
    def read(self, ranges: Any) -> Iterator[list[Stored]]:
        assert isinstance(self._kafka, Counting)
        for records in super().read(ranges):
            self._kafka.read += [
                (LogPartition(one.topic(), one.partition()), self._committed, one.offset()) for one in records
            ]
            yield records


def deliver(process: TopicProcess, first: int, count: int) -> None:
    for n in range(first, first + count):
        process.delivery.submit(batch([captured(n + 1)], n + 1, first=n))


def recover(process: TopicProcess, kafka: MemoryKafka) -> None:
    process.delivery.recover([LOG], list(process.views.values()), kafka, start, {"log": b"id"})


def test_a_long_monitor_is_read_once_for_what_was_begun_and_once_for_what_counts() -> None:
    kafka = Counting()
    deliver(TopicProcess(kafka), 0, BATCHES)
    length = len(kafka.logs[MONITOR])
    kafka.read, kafka.begins = [], 0
    gc.collect()  # what tests before have left

    heir = TopicProcess(kafka)

    counted = kafka.monitor_read(committed=True)
    assert counted[:length] == list(range(length))
    assert len(counted) < length + 10, "the last transaction once more, for what its outputs must show"
    assert kafka.monitor_read(committed=False) == list(range(length))
    assert kafka.begins < 10, "the last of each instance is kept, not those of every transaction"
    assert heir.views[0].scan is None, "and nothing once it is over"


def test_a_process_does_not_read_again_what_it_has_delivered_itself() -> None:
    kafka = Counting()
    process = TopicProcess(kafka)
    deliver(process, 0, BATCHES)
    kafka.read = []

    recover(process, kafka)
    process.delivery.submit(batch([captured(n + 1, offset=BATCHES + n) for n in range(BATCHES)], 2 * BATCHES, first=BATCHES))

    assert len(kafka.monitor_read(committed=True)) < 10
    assert len(kafka.monitor_read(committed=False)) < 10
    assert len(out(kafka)) == BATCHES
    assert (process.delivery.counts.duplicates, process.delivery.counts.conflicts) == (BATCHES, 0)


def test_what_another_owner_delivered_meanwhile_is_read() -> None:
    kafka = Counting()
    process = TopicProcess(kafka)
    deliver(process, 0, 3)
    other = TopicProcess(kafka, worker="another")
    other.delivery.submit(batch([captured(n) for n in (4, 5)], 5, first=3))

    recover(process, kafka)
    process.delivery.submit(batch([captured(n, offset=3 + n) for n in range(2, 7)], 10, first=5))

    assert out(kafka) == [f"i1-0-{n}" for n in range(1, 7)]
    assert (process.delivery.counts.duplicates, process.delivery.counts.conflicts) == (4, 0)


def test_what_was_settled_is_not_settled_again_when_the_outputs_have_left() -> None:
    kafka = after_a_stray_commit()
    process = Process(kafka)
    process.deliver(process.recover()[LOG])
    settled, known = process.delivery.counts.settled, entries(kafka)
    shown = delivered(kafka)
    kafka.low[OUT] = COUNT

    process.recover()

    assert settled > 0
    assert process.delivery.counts.settled == settled
    assert entries(kafka) == known
    assert shown == list(range(COUNT))


def test_a_broken_off_look_for_begins_goes_on() -> None:
    kafka = Counting()
    deliver(TopicProcess(kafka), 0, BATCHES)
    process = Process(kafka)
    process.view = view()
    taken = 0

    def lose() -> None:
        nonlocal taken
        taken += 1
        if taken == 3:
            raise ConnectionError

    kafka.stay = lose  # type: ignore[method-assign]
    kafka.read = []
    with pytest.raises(ConnectionError):
        process.recover()
    seen = kafka.monitor_read(committed=False)
    assert 0 < len(seen) < len(kafka.logs[MONITOR])

    process.recover()

    assert kafka.monitor_read(committed=False) == list(range(seen[-1] + 1, len(kafka.logs[MONITOR]) - 2))


def test_what_an_earlier_begin_of_an_instance_named_is_in_doubt_as_well() -> None:
    kafka = Counting()
    process = TopicProcess(kafka)
    for reached in (8, 2):  # a redrive's transaction names less than the batch before it
        process.delivery.submit(replace(batch([captured(reached)], 0), reached={LOG: reached}))

    assert TopicProcess(kafka).delivery.in_doubt == {LOG: 8}


def test_a_transaction_that_is_missing_in_the_monitor_alarms_once() -> None:
    kafka = MemoryKafka()
    deliver(TopicProcess(kafka), 0, 3)
    units = {id(one.unit): one.unit for one in kafka.visible(MONITOR) if one.unit.committed}
    list(units.values())[1].committed = False  # what a stray EndTxn does behind its producer's back

    with capture_logs() as said:
        process = TopicProcess(kafka, worker="another")
        recover(process, kafka)
    missing = [one for one in said if one["event"] == "a transaction is missing"]

    assert [(one["log_level"], one["partition"]) for one in missing] == [("error", 0)]
    assert "1 is the last that this monitor partition shows" in missing[0]["reason"]

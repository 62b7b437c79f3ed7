"""What a recovery reads of outputs to learn what shows: what is asked for, a bounded part, and nothing of what is no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from relay.delivery.batch import Batch
from relay.delivery.evidence_reading import MonitorView, fold_committed, high_watermarks, scan_begins
from relay.delivery.topic import hanging, sightings, unshown
from relay.delivery.topic.route import NEWS_AFTER_S
from relay.delivery.topic.sealed import SealedProducer
from relay.delivery.topic.unshown import Outputs
from relay.message.errors import InDoubt, Unreachable
from relay.message.record import LogPartition
from relay.monitor.evidence import Evidence
from tests.memory_index import memory_index
from tests.unit.memory_kafka import MemoryReader, Stored
from tests.unit.test_recovery_again import (
    LOG,
    MONITOR,
    OUT,
    Killed,
    delivered,
    entries,
    killed_at,
    view,
    work,
)
from tests.unit.test_recovery_beside_others import StableReader
from tests.unit.test_unshown import LeftOut, Worker, stranger


class Counting(LeftOut):
    """Notes what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[LogPartition, tuple[int, int]]] = []

    def reader(self, *, committed: bool, meanwhile: Callable[[], object] = bool) -> MemoryReader:
        return CountingReader(self, committed, meanwhile)


class CountingReader(StableReader):
    _kafka: Counting

    def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[list[Stored]]:
        self._kafka.reads += [(place, span) for place, span in ranges.items() if span[0] < span[1]]
        yield from super().read(ranges)


class Calls(LeftOut):
    """Counts how often outputs are read."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def reader(self, *, committed: bool, meanwhile: Callable[[], object] = bool) -> MemoryReader:
        return CallsReader(self, committed, meanwhile)


class CallsReader(StableReader):
    _kafka: Calls

    def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[list[Stored]]:
        self._kafka.count += any(place.topic == OUT.topic for place in ranges)
        yield from super().read(ranges)


class Without(LeftOut):
    """Places of ``without`` were deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.without: set[LogPartition] = set()

    def reader(self, *, committed: bool, meanwhile: Callable[[], object] = bool) -> MemoryReader:
        return WithoutReader(self, committed, meanwhile)


class WithoutReader(StableReader):
    _kafka: Without

    def watermarks(self, partition: LogPartition) -> tuple[int, int]:
        if partition in self._kafka.without:
            raise Unreachable("unknown partition")
        return super().watermarks(partition)

    def partitions(self, topic: str) -> int:
        return len({place for place in self._kafka.logs.keys() - self._kafka.without if place.topic == topic})


@pytest.mark.parametrize("former", [LogPartition("former", 0), LogPartition("out", 1)], ids=["another topic", "fewer partitions"])
def test_an_output_that_is_no_more_keeps_nobody_from_going_on(former: LogPartition) -> None:
    kafka = Without()
    worker = kafka.transaction("w")
    worker.init()
    producer = SealedProducer(worker, "w", "monitor", {former: 0})
    messages = Worker(kafka).messages
    producer.run(replace(work(messages[:3], 0, producer, 3), outputs={former: messages[:3]}))
    kafka.logs[OUT] = []
    kafka.without = {former}
    heir = Worker(kafka)

    heir.recover()
    heir.submit(3, 6)

    assert delivered(kafka) == [3, 4, 5]


def left_out_at_a_former_output() -> tuple[Without, tuple[int, str]]:
    """A worker's last transaction hangs in the monitor, and the output is no more; also the position of before."""
    kafka, former = Without(), LogPartition("former", 0)
    worker = kafka.transaction("w")
    worker.init()
    producer = SealedProducer(worker, "w", "monitor", {former: 0})
    messages = Worker(kafka).messages
    producer.run(replace(work(messages[:3], 0, producer, 3), outputs={former: messages[:3]}))
    position = kafka.group[LOG]
    kafka.left_out = {MONITOR}
    producer.run(replace(work(messages[3:], 0, producer, 6), outputs={former: messages[3:]}))
    kafka.left_out = set()
    kafka.logs[OUT] = []
    kafka.without = {former}
    return kafka, position


def test_what_vanished_is_believed_where_its_output_is_no_more() -> None:
    kafka, _ = left_out_at_a_former_output()
    kafka.late_request()

    Worker(kafka).recover_for_good()

    assert delivered(kafka) == []
    assert set(entries(kafka)) == set(range(6))


def test_what_hangs_keeps_nobody_from_going_on_where_its_output_is_no_more() -> None:
    kafka, position = left_out_at_a_former_output()
    kafka.group[LOG] = position
    heir = Worker(kafka)

    heir.recover_for_good()
    heir.submit(3, 6)

    assert delivered(kafka) == [3, 4, 5], "no position names it"


def test_what_vanished_is_not_delivered_to_a_namesake_of_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sightings, "MONITOR_WAIT_S", 0.01)
    kafka = LeftOut()
    worker = Worker(kafka, output_id=b"a" * 16)
    worker.recover()
    worker.submit(0, 3)
    kafka.left_out = {MONITOR}
    with pytest.raises(InDoubt):
        worker.submit(3, 6)
    kafka.left_out = set()
    kafka.late_request()
    kafka.logs[OUT] = []

    Worker(kafka, output_id=b"b" * 16).recover_for_good()

    assert delivered(kafka) == []
    assert set(entries(kafka)) == set(range(6))


@pytest.mark.parametrize(("output_id", "again"), [(b"a" * 16, [0, 1, 2]), (b"b" * 16, [])], ids=["the same", "a namesake"])
def test_what_an_output_had_is_not_delivered_to_its_namesake(output_id: bytes, again: list[int]) -> None:
    """The first transaction begins at 0, where that of any namesake begins."""
    kafka = LeftOut()
    worker = Worker(kafka, output_id=b"a" * 16)
    worker.recover()
    worker.submit(0, 3)
    kafka.logs[OUT] = []

    Worker(kafka, output_id=output_id).recover()

    assert delivered(kafka) == again


def test_a_quiet_partition_of_a_busy_worker_is_said_to_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heir would read all that the others have written since, or, where that is too much, call it an error."""
    kafka = Counting()
    worker = Worker(kafka)
    other = LogPartition("log", 1)

    def recover(one: Worker) -> None:
        quiet = memory_index(1)
        views = [view(), MonitorView(1, quiet, Evidence(quiet.add_page, quiet.void), 0, 0)]
        one.delivery.recover([LOG, other], views, kafka, lambda stored, *_: {p: at or 0 for p, at in stored.items()}, {"log": b"id"})

    recover(worker)
    last = worker.messages[0]._replace(partition=1, digest=b"q" * 16)
    worker.delivery.submit(Batch(1, [last], {LOG: 0, other: 0}, {LOG: 0, other: 1}, {LOG: 0, other: 1}, b"member"))
    for n in range(6):
        worker.delivery.tend(n * NEWS_AFTER_S / 2)
        both = {LOG: n + 1, other: 1}
        worker.delivery.submit(Batch(1, [worker.messages[n]], {LOG: n, other: 1}, both, both, b"member"))
    monkeypatch.setattr(unshown, "READ_MAX", 3)
    kafka.reads.clear()

    with capture_logs() as lines:
        recover(Worker(kafka))

    assert [line["event"] for line in lines if line["log_level"] in ("warning", "error")] == []
    assert [span for place, span in kafka.reads if place == OUT] == [(6, 7)], "what the last batch has written"


def test_what_a_stranger_holds_open_has_no_output_read_for_former_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor has a begin of every instance of a horizon, and their outputs may be all that the topic holds."""
    monkeypatch.setattr(hanging, "TAIL", 0)
    kafka = Counting()
    for n in range(5):
        worker = Worker(kafka)
        worker.recover()
        worker.submit(n, n + 1)
    stranger(kafka)
    kafka.reads.clear()

    Worker(kafka).recover()

    first = kafka.logs[OUT][4].offset()
    assert all(span[0] >= first for place, span in kafka.reads if place == OUT), "what the last instance has written, and what hides it"
    assert delivered(kafka) == list(range(5))


def test_what_lies_behind_a_stranger_is_not_read_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Counting()
    worker = Worker(kafka, 10)
    worker.recover()
    stranger(kafka)
    for n in range(10):
        worker.submit(n, n + 1)
    monkeypatch.setattr(hanging, "READ_MAX", 2)
    monkeypatch.setattr(unshown, "READ_MAX", 2)
    kafka.reads.clear()

    Worker(kafka, 10).recover()

    assert max(end - first for place, (first, end) in kafka.reads if place == OUT) <= 2


@pytest.mark.parametrize("numbers", [1, 4])
def test_what_a_dead_transaction_shows_is_asked_for_once_in_all_its_partitions_together(numbers: int) -> None:
    kafka = Calls()
    transaction = kafka.transaction("w")
    transaction.init()
    outputs = [LogPartition("out", number) for number in range(numbers)]
    producer = SealedProducer(transaction, "w", "monitor", dict.fromkeys(outputs, 0))
    messages = Worker(kafka).messages
    claims = set(range(numbers))
    producer.run(replace(work(messages[:1], 0, producer, 1), outputs=dict.fromkeys(outputs, messages[:1]), claims=claims))
    with killed_at("sealed.flushed"), pytest.raises(Killed):
        producer.run(replace(work(messages[1:3], 0, producer, 3), outputs=dict.fromkeys(outputs, messages[1:3]), claims=claims))
    views = [replace(view(), partition=number) for number in range(numbers)]
    places = Outputs(outputs, frozenset(), b"")
    scanner, reader = kafka.reader(committed=False), kafka.reader(committed=True)
    transaction.init()
    highs = high_watermarks(scanner, "monitor", views)
    scan_begins(scanner, "monitor", views, highs)
    fold_committed(reader, "monitor", views, highs)

    found = unshown.vanished(scanner, reader, "monitor", views, highs, [], places)

    assert found == []
    assert kafka.count == 1

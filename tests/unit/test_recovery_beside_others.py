"""What other workers do while one recovers: found by the simulator, kept here without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import pytest

from relay.delivery.topic.hanging import ROUNDS_MAX
from relay.delivery.topic.recovery import UNDECIDED_MAX
from relay.delivery.topic.sealed import SealedProducer
from relay.message.envelope import OUT_DIGEST
from relay.message.errors import Fenced, Retriable, Stopped, Stuck, Unreachable
from relay.message.record import LogPartition
from relay.monitor.entries import Begin, encode
from tests.unit.memory_kafka import MemoryKafka, MemoryReader, MemoryTransaction, Stored, Unit
from tests.unit.test_recovery_again import (
    COUNT,
    LOG,
    MESSAGES,
    MONITOR,
    OUT,
    Killed,
    Process,
    after_a_stray_commit,
    delivered,
    killed_at,
    work,
)


class Isolated(MemoryKafka):
    """Answers with the last stable offset where a read_committed reader asks for the end, as brokers do."""

    def reader(self, *, committed: bool, meanwhile: Callable[[], object] = bool) -> MemoryReader:
        return StableReader(self, committed, meanwhile)


class StableReader(MemoryReader):
    def watermarks(self, partition: LogPartition) -> tuple[int, int]:
        low, high = super().watermarks(partition)
        return low, self._stable(partition, high)

    def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[list[Stored]]:
        for place, (_, end) in ranges.items():
            if self._stable(place, end) < end:
                raise Stuck(f"{place} has an open transaction")
        yield from super().read(ranges)

    def _stable(self, place: LogPartition, end: int) -> int:
        undecided = [one.offset() for one in self._kafka.logs.get(place, []) if one.unit.committed is None]
        return min(undecided, default=end) if self._committed else end


def test_anothers_open_transaction_hides_no_output_of_a_torn_one() -> None:
    kafka = Isolated()
    other = kafka.transaction("z")  # of another partition, so nobody fences it here
    other.init()
    other.begin()
    other.produce(OUT, None, b"of z")
    torn = after_a_stray_commit(kafka)

    worker = Process(torn)
    with pytest.raises(Stuck):
        recover_past_what_might_hang(worker)
    kafka.end("z", commit=False)
    worker.deliver(worker.recover()[LOG])

    assert delivered(torn) == list(range(COUNT))


def recover_past_what_might_hang(worker: Process) -> None:
    """Recover as often as it ends what might be its own in a place that another holds open."""
    for _ in range(3 * ROUNDS_MAX):
        with suppress(Retriable):
            worker.recover()


class LeftOut(Isolated):
    """A place never hears of the first ends of transactions of ``y``, and the one after them ends them all there."""

    def __init__(self, place: LogPartition, unheard: int) -> None:
        super().__init__()
        self.place = place
        self.unheard = unheard
        self.hanging = Unit()

    def end(self, transactional_id: str, *, commit: bool) -> None:
        unit = self.open.get(transactional_id)
        super().end(transactional_id, commit=commit)
        mine = [one for one in self.logs.get(self.place, []) if one.unit is unit]
        if transactional_id != "y" or not mine:
            return
        for one in mine:
            one.unit = self.hanging
        self.unheard -= 1
        if self.unheard < 0:
            self.hanging.committed = commit
            self.hanging = Unit()


def recover_for_good(worker: Process) -> int:
    """Recover until it does not look again; where it begins then."""
    while True:
        with suppress(Retriable):
            return worker.recover()[LOG]


def test_what_hangs_in_the_monitor_is_ended_as_often_as_it_takes() -> None:
    kafka = after_a_stray_commit(LeftOut(MONITOR, unheard=5 * ROUNDS_MAX))
    worker = Process(kafka)

    worker.deliver(recover_for_good(worker))

    assert delivered(kafka) == list(range(COUNT))


def after_an_abort(kafka: MemoryKafka) -> None:
    left = kafka.transaction("y")
    left.init()
    producer = SealedProducer(left, "y", "monitor", {OUT: 0})
    with killed_at("sealed.committing"), pytest.raises(Killed):
        producer.run(work(MESSAGES, COUNT, producer, COUNT))


def commit_again(kafka: MemoryKafka) -> None:
    again = kafka.transaction("y")
    again.init()
    again.produce(OUT, None, b"of another partition", [(OUT_DIGEST, b"ff")])
    again.commit()


def test_what_hangs_for_sure_is_ended_before_anything_is_delivered() -> None:
    kafka = LeftOut(OUT, unheard=5 * ROUNDS_MAX)
    after_an_abort(kafka)
    worker = Process(kafka)

    worker.deliver(recover_for_good(worker))
    commit_again(kafka)

    assert delivered(kafka) == [*range(COUNT), 255]


def test_what_was_aborted_is_not_taken_for_committed_since_others_have_delivered_it() -> None:
    kafka = LeftOut(OUT, unheard=1 + ROUNDS_MAX)
    stranger = kafka.transaction("z")
    stranger.init()
    stranger.begin()
    stranger.produce(OUT, None, b"of z")
    after_an_abort(kafka)
    worker = Process(kafka)
    recover_past_what_might_hang(worker)
    worker.deliver(worker.recover()[LOG])

    kafka.end("z", commit=False)
    recover_past_what_might_hang(Process(kafka))
    commit_again(kafka)

    assert delivered(kafka) == [*range(COUNT), 255]


class Overtaken(MemoryKafka):
    """Another worker stores its position after the first look of this one."""

    looks = 0

    def committed(self, partitions: Sequence[LogPartition]) -> dict[LogPartition, tuple[int, str]]:
        self.looks += 1
        return {} if self.looks == 1 else super().committed(partitions)


def stop(stored: object, ran_before: object, anchors: object) -> dict[LogPartition, int]:
    raise Stopped("the position is lost")


@pytest.mark.parametrize(("kafka", "error"), [(Overtaken(), Fenced), (MemoryKafka(), Stopped)])
def test_a_position_is_lost_only_if_it_still_is(kafka: MemoryKafka, error: type[Exception]) -> None:
    worker = Process(after_a_stray_commit(kafka))

    with pytest.raises(error):
        worker.delivery.recover([LOG], [worker.view], kafka, stop, {"log": b"id"})


class Crowded(MemoryKafka):
    """A group to which workers come, one after the other: each begins while somebody fences the one before."""

    coming = 60

    def transaction(self, transactional_id: str) -> MemoryTransaction:
        if self.coming:
            self.coming -= 1
            newcomer = MemoryTransaction(self, f"n{self.coming}")
            newcomer.init()
            instance = self.coming.to_bytes(16, "big")
            newcomer.produce(MONITOR, *encode(Begin("n", newcomer.transactional_id, instance, 1, -1, [], [])))
        return MemoryTransaction(self, transactional_id)


def test_a_worker_that_meets_many_newcomers_looks_again_and_needs_no_person() -> None:
    kafka = Crowded()
    after_a_stray_commit(kafka)
    worker = Process(kafka)

    with pytest.raises(Fenced):
        worker.recover()
    while kafka.coming:
        kafka.transaction("another fences")
    worker.deliver(worker.recover()[LOG])

    assert delivered(kafka) == list(range(COUNT))


class UnheardOffsets(MemoryKafka):
    """The group never hears of the first ends of transactions with offsets: those wait for the next end under their id that it hears of."""

    def __init__(self, unheard: int) -> None:
        super().__init__()
        self.unheard = unheard
        self.waiting: dict[str, dict[LogPartition, tuple[int, str]]] = {}

    def end(self, transactional_id: str, *, commit: bool) -> None:
        sent = dict(unit.offsets) if (unit := self.open.get(transactional_id)) is not None else {}
        if unit is not None:
            unit.offsets.clear()
        super().end(transactional_id, commit=commit)
        if sent:
            waiting = self.waiting.setdefault(transactional_id, {})
            waiting.update(sent)
            self.unheard -= 1
            if self.unheard < 0:
                self.group.update(waiting if commit else {})
                del self.waiting[transactional_id]

    def committed(self, partitions: Sequence[LogPartition]) -> dict[LogPartition, tuple[int, str]]:
        if any(place in waiting for waiting in self.waiting.values() for place in partitions):
            raise Unreachable("the committed offsets cannot be read: undecided")
        return super().committed(partitions)


def offsets_left(kafka: MemoryKafka, by: str, place: LogPartition) -> None:
    left = kafka.transaction(by)
    left.init()
    left.begin()
    left.send_offsets({place: 9}, {}, b"")
    left.abort()


def test_a_touch_of_offsets_that_was_not_heard_of_either_is_repeated_before_anything_is_committed() -> None:
    kafka = UnheardOffsets(unheard=2)  # the abort, and the touch that is to end what hangs
    offsets_left(kafka, "w", of_another := LogPartition("log", 1))
    worker = Process(kafka)

    with pytest.raises(Unreachable):
        worker.recover()
    worker.recover()

    assert of_another not in kafka.group
    assert not kafka.waiting


def test_a_touch_of_somebody_whom_nobody_knows_keeps_no_worker_out_for_ever() -> None:
    kafka = UnheardOffsets(unheard=1)
    offsets_left(kafka, "never seen here", MONITOR)
    worker = Process(kafka)

    for _ in range(UNDECIDED_MAX - 1):
        with pytest.raises(Unreachable):
            worker.recover()
    worker.recover()

    assert MONITOR in kafka.waiting["never seen here"]

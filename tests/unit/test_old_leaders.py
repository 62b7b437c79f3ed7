"""A broker that led an output and is cut off from its peers tells an old end: what others have written since is not written again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

import pytest

from relay.delivery.topic.old_leaders import check_shown
from relay.message.envelope import OUT_INSTANCE
from relay.message.errors import Retriable
from relay.message.record import LogPartition
from tests.unit.memory_kafka import MemoryKafka, MemoryReader
from tests.unit.test_recovery_again import OUT, delivered
from tests.unit.test_unshown import DEAD, Worker


class CutOff(MemoryKafka):
    """Whoever reads ``cut`` may meet its former leader, which knows of its first ``old`` records."""

    cut = OUT
    old: int | None = None

    def reader(self, *, committed: bool, meanwhile: Callable[[], object] = bool) -> MemoryReader:
        return OldReader(self, committed, meanwhile)


class OldReader(MemoryReader):
    _kafka: CutOff

    def watermarks(self, partition: LogPartition) -> tuple[int, int]:
        low, high = super().watermarks(partition)
        return low, self._told(partition, high)

    def ends(self, places: Collection[LogPartition], wait_s: float | None = None) -> dict[LogPartition, int]:
        return {place: self._told(place, end) for place, end in super().ends(places, wait_s).items()}

    def _told(self, place: LogPartition, end: int) -> int:
        old = self._kafka.old
        return end if old is None or place != self._kafka.cut else min(end, old)


def letters(kafka: MemoryKafka) -> list[bytes | None]:
    return [one.key() for one in kafka.visible(DEAD)]


@pytest.mark.parametrize("known", [0, 2, 5])
def test_outputs_that_an_old_leader_does_not_know_are_not_written_again(known: int) -> None:
    kafka = CutOff()
    former = Worker(kafka)
    former.recover()
    former.submit(0, 6)
    was = delivered(kafka)
    kafka.old = known

    taker = Worker(kafka)
    for _ in range(3):
        with pytest.raises(Retriable, match="cut off"):
            taker.recover()
        assert delivered(kafka) == was
    kafka.old = None
    taker.recover()

    assert delivered(kafka) == was
    assert len(was) == 6


def test_dead_letters_that_an_old_leader_does_not_know_are_not_written_again() -> None:
    kafka = CutOff()
    kafka.cut = DEAD
    former = Worker(kafka, bad=(1, 4))
    former.recover()
    former.submit(0, 6)
    was = letters(kafka)
    kafka.old = 1

    taker = Worker(kafka, bad=(1, 4))
    with pytest.raises(Retriable, match="cut off"):
        taker.recover()
    kafka.old = None
    taker.recover()

    assert letters(kafka) == was
    assert len(was) == 2


@pytest.mark.parametrize(("written_by", "is_told"), [(b"former", True), (b"other", False), (None, False)])
def test_only_what_the_former_instances_wrote_there_tells_of_an_old_leader(written_by: bytes | None, is_told: bool) -> None:
    """Outputs are shared: strangers, and workers of other partitions, write there at any time."""
    kafka = MemoryKafka()
    writer = kafka.transaction("w")
    writer.init()
    for name in (b"former", written_by, b"own"):
        writer.produce(OUT, b"k", b"v", [(OUT_INSTANCE, name.hex().encode())] if name else [])
    ends, behind = {OUT: 1, DEAD: 0}, {OUT: 3, DEAD: 0}

    told = contextlib.nullcontext() if not is_told else pytest.raises(Retriable, match="out goes on behind")
    with told:
        check_shown(kafka, ends, behind.__getitem__, {b"former"}, bool)

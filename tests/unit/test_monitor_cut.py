"""A monitor that ends below what a living process knows of it: Kafka went back to an older state, or a leader lags behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from relay.delivery.evidence_reading import high_watermarks
from relay.delivery.topic.route import TopicDelivery
from relay.message.errors import Retriable
from relay.message.record import LogPartition
from relay.monitor.checkpoint import CheckpointStore
from relay.monitor.index import Budget
from relay.monitor.ranges import RangeLimits
from relay.run.views import CUT_LOOKS, SAVE_PERIOD_S, ViewKeeper
from relay.run.worker import RECOVERY_BACKOFF_S
from tests.unit.memory_kafka import LETTERS, MemoryKafka, MemoryReader
from tests.unit.numbered_messages import LOG, MONITOR, batch, captured, out, start, view

DAY = 86_400.0


class Worker:
    """A process of a topic route with its state directory, over as many recoveries as it takes."""

    def __init__(self, kafka: MemoryKafka, directory: Path, budget: int) -> None:
        store = CheckpointStore(
            directory, relay="shop", route="main", topic_id=b"id", budget=Budget(budget),
            watermarks=lambda _: (0, len(kafka.logs.get(MONITOR, []))),
        )  # fmt: skip
        self.kafka = kafka
        self.keeper = ViewKeeper(store, lambda: 0.0)
        self.delivery = TopicDelivery(
            kafka, route="main", group_id="g", transactional_id="w", monitor_topic="monitor", topic="out", topic_partitions=1,
            letters=LETTERS, stop_on_dead=False, limits=RangeLimits(), horizon_s=7 * DAY,
        )  # fmt: skip
        self.delivery.tend(0.0)

    def recover(self) -> dict[LogPartition, int]:
        return self.delivery.recover([LOG], self.keeper.take({0}), self.kafka, start, {"log": b"id"})


def at(kafka: MemoryKafka) -> tuple[dict[LogPartition, int], dict[LogPartition, tuple[int, str]]]:
    """Remember where everything ends, as a copy of the brokers' disks does."""
    return {place: len(log) for place, log in kafka.logs.items()}, dict(kafka.group)


def put_back(kafka: MemoryKafka, copy: tuple[dict[LogPartition, int], dict[LogPartition, tuple[int, str]]]) -> None:
    ends, positions = copy
    for place, log in kafka.logs.items():
        del log[ends.get(place, 0) :]
    kafka.group = dict(positions)


@pytest.mark.parametrize("budget", [10**6, 1], ids=["in memory", "on disk"])
def test_what_kafka_has_forgotten_is_delivered_again_by_whoever_lived_through_it(tmp_path: Path, budget: int) -> None:
    kafka = MemoryKafka()
    worker = Worker(kafka, tmp_path, budget)
    worker.recover()
    worker.delivery.submit(batch([captured(n) for n in (1, 2)], 2))
    copy = at(kafka)
    worker.delivery.submit(batch([captured(n) for n in (3, 4, 5)], 5, first=2))
    worker.keeper.tend(SAVE_PERIOD_S)
    put_back(kafka, copy)

    with capture_logs() as said:
        for _ in range(CUT_LOOKS):
            with pytest.raises(Retriable, match="an older state"):
                worker.recover()
        assert worker.recover() == {LOG: 2}
    worker.delivery.submit(batch([captured(n) for n in (3, 4, 5)], 5, first=2))

    assert out(kafka) == [f"i1-0-{n}" for n in range(1, 6)]
    assert [one["partition"] for one in said if one["event"].startswith("the monitor was cut")] == [0]
    worker.keeper.close()
    again = Worker(kafka, tmp_path, budget)
    assert again.recover() == {LOG: 5}
    again.delivery.submit(batch([captured(n, offset=10 + n) for n in range(1, 6)], 16, first=5))
    assert (len(out(kafka)), again.delivery.counts.duplicates) == (5, 5)


def test_many_partitions_that_were_cut_at_once_are_looked_at_together() -> None:
    class Ends:
        """One of three partitions is as long as it was."""

        def watermarks(self, place: LogPartition) -> tuple[int, int]:
            return 0, 9 if place.partition == 1 else 5

    views = [view(number) for number in range(3)]
    for one in views:
        one.read_to = 9
    reader: Any = Ends()

    for _ in range(CUT_LOOKS):
        with pytest.raises(Retriable, match="partition 0 of the monitor ends at 5"):
            high_watermarks(reader, "monitor", views)

    assert [one.cut for one in views] == [CUT_LOOKS, 0, CUT_LOOKS]


class CutOff(MemoryKafka):
    """Who reads may meet a broker that led the monitor once, and has heard nothing of its peers since: it knows ``old`` records."""

    old: int | None = None

    def reader(self, *, committed: bool, meanwhile: Callable[[], object] = bool) -> MemoryReader:
        return OldReader(self, committed, meanwhile)


class OldReader(MemoryReader):
    def watermarks(self, partition: LogPartition) -> tuple[int, int]:
        low, high = super().watermarks(partition)
        assert isinstance(self._kafka, CutOff)
        return low, high if self._kafka.old is None or partition != MONITOR else min(high, self._kafka.old)


def test_whoever_takes_over_by_the_word_of_a_leader_that_is_cut_off_looks_again(tmp_path: Path) -> None:
    kafka = CutOff()
    former = Worker(kafka, tmp_path / "v", 10**6)
    former.recover()
    kafka.old = len(kafka.logs[MONITOR])
    above = [captured(n) for n in (2, 3)]  # the first one waits: these lie above the position
    former.delivery.submit(batch(above, 0))

    taker = Worker(kafka, tmp_path / "w", 10**6)
    with pytest.raises(Retriable, match="cut off"):
        taker.recover()
    shown = len(out(kafka))
    kafka.old = None
    assert taker.recover() == {LOG: 0}
    taker.delivery.submit(batch([captured(n) for n in (1, 2, 3)], 3))

    assert (shown, sorted(out(kafka))) == (2, ["i1-0-1", "i1-0-2", "i1-0-3"])


def test_a_monitor_is_believed_to_be_cut_only_after_seconds() -> None:
    pauses = [RECOVERY_BACKOFF_S[min(failures, len(RECOVERY_BACKOFF_S) - 1)] for failures in range(CUT_LOOKS)]
    assert sum(pauses) > 9.0, "Kafka lets a broker fall silent for so long before others lead"


def test_a_leader_that_lags_behind_for_a_moment_costs_no_index(tmp_path: Path) -> None:
    kafka = MemoryKafka()
    worker = Worker(kafka, tmp_path, 10**6)
    worker.recover()
    worker.delivery.submit(batch([captured(n) for n in (1, 2)], 2))
    whole = list(kafka.logs[MONITOR])

    for _ in range(2 * CUT_LOOKS):
        del kafka.logs[MONITOR][-1:]
        with pytest.raises(Retriable):
            worker.recover()
        kafka.logs[MONITOR][:] = whole
        assert worker.recover() == {LOG: 2}
        whole = list(kafka.logs[MONITOR])
        index = worker.keeper.views()[0].index
    assert all(index.find([captured(n).digest for n in (1, 2)]))

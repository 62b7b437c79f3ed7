"""An output that is compacted: what a torn transaction has left there cannot be told from what compaction has taken."""

from __future__ import annotations

import pytest

from relay.message.errors import Stuck
from relay.world import clock
from tests.unit.memory_kafka import MemoryKafka, Stored, Unit
from tests.unit.test_recovery_again import COUNT, LOG, OUT, SHOWN, Process, after_a_stray_commit, delivered

CAPTURED_MS = 1000
"""When all records of `MemoryKafka` were written."""
HOUR_MS = 3_600_000
KEPT = {"out": float(HOUR_MS)}


def torn() -> MemoryKafka:
    """A stray COMMIT has shown a prefix of a transaction's outputs, all under one key; the log has its messages."""
    kafka = after_a_stray_commit()
    kafka.logs[LOG] = [Stored(LOG, n, b"k", b"v", [], Unit(committed=True)) for n in range(COUNT)]
    return kafka


def compacted(kafka: MemoryKafka) -> MemoryKafka:
    """Of each key the newest record stays."""
    for one in kafka.visible(OUT)[:-1]:
        one.unit = Unit(committed=False)
    return kafka


def test_what_compaction_may_have_taken_is_not_delivered_behind_what_it_made_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_ms", lambda: CAPTURED_MS + HOUR_MS)
    kafka = compacted(torn())

    with pytest.raises(Stuck, match="out is compacted") as stuck:
        Process(kafka, kept=KEPT).recover()

    assert stuck.value.by_person
    assert delivered(kafka) == [SHOWN - 1]


def test_a_clock_that_is_behind_does_not_believe_in_what_may_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers' own time is at hand, and they compact by theirs."""
    monkeypatch.setattr(clock, "wall_ms", lambda: CAPTURED_MS)
    kafka = compacted(torn())

    with pytest.raises(Stuck, match="out is compacted"):
        Process(kafka, kept=KEPT, now_ms=lambda: float(CAPTURED_MS + HOUR_MS)).recover()


def test_what_the_log_has_lost_is_as_old_as_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_ms", lambda: CAPTURED_MS)
    kafka = torn()
    kafka.low[LOG] = COUNT

    with pytest.raises(Stuck, match="out is compacted"):
        Process(kafka, kept=KEPT).recover()


@pytest.mark.parametrize("kept", [KEPT, {"another": 0.0}, {}])
def test_what_is_younger_than_anything_that_compaction_takes_is_settled_by_the_output(
    kept: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "wall_ms", lambda: CAPTURED_MS + HOUR_MS // 3)
    worker = Process(torn(), kept=kept)

    worker.deliver(worker.recover()[LOG])

    assert delivered(worker.kafka) == list(range(COUNT))

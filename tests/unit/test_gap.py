"""A process that stood still past the monitor's retention knows less than it thinks: what it says of the rest must not count."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from relay.message.errors import Fenced
from relay.resources.schema import statements
from tests.unit.memory_kafka import MemoryKafka
from tests.unit.numbered_messages import DAY, LOG, MONITOR, batch, captured, out, start
from tests.unit.test_numbered_delivery import TopicProcess, keep_only_ranges
from tests.unit.test_numbered_table_delivery import TableProcess, ledger
from tests.unit.test_recovery_again import COUNT, OUT, Process, after_a_stray_commit, delivered


def recover(process: TopicProcess, kafka: MemoryKafka) -> None:
    process.delivery.recover([LOG], list(process.views.values()), kafka, start, {"log": b"id"})


def test_a_repeat_of_what_others_delivered_meanwhile_is_no_conflict() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    process.delivery.submit(batch([captured(n) for n in (1, 2)], 2))
    other = TopicProcess(kafka, worker="another")
    other.delivery.submit(batch([captured(n) for n in (3, 4, 5)], 5, first=2))
    other = TopicProcess(kafka, worker="another")
    other.delivery.tend(2 * DAY)
    keep_only_ranges(kafka)

    recover(process, kafka)
    process.delivery.submit(batch([captured(n, offset=70 + n) for n in (1, 4, 6)], 80, first=5))

    assert out(kafka) == [f"i1-0-{n}" for n in (1, 2, 3, 4, 5, 6)]
    assert out(kafka, "dead") == []
    assert (process.delivery.counts.duplicates, process.delivery.counts.conflicts) == (2, 0)


def test_without_a_gap_a_process_still_tells_a_conflict_whose_entry_has_left_the_monitor() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    process.delivery.submit(batch([captured(n) for n in (1, 2)], 2))
    recover(process, kafka)
    process.delivery.submit(batch([captured(3)], 3, first=2))
    kafka.low[MONITOR] = process.views[0].scan_from

    recover(process, kafka)
    process.delivery.submit(batch([captured(2, name="other", offset=3)], 4, first=3))

    assert out(kafka, "dead") == ["other"], "it is not dropped: this process knows every message of these numbers"


def test_what_was_open_before_the_gap_is_not_settled_behind_it() -> None:
    kafka = after_a_stray_commit()
    process = Process(kafka)
    kafka.batch, kafka.stays = 1, 0
    kafka.lost_at = stays_before_settling()
    with pytest.raises(Fenced):
        process.recover()
    assert process.view.evidence.unsealed(), "it has read of a transaction that is to be settled"
    other = TopicProcess(kafka, worker="another")
    other.delivery.submit(batch([], COUNT))
    kafka.low[MONITOR] = len(kafka.logs[MONITOR])
    kafka.low[OUT] = len(kafka.logs[OUT])
    shown = len(kafka.logs[OUT])

    process.recover()

    assert process.delivery.counts.settled == 0
    assert len(kafka.logs[OUT]) == shown
    assert delivered(kafka) == []


def stays_before_settling() -> int:
    """At which poll a recovery has read the monitor, and begins to read the outputs."""
    kafka = after_a_stray_commit()
    kafka.batch = 1
    process = Process(kafka)
    while True:
        kafka.stays, kafka.lost_at = 0, (kafka.lost_at or 0) + 1
        process = Process(kafka)
        with pytest.raises(Fenced):
            process.recover()
        if process.view.read_to == len(kafka.logs[MONITOR]):
            return kafka.lost_at


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        for statement in (*statements("sqlite"), "create table ledger (id text)"):
            connection.execute(statement)
    return path


def test_on_a_table_route_neither(database: Path) -> None:
    kafka = MemoryKafka()
    process = TableProcess(kafka, database)
    process.submit([captured(1)], 1)
    other = TableProcess(kafka, database)
    other.submit([captured(n) for n in (2, 3)], 3, first=1)
    for now in (0.0, DAY, 2 * DAY):
        other.delivery.tend(now)
    other.submit([captured(4)], 4, first=3)
    other.delivery.tend(2 * DAY + 20)
    kafka.low[MONITOR] = len(kafka.logs[MONITOR]) - 1

    process.delivery.recover([LOG], [process.view], kafka, start, {"log": b"i" * 16})
    assert not any(process.view.index.find([captured(2).digest]))
    process.submit([captured(2, offset=70), captured(5)], 80, first=4)

    assert ledger(database) == [f"i1-0-{n}" for n in (1, 2, 3, 4, 5)]
    assert out(kafka, "dead") == []
    assert (process.delivery.counts.duplicates, process.delivery.counts.conflicts) == (1, 0)

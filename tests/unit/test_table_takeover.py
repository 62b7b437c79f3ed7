"""What a take-over of a table route stores, and that dead letters, which follow the inbox's word, outlive whoever dies first."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from relay.delivery.table.sqlite.cursor import SqliteCursor
from relay.message.errors import MessageRejected, Unreachable
from relay.message.record import LogPartition
from relay.transfer.cursor import Claim
from relay.world import crash
from tests.unit.memory_kafka import MemoryKafka
from tests.unit.numbered_messages import DAY, LOG, MONITOR, captured, start
from tests.unit.test_numbered_table_delivery import MemoryAppends, TableProcess, database

__all__ = ["database"]

DEAD = LogPartition("dead", 0)
REFUSED = captured(1)._replace(fault=MessageRejected("decode", "json", "no"))


class Killed(BaseException):
    """The process is gone, and what it had not flushed with it."""


class LateLetters(MemoryAppends):
    """The dead-letter topic is slower than the monitor: what goes there has arrived only once somebody waits for it."""

    def __init__(self, kafka: MemoryKafka) -> None:
        super().__init__(kafka)
        self._under_way: list[tuple[Any, ...]] = []

    def append(self, bundle: object, partition: LogPartition, key: bytes, value: bytes | None, headers: Any = None) -> None:
        if partition == DEAD:
            self._under_way.append((bundle, partition, key, value, headers))
        else:
            super().append(bundle, partition, key, value, headers)

    def flush(self, timeout_s: float) -> None:
        for one in self._under_way:
            super().append(*one)
        self._under_way = []


def killed_before_it_flushes(kafka: MemoryKafka, path: Path, keep_inbox_s: float | None, *, in_recovery: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:

        def kill() -> None:
            raise Killed

        patch.setattr(crash, "_name", "recovery.entering" if in_recovery else "table.entered")
        patch.setattr(crash, "_count_down", kill)
        patch.setattr("tests.unit.test_numbered_table_delivery.MemoryAppends", LateLetters)
        with pytest.raises(Killed):
            TableProcess(kafka, path, keep_inbox_s=keep_inbox_s).submit([REFUSED], 2)


@pytest.mark.parametrize("keep_inbox_s", [None, 7 * DAY], ids=["partition", "route"])
@pytest.mark.parametrize("in_recovery", [False, True])
def test_a_dead_letter_outlives_whoever_dies_before_it_is_acknowledged(
    database: Path, keep_inbox_s: float | None, *, in_recovery: bool
) -> None:
    kafka = MemoryKafka()
    killed_before_it_flushes(kafka, database, keep_inbox_s, in_recovery=False)
    if in_recovery:
        for place in (MONITOR, DEAD):
            kafka.logs.pop(place, None)  # the victim's own appends did not arrive at all
        killed_before_it_flushes(kafka, database, keep_inbox_s, in_recovery=True)

    heir = TableProcess(kafka, database, keep_inbox_s=keep_inbox_s)

    assert {one.key() for one in kafka.visible(DEAD)} == {REFUSED.digest.hex().encode()}
    (standing,) = heir.view.index.standings([REFUSED.digest])
    assert standing is not None
    assert standing.is_dead


def test_a_take_over_stores_where_it_begins_before_anything_is_read(database: Path) -> None:
    """Retention may take what is unread before the first batch: a partition without a position would begin behind that."""
    TableProcess(MemoryKafka(), database)
    with sqlite3.connect(database) as connection:
        assert connection.execute("select position from relay_position").fetchall() == [(0,)]


def test_what_a_predecessor_enters_until_its_epoch_is_raised_is_known(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may trim its inbox, too: read before the claim, the monitor would not tell a repeat of that, and nothing else would."""
    kafka = MemoryKafka()
    former = TableProcess(kafka, database)
    claim = SqliteCursor.claim

    def claiming(cursor: SqliteCursor, partitions: Mapping[LogPartition, bytes]) -> dict[LogPartition, Claim]:
        monkeypatch.setattr(SqliteCursor, "claim", claim)
        former.submit([captured(1)], 1)
        for now in (0.0, 20.0):
            former.delivery.tend(now)
        with sqlite3.connect(database) as connection:
            assert connection.execute("select count(*) from relay_inbox").fetchall() == [(0,)]
        return claim(cursor, partitions)

    monkeypatch.setattr(SqliteCursor, "claim", claiming)
    heir = TableProcess(kafka, database)
    assert heir.view.index.standings([captured(1).digest]) != [None]


def test_an_entry_whose_arrival_a_take_over_could_not_await_is_written_by_the_next(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same process goes on with the same index: what that takes for entered is not written again, and its inbox row is trimmed."""
    kafka = MemoryKafka()
    process = TableProcess(kafka, database)

    def away(*_: Any) -> None:
        raise Unreachable("the brokers are away")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryAppends, "append", lambda *_, **__: None)
        process.submit([captured(1)], 1)
        patch.setattr(MemoryAppends, "flush", away)
        with pytest.raises(Unreachable):
            process.delivery.recover([LOG], [process.view], kafka, start, {"log": b"i" * 16})
    assert not kafka.visible(MONITOR)

    process.delivery.recover([LOG], [process.view], kafka, start, {"log": b"i" * 16})
    assert kafka.visible(MONITOR)

"""A recovery polls its group while it reads: how often, what the polls bring, and what is left when they end it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

import relay.kafka.group
from relay.kafka.group import GroupConsumer
from relay.message.errors import Fenced
from relay.message.record import LogPartition
from relay.monitor.index import DedupIndex
from relay.resources.schema import statements
from relay.run.views import ViewKeeper
from relay.world import clock
from tests.memory_index import memory_index
from tests.unit.memory_kafka import MemoryKafka, MemoryReader, Stored
from tests.unit.numbered_messages import LOG, MONITOR, captured, out, start
from tests.unit.test_numbered_table_delivery import TableProcess, ledger
from tests.unit.test_recovery_again import (
    COUNT,
    Process,
    after_a_stray_commit,
    delivered,
    entries,
    killed_then_clean,
    positions,
)
from tests.unit.test_worker_events import Event


class Client:
    """A consumer of the client library that only has news."""

    is_lost = False

    def __init__(self, _settings: Any, **_: Any) -> None:
        self.polls: list[tuple[int, float]] = []
        self.news: list[Any] = []

    def subscribe(self, *_: Any, **__: Any) -> None:
        pass

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        self.polls.append((count, timeout_s))
        found, self.news = self.news, []
        return found


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> GroupConsumer:
    monkeypatch.setattr(relay.kafka.group, "Consumer", Client)
    return GroupConsumer({}, ["orders"], lambda: None)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])

    def passing(seconds: float) -> None:
        now[0] += seconds

    return passing


def client(member: GroupConsumer) -> Any:
    return member._consumer


def test_it_polls_once_a_second_and_waits_for_nothing(member: GroupConsumer, passes: Callable[[float], None]) -> None:
    for _ in range(100):
        member.stay()
        passes(0.1)

    assert client(member).polls == [(1, 0.0)] * 10


def test_that_the_group_refuses_it_is_kept_and_nothing_else(
    member: GroupConsumer, passes: Callable[[float], None]
) -> None:
    """An end or an error of a partition was of an assignment that is over: it would move positions, or stop the route."""
    denial = Event(KafkaError.GROUP_AUTHORIZATION_FAILED)
    for code in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
        client(member).news = [Event(code)]
        member.stay()
        passes(1.0)
    client(member).news = [denial]
    member.stay()
    client(member).news = ["record"]

    assert member.consume(10, 0.5) == [denial, "record"]
    assert member.consume(10, 0.5) == []


class Counting(MemoryKafka):
    """Hands out one record at a time, and notes which are read."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = 1
        self.read: list[tuple[LogPartition, bool, int]] = []

    def reader(self, *, committed: bool, meanwhile: Callable[[], object] = bool) -> MemoryReader:
        return CountingReader(self, committed, meanwhile)


class CountingReader(MemoryReader):
    def read(self, ranges: Any) -> Iterator[list[Stored]]:
        assert isinstance(self._kafka, Counting)
        for records in super().read(ranges):
            self._kafka.read += [
                (LogPartition(one.topic(), one.partition()), self._committed, one.offset()) for one in records
            ]
            yield records


def stays_of_a_clean_run() -> int:
    kafka = Counting()
    after_a_stray_commit(kafka)
    Process(kafka).recover()
    return kafka.stays


STAYS = stays_of_a_clean_run()


def test_a_topic_recovery_polls_between_all_that_it_reads() -> None:
    kafka = Counting()
    after_a_stray_commit(kafka)

    Process(kafka).recover()

    assert kafka.stays >= len(kafka.read) > 10


@pytest.mark.parametrize("lost_at", range(1, STAYS + 1))
def test_a_recovery_that_lost_its_partitions_anywhere_ends_as_one_clean_run(lost_at: int) -> None:
    clean = after_a_stray_commit()
    killed_then_clean(clean, [])
    kafka = Counting()
    after_a_stray_commit(kafka)
    kafka.lost_at = lost_at
    process = Process(kafka)

    with pytest.raises(Fenced):
        process.recover()
    process.deliver(process.recover()[LOG])

    assert delivered(kafka) == delivered(clean) == list(range(COUNT))
    assert entries(kafka) == entries(clean)
    assert positions(kafka) == positions(clean)


def test_what_was_folded_before_is_not_read_again() -> None:
    kafka = Counting()
    after_a_stray_commit(kafka)
    process = Process(kafka)
    shown = [one.offset() for one in kafka.visible(MONITOR)]
    half = shown[len(shown) // 2]
    kafka.lost_at = next(
        n for n in range(1, STAYS) if read_until_lost(n).count(True) == shown.index(half) + 1
    )
    with pytest.raises(Fenced):
        process.recover()

    kafka.read.clear()
    process.recover()

    again = [offset for place, committed, offset in kafka.read if place == MONITOR and committed]
    assert again[0] > half


def read_until_lost(lost_at: int) -> list[bool]:
    """Of what a recovery reads of the monitor before it is broken off there, which are read_committed."""
    kafka = Counting()
    after_a_stray_commit(kafka)
    kafka.lost_at = lost_at
    with pytest.raises(Fenced):
        Process(kafka).recover()
    return [committed for place, committed, _ in kafka.read if place == MONITOR]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        for statement in (*statements("sqlite"), "create table ledger (id text)"):
            connection.execute(statement)
    return path


def recover(process: TableProcess, kafka: MemoryKafka) -> None:
    process.delivery.recover([LOG], [process.view], kafka, start, {"log": b"i" * 16})


def test_a_table_recovery_polls_between_all_that_it_reads(database: Path) -> None:
    kafka = Counting()
    process = TableProcess(kafka, database)
    messages = [captured(1), captured(2), captured(2, name="other", offset=2)]
    log = kafka.transaction("publisher")
    log.init()
    for message in messages:
        log.produce(LOG, message.key, message.value)
    log.commit()
    process.submit(messages, 3)
    before, kafka.read = kafka.stays, []

    TableProcess(kafka, database)

    read = [place for place, _, _ in kafka.read]
    assert (read.count(MONITOR), read.count(LOG)) == (1, 1), "a page of entries, and the dead letter's message"
    assert kafka.stays - before == len(read) + 1 + 1, "and once for the index, once for the page of the inbox"
    assert out(kafka, "dead") == ["other", "other"]


def test_a_table_recovery_that_lost_its_partitions_anywhere_repeats_and_misses_nothing(database: Path) -> None:
    kafka = Counting()
    process = TableProcess(kafka, database)
    process.submit([captured(n) for n in (1, 2, 3)], 3)
    first = kafka.stays
    heir = TableProcess(kafka, database)
    stays = kafka.stays - first
    assert stays >= 3

    for lost_at in range(1, stays + 1):
        kafka.lost_at = kafka.stays + lost_at
        with pytest.raises(Fenced):
            recover(heir, kafka)
        recover(heir, kafka)
        heir.submit([captured(n, offset=70 + n) for n in (1, 2, 3)], 80, first=3)

    assert ledger(database) == ["i1-0-1", "i1-0-2", "i1-0-3"]
    assert heir.delivery.counts.duplicates == 3 * stays


class Kept:
    """Indexes that take long to open and to save."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self, partition: int) -> tuple[DedupIndex, int]:
        self.calls.append(f"open {partition}")
        return memory_index(partition), 0

    def save(self, index: DedupIndex, _monitor_offset: int) -> None:
        self.calls.append(f"save {index.partition}")

    def close(self, index: DedupIndex) -> None:
        pass


def test_indexes_are_opened_and_let_go_one_at_a_time_and_those_there_stay() -> None:
    kept = Kept()
    keeper = ViewKeeper(kept, lambda: 0.0)
    keeper.take({0, 1}, lambda: kept.calls.append("poll"))

    def lose() -> None:
        raise Fenced("another assignment")

    with pytest.raises(Fenced):
        keeper.take({1, 2, 3}, lose)
    keeper.take({1, 2}, lambda: kept.calls.append("poll"))

    assert kept.calls == ["open 0", "poll", "open 1", "poll", "save 0", "open 2", "poll"]
    assert [view.partition for view in keeper.views()] == [1, 2]

"""Numbers through a table route: closed with the rows or not at all, and what they decide afterwards."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.delivery.table.route import TableDelivery
from relay.delivery.table.sqlite.cursor import SqliteCursor
from relay.delivery.table.verdicts import TablePlan
from relay.message.errors import Unreachable
from relay.message.record import LogMessage, LogPartition
from relay.monitor.ranges import MARKS_MAX, RangeLimits, Standing, decode_value
from relay.resources.schema import statements
from relay.transfer.cursor import TableCursor, Verdict
from tests.unit.memory_kafka import LETTERS, MemoryKafka
from tests.unit.numbered_messages import DAY, KEY, LOG, MONITOR, batch, captured, out, start, view


class MemoryAppends:
    """Appends that are acknowledged at once."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._tx = kafka.transaction("appends")
        self._tokens: list[object] = []

    def bundle(self, token: object) -> object:
        return token

    def append(self, bundle: object, partition: LogPartition, key: bytes, value: bytes | None, headers: Any = None) -> None:
        self._tx.init()
        self._tx.begin()
        self._tx.produce(partition, key, value, headers)
        self._tx.commit()

    def close(self, bundle: object) -> None:
        self._tokens.append(bundle)

    def acknowledged(self) -> list[object]:
        taken, self._tokens = self._tokens, []
        return taken

    def flush(self, timeout_s: float) -> None:
        pass


class MemorySending:
    """Sends when it is asked for the answers, on the same thread."""

    resent = 0

    def __init__(self, cursor: TableCursor) -> None:
        self._cursor = cursor
        self._waiting: list[tuple[Any, Any]] = []

    def send(self, positions: Any, prepared: Any) -> None:
        self._waiting.append((positions, prepared))

    def answers(self) -> Iterable[list[Verdict]]:
        taken, self._waiting = self._waiting, []
        return [self._cursor.deliver(*one) for one in taken]

    def abandon(self) -> None:
        self._waiting = []

    def tend(self, now: float) -> None:
        pass

    def trim(self, partition: LogPartition, below: int) -> None:
        while self._cursor.trim(partition, below):
            pass

    def forget_trims(self) -> None:
        pass


class TableProcess:
    """A worker's process on a table route in an SQLite file."""

    def __init__(
        self, kafka: MemoryKafka, path: Path, limits: RangeLimits | None = None, keep_inbox_s: float | None = None
    ) -> None:
        plan = TablePlan(
            relay="shop", route="main", resource="shop", table="ledger", mode="insert", columns={"id": "json:/id"}
        )
        cursor = SqliteCursor(f"sqlite:///{path}", plan)
        self.view = view()
        self.delivery = TableDelivery(
            kafka, cursor, MemorySending(cursor), lambda: MemoryAppends(kafka),  # type: ignore[arg-type]
            route="main", worker_id="w", monitor_topic="monitor", letters=LETTERS, keep_inbox_s=keep_inbox_s, limits=limits, horizon_s=7 * DAY,
        )  # fmt: skip
        self.delivery.recover([LOG], [self.view], kafka, start, {"log": b"i" * 16})

    def submit(self, *args: Any, **over: Any) -> None:
        self.delivery.submit(batch(*args, **over))
        self.delivery.settled()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        for statement in (*statements("sqlite"), "create table ledger (id text)"):
            connection.execute(statement)
    return path


def ledger(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        return [row[0] for row in connection.execute("select id from ledger order by rowid")]


def test_a_table_route_recognises_an_old_repeat_by_its_number_although_inbox_and_monitor_forgot_it(
    database: Path,
) -> None:
    kafka = MemoryKafka()
    first = TableProcess(kafka, database)
    first.submit([captured(n) for n in (1, 2, 3)], 3)
    for now in (0.0, DAY, 2 * DAY):
        first.delivery.tend(now)  # trims, and marks twice
    first.submit([captured(4)], 4, first=3)
    first.delivery.tend(2 * DAY + 20)
    kafka.low[MONITOR] = len(kafka.logs[MONITOR]) - 1

    late = TableProcess(kafka, database)
    assert not any(late.view.index.find([captured(n).digest for n in (1, 2, 3)]))
    late.submit([captured(2, offset=70), captured(5)], 80, first=4)

    assert ledger(database) == [f"i1-0-{n}" for n in (1, 2, 3, 4, 5)]
    assert (late.delivery.counts.duplicates, late.delivery.counts.conflicts) == (1, 0)


def test_a_table_route_puts_another_id_under_a_closed_number_aside(database: Path) -> None:
    kafka = MemoryKafka()
    process = TableProcess(kafka, database)
    process.submit([captured(1)], 1)
    process.submit([captured(1, name="other", offset=1), captured(2, offset=2)], 3, first=1)

    assert ledger(database) == ["i1-0-1", "i1-0-2"]
    assert out(kafka, "dead") == ["other"]
    assert process.delivery.counts.conflicts == 1


def test_a_table_route_delivers_it_once_it_is_redriven(database: Path) -> None:
    process = TableProcess(MemoryKafka(), database)
    put_aside = captured(1, name="other", offset=1)
    process.submit([captured(1)], 1)
    process.submit([put_aside], 2, first=1)

    process.delivery.submit(replace(batch([put_aside], 2, first=2, numbered=False), replays={put_aside.digest: 1}))
    process.delivery.settled()
    process.submit([put_aside, captured(2, offset=2)], 3, first=2)

    assert ledger(database) == ["i1-0-1", "other", "i1-0-2"]
    assert (process.delivery.counts.duplicates, process.delivery.counts.conflicts) == (1, 1)


def test_a_conflict_with_a_batch_under_way_is_one_and_a_repeat_of_it_is_none(database: Path) -> None:
    process = TableProcess(MemoryKafka(), database)
    process.delivery.submit(batch([captured(1)], 1))
    process.delivery.submit(batch([captured(1, offset=1), captured(1, name="other", offset=2)], 3, first=1))
    process.delivery.settled()

    assert ledger(database) == ["i1-0-1"]
    assert (process.delivery.counts.duplicates, process.delivery.counts.conflicts) == (1, 1)


def test_a_batch_that_never_committed_closes_nothing(database: Path) -> None:
    kafka = MemoryKafka()
    process = TableProcess(kafka, database)
    process.delivery.submit(batch([captured(1)], 1))
    process.delivery.recover([LOG], [process.view], kafka, start, {"log": b"i" * 16})

    assert process.view.index.ranges.standing(KEY, 1) is Standing.OPEN
    process.submit([captured(1)], 1)
    assert ledger(database) == ["i1-0-1"]
    assert process.delivery.counts.conflicts == 0


def test_at_the_bound_a_dead_incarnation_makes_room_once_its_messages_left_the_log(database: Path) -> None:
    kafka = MemoryKafka()
    process = TableProcess(kafka, database, RangeLimits(incarnations=2))
    process.submit([captured(1, incarnation=b"old")], 1)
    process.submit([captured(1, incarnation=b"new", offset=5)], 6, first=1)
    process.delivery.tend(0.0)
    process.submit([captured(1, incarnation=b"newer", offset=6)], 7, first=6)
    assert incarnations(database) == [b"new", b"old"], "all of them may still come again from the log"

    kafka.low[LOG] = 5
    process.delivery.tend(1000.0)
    process.submit([captured(2, incarnation=b"newer", offset=7)], 8, first=7)

    assert incarnations(database) == [b"new", b"newer"]
    assert len(ledger(database)) == 4


def incarnations(path: Path) -> list[bytes]:
    with sqlite3.connect(path) as connection:
        return sorted(decode_value(row[0]).incarnation for row in connection.execute("select state from relay_range"))


def test_a_restart_of_a_table_route_marks_what_has_been_entered_and_keeps_it_with_the_rows(database: Path) -> None:
    kafka = MemoryKafka()
    TableProcess(kafka, database).submit([captured(n, incarnation=b"quiet") for n in (1, 2)], 2)
    TableProcess(kafka, database).submit([captured(1, offset=2)], 3, first=2)  # its first batch keeps the marks
    with sqlite3.connect(database) as connection:
        connection.execute("delete from relay_inbox")  # trimmed
    kafka.low[MONITOR] = len(kafka.logs[MONITOR]) - 1

    late = TableProcess(kafka, database)
    assert not any(late.view.index.find([captured(2, incarnation=b"quiet").digest]))
    late.submit([captured(2, incarnation=b"quiet", offset=70)], 80, first=3)

    assert (late.delivery.counts.duplicates, late.delivery.counts.conflicts) == (1, 0)
    assert len(ledger(database)) == 3


class LosingAppends(MemoryAppends):
    """Appends while the brokers are away: nothing arrives, and the reports say so."""

    def append(self, *_: Any, **__: Any) -> None:
        pass

    def acknowledged(self) -> list[object]:
        raise Unreachable("a record could not be appended")


def test_an_entry_that_could_not_be_appended_is_written_at_the_recovery(database: Path) -> None:
    kafka = MemoryKafka()
    process = TableProcess(kafka, database)
    process.delivery._entering._appends = LosingAppends(kafka)
    process.submit([plain(1)], 1)
    with pytest.raises(Unreachable):
        process.delivery.tend(1.0)

    process.delivery.recover([LOG], [process.view], kafka, start, {"log": b"i" * 16})
    process.submit([plain(2)], 2, first=1)
    for now in (20.0, 40.0):
        process.delivery.tend(now)
        process.submit([], 2, first=2)  # the inbox is trimmed below what the monitor has

    heir = TableProcess(kafka, database)
    heir.submit([plain(1, offset=70)], 80, first=2)
    assert ledger(database) == ["i1-0-1", "i1-0-2"]
    assert heir.delivery.counts.duplicates == 1


def plain(number: int, offset: int | None = None) -> LogMessage:
    """A message of a stranger: no number of ours tells that it is a repeat."""
    return captured(number, offset=offset)._replace(capture=None)


def test_what_a_topic_brought_that_has_left_the_route_is_recognised_when_another_one_brings_it(database: Path) -> None:
    kafka, moved = MemoryKafka(), LogPartition("moved", 0)
    ids = {"log": b"i" * 16, "moved": b"m" * 16}
    process = TableProcess(kafka, database)
    process.delivery.recover([LOG, moved], [process.view], kafka, start, ids)
    process.submit([plain(1)._replace(topic="moved")], 1, place=moved)
    for now in (20.0, 40.0):
        process.delivery.tend(now)
        process.submit([], 1, first=1, place=moved)  # the inbox is trimmed below what the monitor has

    heir = TableProcess(kafka, database)  # which reads "log" alone
    heir.submit([plain(1)], 1)

    assert ledger(database) == ["i1-0-1"]
    assert heir.delivery.counts.duplicates == 1


def test_a_repeat_of_what_the_monitor_does_not_have_yet_is_no_conflict_of_its_number(database: Path) -> None:
    process = TableProcess(MemoryKafka(), database)
    process.submit([captured(1)], 1)
    process.submit([captured(1, offset=1)], 2, first=1)

    assert (process.delivery.counts.duplicates, process.delivery.counts.conflicts) == (1, 0)
    process.delivery.tend(1.0)
    assert all(process.view.index.find([captured(1).digest]))
    assert process.delivery._entering.is_idle


def test_an_inbox_kept_for_the_horizon_is_trimmed_behind_it_whatever_recovers_meanwhile(database: Path) -> None:
    kafka = MemoryKafka()
    process = TableProcess(kafka, database, keep_inbox_s=7 * DAY)
    most = 0
    for hour in range(30 * 24):
        process.submit([captured(hour + 1)], hour + 1, first=hour)
        process.delivery.tend(hour * 3600.0)
        most = max(most, len(process.delivery._trimmable))
        if hour % 72 == 71:  # a rebalance every third day
            process.delivery.recover([LOG], [process.view], kafka, start, {"log": b"i" * 16})
    process.submit([], 30 * 24, first=30 * 24)

    with sqlite3.connect(database) as connection:
        ((oldest, count),) = connection.execute("select min(log_offset), count(*) from relay_inbox").fetchall()
    assert oldest <= 23 * 24, "none goes before its time"
    assert count <= 7.2 * 24, "and none stays much longer"
    assert most <= 110, "what is remembered of it does not grow with the deliveries"


def test_a_dead_letter_is_repeated_by_one_recovery_also_where_nothing_comes_any_more(database: Path) -> None:
    kafka = MemoryKafka()
    TableProcess(kafka, database).submit([captured(1)._replace(value=b"no json")], 1)  # and it ends before it trims
    for _ in range(3):
        process = TableProcess(kafka, database)
        process.delivery.tend(0.0)

    with sqlite3.connect(database) as connection:
        assert connection.execute("select count(*) from relay_inbox").fetchone() == (0,)
    letters = [dict(record.headers())["__relay.errors.code"] for record in kafka.visible(LogPartition("dead", 0))]
    assert letters == [b"not_json", b"payload_lost"]


def test_how_often_a_batch_was_sent_again_is_told_before_it_is_answered(database: Path) -> None:
    process = TableProcess(MemoryKafka(), database)
    process.delivery._sending.resent = 3

    process.delivery.tend(1.0)

    assert process.delivery.counts.resent == 3


@pytest.mark.slow
def test_an_inbox_kept_for_the_horizon_is_trimmed_by_processes_that_live_shorter(database: Path) -> None:
    kafka = MemoryKafka()
    ends: list[int] = []
    for life in range(30):
        process = TableProcess(kafka, database, keep_inbox_s=7 * DAY)
        for hour in range(48 * life, 48 * (life + 1)):
            process.submit([captured(hour + 1)], hour + 1, first=hour)
            process.delivery.tend((hour - 48 * life) * 3600.0)
            ends.append(len(kafka.logs[MONITOR]))
            kafka.low[MONITOR] = ends[hour - 7 * 24] if hour >= 7 * 24 else 0
            with sqlite3.connect(database) as connection:
                offsets = [row[0] for row in connection.execute("select log_offset from relay_inbox order by 1")]
            assert offsets == [*range(offsets[0], hour + 1)]
            assert offsets[0] <= max(0, hour - 7 * 24), "none goes before its time"
            assert len(offsets) <= (7 + 2 * 2) * 24 + 1, "and none stays for longer than it takes to take over twice"


def test_rows_go_once_all_that_was_entered_when_their_position_was_noted_has_left_the_monitor(database: Path) -> None:
    kafka = MemoryKafka()
    TableProcess(kafka, database, keep_inbox_s=7 * DAY).submit([captured(n) for n in (1, 2, 3)], 3)
    second = TableProcess(kafka, database, keep_inbox_s=7 * DAY)
    noted = len(kafka.logs[MONITOR])
    second.submit([captured(n) for n in (4, 5)], 5, first=3)

    def kept() -> list[int]:
        TableProcess(kafka, database, keep_inbox_s=7 * DAY)
        with sqlite3.connect(database) as connection:
            return [row[0] for row in connection.execute("select log_offset from relay_inbox order by 1")]

    kafka.low[MONITOR] = noted - 1
    assert kept() == [0, 1, 2, 3, 4]
    kafka.low[MONITOR] = noted
    assert kept() == [3, 4]


def inbox_marks(database: Path) -> list[tuple[int, int]]:
    with sqlite3.connect(database) as connection:
        states = [decode_value(row[0]) for row in connection.execute("select state from relay_range")]
    (entry,) = [one for one in states if not one.incarnation]
    assert (entry.source, entry.closed, entry.closing, entry.claimed) == (b"", [], [], []), "no number of anybody's"
    return [(entry.marks[i], entry.marks[i + 2]) for i in range(0, len(entry.marks), 3)]


def test_what_is_noted_of_an_inbox_is_bounded_and_no_publisher(database: Path) -> None:
    kafka = MemoryKafka()
    for life in range(40):
        process = TableProcess(kafka, database, keep_inbox_s=7 * DAY)
        assert all(key.incarnation for key in process.view.index.ranges._by_key)
        process.submit([captured(life + 1)], life + 1, first=life)
        process.delivery.tend(1.0)

    marks = inbox_marks(database)
    assert len(marks) == MARKS_MAX
    assert marks == sorted(marks)
    assert marks[-1][1] == 38

    # Nobody delivers: nothing new is said, and nothing is written.
    TableProcess(kafka, database, keep_inbox_s=7 * DAY)
    before = inbox_marks(database)
    TableProcess(kafka, database, keep_inbox_s=7 * DAY)
    assert inbox_marks(database) == before
    # All of it has left the monitor: one note is enough.
    kafka.low[MONITOR] = len(kafka.logs[MONITOR])
    TableProcess(kafka, database, keep_inbox_s=7 * DAY)
    assert inbox_marks(database) == before[-1:]


def test_a_position_that_a_person_puts_back_makes_its_rows_young_again(database: Path) -> None:
    kafka = MemoryKafka()
    TableProcess(kafka, database, keep_inbox_s=7 * DAY).submit([captured(n) for n in (1, 2, 3)], 3)
    TableProcess(kafka, database, keep_inbox_s=7 * DAY).delivery.tend(1.0)
    assert [last for _, last in inbox_marks(database)] == [2]
    with sqlite3.connect(database) as connection:
        connection.execute("update relay_position set position = 1")

    TableProcess(kafka, database, keep_inbox_s=7 * DAY)

    assert [last for _, last in inbox_marks(database)] == [0]


def test_an_inbox_that_is_trimmed_at_once_has_nothing_noted(database: Path) -> None:
    kafka = MemoryKafka()
    for life in range(2):
        process = TableProcess(kafka, database)
        process.submit([captured(life + 1)], life + 1, first=life)
    with sqlite3.connect(database) as connection:
        assert all(decode_value(row[0]).incarnation for row in connection.execute("select state from relay_range"))

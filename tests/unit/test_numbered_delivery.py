"""Numbers through both kinds of route: closed with the delivery or not at all, and what they decide afterwards."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.delivery.batch import Batch
from relay.delivery.evidence_reading import MonitorView
from relay.delivery.table import TablePlan
from relay.delivery.table_route import TableDelivery
from relay.delivery.table_sqlite import SqliteCursor
from relay.delivery.topic import IDLE_S, TopicDelivery
from relay.log.holds import Aborted
from relay.message.envelope import CAPTURE, ID, INCARNATION, RESOURCE, SEQUENCE, SOURCE
from relay.message.errors import Fenced, Stopped, Unreachable
from relay.message.identity import cloudevents, content_digest
from relay.message.numbers import Number, NumberRun, number_of, numbers_of
from relay.message.record import LogMessage, LogPartition
from relay.monitor.entries import decode
from relay.monitor.evidence import Evidence
from relay.monitor.index import memory_index
from relay.monitor.ranges import RangeEntry, RangeKey, RangeLimits, Standing, decode_value
from relay.resources.schema import statements
from relay.transfer.cursor import TableCursor, Verdict
from tests.unit.memory_kafka import MemoryKafka

LOG, MONITOR = LogPartition("log", 0), LogPartition("monitor", 0)
OTHER = LogPartition("log", 1)
DAY = 86400.0


def captured(
    sequence: int, *, offset: int | None = None, name: str = "", incarnation: bytes = b"i1", partition: int = 0,
    capture: bytes | None = b"c" * 16,
) -> LogMessage:  # fmt: skip
    identifier = (name or f"{incarnation.decode()}-{partition}-{sequence}").encode()
    headers = [
        ("ce_specversion", b"1.0"), (SOURCE, b"/shop"), (RESOURCE, b"shop/u"), (INCARNATION, incarnation),
        (CAPTURE, b"63" * 16), (ID, identifier), (SEQUENCE, b"%d" % sequence),
    ]  # fmt: skip
    digest = cloudevents(dict(headers), b"log", b"")
    assert digest is not None
    value = orjson.dumps({"id": identifier.decode()})
    at = sequence - 1 if offset is None else offset
    return LogMessage("log", partition, at, None, value, headers, digest, content_digest(None, value), b"/shop", capture, 0)


def view(number: int = 0) -> MonitorView:
    index = memory_index(number)
    fold = Evidence(index.add_page, index.void, index.ranges.restore, index.ranges.restore_closing)
    return MonitorView(number, index, fold, 0, 0)


def batch(
    messages: list[LogMessage], upto: int, first: int = 0, numbered: bool = True, aborted: Aborted | None = None,
    place: LogPartition = LOG,
) -> Batch:  # fmt: skip
    ended = {place: aborted} if aborted is not None else {}
    return Batch(
        1, messages, {place: first}, {place: upto}, {place: upto}, b"member", numbered=numbered, aborted=ended
    )


def start(stored: Any, _: Any) -> dict[LogPartition, int]:
    return {p: at or 0 for p, at in stored.items()}


class TopicProcess:
    """A worker's process on a topic route; it starts with an empty index and reads what the monitor still holds."""

    def __init__(self, kafka: MemoryKafka, *, stop: bool = False, places: tuple[LogPartition, ...] = (LOG,)) -> None:
        self.views = {p.partition: view(p.partition) for p in places}
        self.delivery = TopicDelivery(
            kafka, route="main", group_id="g", transactional_id="w", monitor_topic="monitor", topic="out",
            topic_partitions=1, deadletter_topic="dead", deadletter_partitions=1, stop_on_dead=stop,
            limits=RangeLimits(), horizon_s=7 * DAY,
        )  # fmt: skip
        self.delivery.tend(0.0)
        self.delivery.recover(list(places), list(self.views.values()), kafka, start, {"log": b"id"})

    @property
    def ranges(self) -> Any:
        return self.views[0].index.ranges


def out(kafka: MemoryKafka, topic: str = "out") -> list[str]:
    return [orjson.loads(one.value() or b"")["id"] for one in kafka.visible(LogPartition(topic, 0))]


def keep_only_ranges(kafka: MemoryKafka) -> None:
    """Let the horizon pass: the ranges were written again, everything before them has left the monitor."""
    ranges = [one for one in kafka.visible(MONITOR) if (one.key() or b"")[:1] == b"r"]
    kafka.low[MONITOR] = ranges[-1].offset()


KEY = RangeKey("log", b"/shop", b"i1")


def test_a_repeat_older_than_the_digest_horizon_is_recognised_by_its_number() -> None:
    kafka = MemoryKafka()
    first = TopicProcess(kafka)
    first.delivery.submit(batch([captured(n) for n in (1, 2, 3)], 3))
    again = TopicProcess(kafka)
    again.delivery.tend(2 * DAY)  # due: the ranges are written again, with how far the monitor reached
    keep_only_ranges(kafka)

    late = TopicProcess(kafka)
    assert not any(late.views[0].index.find([captured(n).digest for n in (1, 2, 3)])), "the digests are gone"
    late.delivery.submit(batch([captured(2, offset=70), captured(4)], 80, first=3))

    assert out(kafka) == ["i1-0-1", "i1-0-2", "i1-0-3", "i1-0-4"]
    assert (late.delivery.counts.duplicates, late.delivery.counts.conflicts) == (1, 0)


def test_another_id_under_a_closed_number_is_put_aside_for_a_person() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    process.delivery.submit(batch([captured(n) for n in (1, 2, 3)], 3))

    process.delivery.submit(batch([captured(2, name="other", offset=3), captured(4, offset=4)], 5, first=3))

    assert out(kafka) == ["i1-0-1", "i1-0-2", "i1-0-3", "i1-0-4"]
    assert out(kafka, "dead") == ["other"]
    counts = process.delivery.counts
    assert (counts.conflicts, counts.duplicates, counts.causes) == (1, 0, {"number_conflict": 1})


def test_two_ids_under_one_number_in_one_batch_are_a_conflict_too() -> None:
    kafka = MemoryKafka()
    TopicProcess(kafka).delivery.submit(batch([captured(1), captured(1, name="other", offset=1)], 2))

    assert (out(kafka), out(kafka, "dead")) == (["i1-0-1"], ["other"])


def test_a_conflict_stops_a_route_that_wants_no_dead_letters() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka, stop=True)
    process.delivery.submit(batch([captured(1)], 1))

    with pytest.raises(Stopped, match="number_conflict"):
        process.delivery.submit(batch([captured(1, name="other", offset=1)], 2, first=1))


def test_inside_the_horizon_the_digest_decides_a_repeat() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    process.delivery.submit(batch([captured(1)], 1))
    process.delivery.submit(batch([captured(1, offset=1)], 2, first=1))

    assert out(kafka) == ["i1-0-1"]
    assert (process.delivery.counts.duplicates, process.delivery.counts.conflicts) == (1, 0)


def test_a_restarted_publisher_counts_anew() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    process.delivery.submit(batch([captured(n) for n in (1, 2)], 2))
    process.delivery.submit(batch([captured(n, incarnation=b"i2", offset=1 + n) for n in (1, 2)], 4, first=2))

    process.delivery.submit(batch([captured(3, offset=4)], 5, first=4))
    again = [captured(1, offset=5), captured(4, incarnation=b"i2", offset=6), captured(3, incarnation=b"i2", offset=7)]
    process.delivery.submit(batch(again, 8, first=5))

    assert out(kafka) == ["i1-0-1", "i1-0-2", "i2-0-1", "i2-0-2", "i1-0-3", "i2-0-4", "i2-0-3"]
    assert (process.delivery.counts.duplicates, process.delivery.counts.conflicts) == (1, 0)


def test_each_partition_has_numbers_of_its_own() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka, places=(LOG, OTHER))
    process.delivery.submit(batch([captured(n) for n in (1, 2)], 2))
    process.delivery.submit(batch([captured(n, partition=1) for n in (1, 2)], 2, place=OTHER))

    assert len(out(kafka)) == 4
    assert [len(one.index.ranges) for one in process.views.values()] == [1, 1]
    assert process.delivery.counts.conflicts == 0


def test_threads_that_deliver_out_of_order_leave_one_run() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    for numbers in ([3, 1], [5], [2, 4]):
        process.delivery.submit(batch([captured(n) for n in numbers], 5))

    assert len(out(kafka)) == 5
    assert process.delivery.counts.conflicts == 0
    assert closed_runs(process) == [1, 5]


def closed_runs(process: TopicProcess) -> list[int]:
    (entry,) = process.ranges.entries({KEY: None}, worker="", instance=bytes(16), n=0)
    return list(entry.closed)


def test_aborted_numbers_close_the_gap_that_their_messages_left() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    aborted = Aborted([(Number(b"/shop", b"i1", 2), 1)], [NumberRun(b"/shop", b"i1", 3, 4)])
    process.delivery.submit(batch([captured(1), captured(5)], 5, aborted=aborted))

    assert closed_runs(process) == [1, 5]
    assert closed_runs(TopicProcess(kafka)) == [1, 5], "and it is written"


def test_plain_producers_sequences_are_data() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    for offset, name in enumerate(("a", "b")):
        process.delivery.submit(batch([captured(1, name=name, offset=offset, capture=None)], offset + 1, first=offset))

    assert out(kafka) == ["a", "b"]
    assert len(process.ranges) == 0
    assert not any((one.key() or b"")[:1] == b"r" for one in kafka.visible(MONITOR))


def test_a_torn_transactions_numbers_are_not_closed() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    process.delivery.submit(batch([captured(1)], 1))

    def torn(*_: Any) -> None:
        kafka.open["w"].offsets.clear()
        kafka.end("w", commit=True)  # a stray COMMIT: the outputs and entries show, the offsets do not move
        raise Fenced("ended from outside")

    producer = process.delivery._producer
    assert producer is not None
    producer._tx.send_offsets = torn  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        process.delivery.submit(batch([captured(2), captured(3)], 3, first=1))
    last = kafka.logs[LogPartition("out", 0)].pop()  # the prefix ended before the last output
    assert orjson.loads(last.value() or b"")["id"] == "i1-0-3"

    again = TopicProcess(kafka)
    assert closed_runs(again) == [1, 1]
    again.delivery.submit(batch([captured(2), captured(3)], 3, first=1))
    assert out(kafka) == ["i1-0-1", "i1-0-2", "i1-0-3"]
    assert (again.delivery.counts.conflicts, again.delivery.counts.duplicates) == (0, 1)
    assert closed_runs(again) == [1, 3]


def test_a_refused_transaction_closes_nothing() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    kafka.epochs["w"] += 1

    with pytest.raises(Fenced):
        process.delivery.submit(batch([captured(1)], 1))

    assert len(process.ranges) == 0
    assert len(TopicProcess(kafka).ranges) == 0


def test_an_idle_route_writes_its_ranges_again_before_they_age_out() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    process.delivery.submit(batch([captured(1)], 1))
    written = len(kafka.logs[MONITOR])

    process.delivery.tend(DAY)
    assert len(kafka.logs[MONITOR]) == written
    process.delivery.tend(2 * DAY + IDLE_S)

    keys = [(one.key() or b"")[:1] for one in kafka.visible(MONITOR)[written:]]
    assert keys == [b"b", b"r", b"s"]
    assert kafka.group[LOG][0] == 1, "the position stays"
    process.delivery.tend(2 * DAY + 2 * IDLE_S)
    assert len(kafka.logs[MONITOR]) == written + 3


def test_messages_without_numbers_cost_no_look() -> None:
    kafka = MemoryKafka()
    TopicProcess(kafka).delivery.submit(batch([captured(1)], 1, numbered=False))

    assert not any(isinstance(decode(one.key(), one.value()), RangeEntry) for one in kafka.visible(MONITOR))


@pytest.mark.parametrize(
    ("header", "value"),
    [(SEQUENCE, b""), (SEQUENCE, b"-1"), (SEQUENCE, b"1_0"), (SEQUENCE, b"9" * 19), (INCARNATION, b""),
     (INCARNATION, b"x" * 129), (SOURCE, b"x" * 1025)],
)  # fmt: skip
def test_what_is_no_number_is_none(header: str, value: bytes) -> None:
    good = captured(7)
    assert number_of(good) == (b"/shop", b"i1", 7)
    assert number_of(good._replace(headers=[*good.headers[::-1], (header, value)])) is None
    assert number_of(good._replace(capture=None)) is None


OWN = [("ce_specversion", b"1.0"), (SOURCE, b"/shop"), ("ce_relayresource", b"r"), (INCARNATION, b"i1"), (SEQUENCE, b"7")]


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("value", [b"", b"-1", b"x" * 2000, b"12", b"1 ", b"9" * 19])
def test_in_bulk_numbers_are_what_they_are_one_by_one(place: int, value: bytes) -> None:
    headers = list(OWN)
    headers[place] = (headers[place][0], value)
    good = captured(7)
    messages = [good._replace(headers=h) for h in (OWN, headers, headers[:-1], list(reversed(headers)), [*headers, OWN[0]])]

    expected: dict[tuple[str, int, bytes, bytes], list[int]] = {}
    for number in map(number_of, [*messages, good]):
        if number is not None:
            expected.setdefault(("log", 0, number.source, number.incarnation), []).append(number.sequence)

    assert expected["log", 0, b"/shop", b"i1"][0] == 7
    assert numbers_of([*messages, good._replace(capture=None), good]) == expected


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
            route="main", target="ledger", group_id="g", worker_id="w", monitor_topic="monitor",
            deadletter_topic="dead", deadletter_partitions=1, keep_inbox_s=keep_inbox_s, limits=limits, horizon_s=7 * DAY,
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
    process.delivery._appends = LosingAppends(kafka)
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


def test_a_repeat_of_what_the_monitor_does_not_have_yet_is_no_conflict_of_its_number(database: Path) -> None:
    process = TableProcess(MemoryKafka(), database)
    process.submit([captured(1)], 1)
    process.submit([captured(1, offset=1)], 2, first=1)

    assert (process.delivery.counts.duplicates, process.delivery.counts.conflicts) == (1, 0)
    process.delivery.tend(1.0)
    assert all(process.view.index.find([captured(1).digest]))
    assert not process.delivery._entering


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

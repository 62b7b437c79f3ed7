"""The reader's checks find what is planted, and nothing in a clean run."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Self

import pytest

from relay.audit.checker import Findings
from relay.audit.verify import RouteReport
from relay.chaos import watching
from relay.chaos.result import audit_complaints, compare, reader_complaints
from relay.chaos.watching import Anomaly, Checks, Seen, Watched
from relay.message.errors import Stuck
from relay.message.record import LogPartition

LOG, OUT = LogPartition("log", 0), LogPartition("out", 0)


def logged(offset: int, name: str, source: str = "a", partition: LogPartition = LOG) -> Seen:
    return Seen(partition, offset, (source.encode(), name.encode()), False)


def shown(offset: int, name: str, source: str = "a", *, aborted: bool = False) -> Seen:
    return Seen(OUT, offset, (source.encode(), name.encode()), aborted)


def judge(*records: Seen, logs: tuple[str, ...] = ("log",)) -> tuple[Watched, list[Anomaly]]:
    told: list[Anomaly] = []
    checks = Checks(logs, told.append)
    for record in records:
        checks.take(record)
    return checks.conclude(), told


def test_a_clean_run_is_clean_however_log_and_output_interleave() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        left = [[logged(n, f"{n}") for n in range(8)], [shown(n, f"{n}") for n in range(8)]]
        mixed = []
        while any(left):
            mixed.append(chance.choice([queue for queue in left if queue]).pop(0))

        watched, told = judge(*mixed)

        assert reader_complaints(watched) == []
        assert (watched.logged, watched.shown, told) == (8, 8, [])


def test_a_planted_duplicate_is_found() -> None:
    watched, told = judge(logged(0, "1"), shown(0, "1"), shown(3, "1"))

    assert watched.duplicates == 1
    assert [(one.kind, "a/1" in one.detail) for one in told] == [("duplicates", True)]


def test_a_record_that_is_read_again_is_no_duplicate() -> None:
    assert reader_complaints(judge(logged(0, "1"), shown(0, "1"), shown(0, "1"))[0]) == []


@pytest.mark.parametrize("late", [False, True])
def test_a_planted_inversion_is_found_whether_the_log_is_read_before_or_after(late: bool) -> None:
    log, out = [logged(0, "1"), logged(1, "2")], [shown(0, "2"), shown(1, "1")]

    watched, _ = judge(*(out + log if late else log + out))

    assert (watched.inversions, watched.phantoms, watched.duplicates) == (1, 0, 0)


def test_other_sources_and_other_log_partitions_have_an_order_of_their_own() -> None:
    other = LogPartition("log", 1)
    records = [logged(0, "1"), logged(1, "2", "b"), logged(0, "3", partition=other)]

    assert reader_complaints(judge(*records, shown(0, "2", "b"), shown(1, "3"), shown(2, "1"))[0]) == []


def test_a_repeat_in_the_log_counts_by_its_first_record() -> None:
    records = [logged(0, "1"), logged(1, "2"), logged(2, "1")]

    assert reader_complaints(judge(*records, shown(0, "1"), shown(1, "2"))[0]) == []
    assert judge(*records, shown(0, "2"), shown(1, "1"))[0].inversions == 1


def test_a_planted_aborted_message_is_found() -> None:
    watched, told = judge(logged(0, "1"), shown(0, "1", aborted=True))

    assert watched.aborted == 1
    assert told[0].kind == "aborted"


def test_what_is_nowhere_in_the_log_is_a_phantom() -> None:
    assert judge(logged(0, "1"), shown(0, "1"), shown(1, "2"))[0].phantoms == 1


def test_without_a_log_only_duplicates_and_aborted_messages_are_judged() -> None:
    watched, _ = judge(shown(0, "2"), shown(1, "1"), shown(2, "1"), logs=())

    assert (watched.duplicates, watched.inversions, watched.phantoms) == (1, 0, 0)


def test_what_the_reader_saw_becomes_a_complaint() -> None:
    watched, _ = judge(logged(0, "1"), shown(0, "1"), shown(1, "1"))

    assert "1 duplicates" in reader_complaints(watched)[0]
    assert reader_complaints(Watched()) == []


def test_dead_letters_and_a_failed_audit_become_complaints() -> None:
    def report(**counts: int) -> RouteReport:
        return RouteReport("r", "topic t", "g", Findings(**counts), [], 0.0, False, True)

    assert audit_complaints([report(captured=1, delivered=1)]) == []
    assert audit_complaints([report(lost=2)]) == ["r: 2 lost."]
    assert audit_complaints([report(dead_letters=1)]) == ["r: 1 dead letters"]


def test_the_database_is_held_against_a_destination() -> None:
    one, two, three = (b"a", b"1"), (b"a", b"2"), (b"b", b"1")

    assert compare("r", {one}, {one: 1, three: 1}, {b"a"}) == []
    assert compare("r", {one, two}, {one: 1}, {b"a"}) == [
        "r: 1 messages committed in the database and did not arrive (such as a/2)"
    ]
    assert compare("r", {one}, {one: 2, two: 1}, {b"a"}) == [
        "r: 1 messages not committed in the database and arrived (such as a/2)",
        "r: 1 messages arrived more than once (such as a/1)",
    ]


class Kafka:
    """A reader that stands still, or never comes to its end, and what another one finds behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: list[Any], *, moves: bool) -> None:
        self.left, self._moves, self._next = left, moves, 0
        monkeypatch.setattr(watching, "tail", lambda *_: self.tail())
        monkeypatch.setattr(watching, "PartitionReader", self)
        monkeypatch.setattr(watching, "QUIET_S", 0.2)
        monkeypatch.setattr(watching.settings, "consumer", lambda *_, **__: {})

    def tail(self) -> Iterator[list[Any]]:
        while True:
            time.sleep(0.01)
            self._next += 1
            yield [record(self._next)] if self._moves else []

    def __call__(self, *_: object, **__: object) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, ranges: dict[LogPartition, tuple[int, int]]) -> Iterator[list[Any]]:
        assert list(ranges) == [OUT]
        yield self.left
        if not self.left:
            raise Stuck("an open transaction")


def record(offset: int) -> Any:
    return SimpleNamespace(
        topic=lambda: OUT.topic, partition=lambda: OUT.partition, offset=lambda: offset, headers=list, key=lambda: b"k"
    )


@pytest.mark.parametrize(("moves", "left", "missed"), [(False, [], []), (False, [record(7)], [OUT]), (True, [record(7)], [OUT])])
def test_a_reader_that_did_not_come_to_the_end_says_so_and_one_that_only_lacks_markers_does_not(
    moves: bool, left: list[Any], missed: list[LogPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    Kafka(monkeypatch, left, moves=moves)
    config: Any = SimpleNamespace(relay=SimpleNamespace(name="chaos"), kafka={}, timing=None)
    complaints: list[str] = []
    watch = watching.Watch(config, {OUT: 0}, Checks(()), complaints.append)

    assert watch.end({OUT: 100_000}, 0.6) == missed
    assert complaints == []

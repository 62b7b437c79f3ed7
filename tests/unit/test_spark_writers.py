"""``format("relay")`` without Spark and brokers: what a task appends and tells, and what the driver decides by that."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from relay.capture.decisions import Attempt, Unit, UnitDecision, batch_unit, named_unit
from relay.capture.outcomes import decode_marker
from relay.config.timing import Timing
from relay.kafka.bulk import BulkAppender
from relay.message.errors import CaptureError, ConfigError, InDoubt, Unreachable
from relay.message.record import LogPartition
from relay.spark import deciding, source, writing
from relay.spark.deciding import UnitDecider
from relay.spark.options import WriteOptions
from relay.spark.source import BatchWriter, StreamWriter
from relay.spark.writing import Appended, append_rows

OPTIONS = WriteOptions("shop", {}, "orders")
UNIT = batch_unit("q", 3)
MINE = Attempt(b"n" * 16, 2, (LogPartition("orders", 0),))
SENT = [Appended(UNIT, "run", MINE), None, Appended(UNIT, "run", None)]


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what is decided, in its order."""
    told: list[Any] = []

    def commit(options: WriteOptions, unit: Unit, run: str, attempts: list[Attempt], **over: bool) -> UnitDecision:
        told.append(("commit", options, unit, run, attempts, over))
        return UnitDecision(unit, run, committed=True, attempts=tuple(attempts))

    monkeypatch.setattr(source, "commit_unit", commit)
    monkeypatch.setattr(source, "abort_unit", lambda *given: told.append(("abort", *given)))
    return told


def test_a_batch_of_a_stream_is_decided_as_one(decided: list[Any]) -> None:
    writer = StreamWriter(OPTIONS)

    writer.commit(SENT, 3)
    writer.abort(SENT, 3)

    assert decided == [("commit", OPTIONS, UNIT, "run", [MINE], {"is_streams": True}), ("abort", OPTIONS, UNIT, "run", [MINE])]


def test_a_batch_of_which_no_task_told_its_name_is_left_to_the_next_run(decided: list[Any]) -> None:
    StreamWriter(OPTIONS).abort([None, None], 3)
    with pytest.raises(CaptureError, match="its tasks tell 0 units"):
        StreamWriter(OPTIONS).commit([], 3)

    assert decided == []


@pytest.mark.parametrize(
    "sent",
    [
        [*SENT, Appended(UNIT, "another", MINE)],
        [*SENT, Appended(batch_unit("other", 3), "run", MINE)],
        [Appended(batch_unit("q", 4), "run", MINE)],
    ],
)
def test_tasks_that_tell_of_another_batch_or_run_decide_nothing(decided: list[Any], sent: list[Any]) -> None:
    for decide in (StreamWriter(OPTIONS).commit, StreamWriter(OPTIONS).abort):
        with pytest.raises(CaptureError, match=r"batch 3: its tasks tell .* nothing is decided"):
            decide(sent, 3)

    assert decided == []


def test_a_named_write_may_be_asked_for_again_whatever_came_since(decided: list[Any]) -> None:
    writer = BatchWriter(OPTIONS, named_unit("load"), "run")

    writer.commit(SENT)
    writer.abort([None])

    assert decided == [("commit", OPTIONS, named_unit("load"), "run", [MINE], {}), ("abort", OPTIONS, named_unit("load"), "run", [])]


@pytest.mark.parametrize(
    ("topic", "sent", "is_repeat"),
    [
        ("orders", [Appended(UNIT, "run", None, passed_over=2), None], True),
        ("orders", [Appended(UNIT, "run", None, passed_over=1), Appended(UNIT, "run", MINE._replace(rows=1))], True),
        (None, [Appended(UNIT, "run", None, passed_over=2)], True),
        ("orders", [Appended(UNIT, "run", None, passed_over=3)], False),
        ("orders", [Appended(UNIT, "run", None)], False),
        ("bills", [Appended(UNIT, "run", None, passed_over=2)], False),
    ],
)
def test_another_write_under_a_units_name_is_not_taken_for_its_repeat(
    topic: str | None, sent: list[Any], is_repeat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows were lost, and the write had succeeded."""
    stands = UnitDecision(named_unit("load"), "an earlier run", committed=True, attempts=(MINE,))
    monkeypatch.setattr(source, "commit_unit", lambda *_: stands)
    writer = BatchWriter(replace(OPTIONS, topic=topic), named_unit("load"), "run")

    refused = pytest.raises(ConfigError, match=r"unit load was committed by an earlier write, of 2 rows into orders; .*unit of its own")
    with nullcontext() if is_repeat else refused:
        writer.commit(sent)


def test_rows_that_come_after_an_empty_write_of_their_unit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "commit_unit", lambda *_: UnitDecision(named_unit("load"), "an earlier run", committed=True))

    with pytest.raises(ConfigError, match="of 0 rows into no topic; this one has 2 for orders, of which none was captured"):
        BatchWriter(OPTIONS, named_unit("load"), "run").commit(SENT[:1])


class Brokers:
    """An appender and a topic of decisions: ``steps`` is what was asked of them, ``fails`` what is refused."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.records: list[Any] = []
        self.stands: UnitDecision | InDoubt | None = None
        self.fails: set[str] = set()

    def append(self, records: Iterable[Any]) -> None:
        self.records += records
        self._step("append")

    def flush(self) -> None:
        self._step("flush")

    def discard(self) -> None:
        self._step("discard")

    def connect(self, _: str) -> None: ...

    def known(self, wanted: UnitDecision, **_: bool) -> UnitDecision | None:
        self._step("known")
        assert wanted.committed
        if isinstance(self.stands, InDoubt):
            raise self.stands
        return self.stands

    def decide(self, wanted: UnitDecision, **_: bool) -> UnitDecision:
        self._step("decide")
        if self.stands is None:
            self.stands = wanted
        assert isinstance(self.stands, UnitDecision)
        return self.stands

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name in self.fails:
            raise Unreachable(f"{name}: the brokers are away")


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    for module in (writing, deciding):
        monkeypatch.setattr(module, "BulkAppender", lambda *_: made)
        monkeypatch.setattr(module, "DecisionWriter", lambda *_: made)
    monkeypatch.setattr(writing, "check_topics", lambda _, names: dict.fromkeys(names, 4))
    monkeypatch.setattr(writing, "_runs_seen", set())
    return made


def rows(*values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values)}, pa.schema([("value", pa.string())]))


class TestTask:
    """What one attempt at a task appends, and tells the driver."""

    def test_it_tells_what_it_appended_when_all_is_acknowledged(self, brokers: Brokers) -> None:
        told = append_rows(OPTIONS, UNIT, "run", [rows(), rows("a", "b"), rows("c")])

        assert brokers.steps == ["known", "append", "append", "flush"]
        assert (told.unit, told.run) == (UNIT, "run")
        assert told.attempt is not None
        assert (told.attempt.rows, told.attempt.places) == (3, (LogPartition("orders", 0),))
        assert {dict(record[4])["ce_relaycapture"] for record in brokers.records} == {told.attempt.capture.hex().encode()}
        assert len({dict(record[4])["ce_id"] for record in brokers.records}) == 3

    def test_it_asks_how_many_partitions_each_topic_has_that_a_row_names(self, brokers: Brokers) -> None:
        given = pa.RecordBatch.from_pydict({"value": ["a", "b"], "topic": ["bills", None], "key": ["k", "k"]})

        told = append_rows(OPTIONS, UNIT, "run", [given]).attempt

        assert told is not None
        assert {place.topic for place in told.places} == {"bills", "orders"}

    def test_a_row_that_names_a_topic_of_the_relays_own_is_refused(self, brokers: Brokers) -> None:
        given = pa.RecordBatch.from_pydict({"value": ["a"], "topic": [f"{OPTIONS.relay}.decisions"]})

        with pytest.raises(ConfigError, match="a topic of the relay's own is not a log"):
            append_rows(OPTIONS, UNIT, "run", [given])
        assert not brokers.records

    def test_each_attempt_is_a_capture_of_its_own(self, brokers: Brokers) -> None:
        told = [append_rows(OPTIONS, UNIT, "run", [rows("a")]).attempt for _ in range(2)]

        assert len({one.nonce for one in told if one}) == 2
        assert brokers.steps.count("known") == 1, "only the first batch of a run can be decided already"

    @pytest.mark.parametrize("step", ["append", "flush"])
    def test_what_is_not_acknowledged_is_let_go_and_told_to_nobody(self, brokers: Brokers, step: str) -> None:
        brokers.fails.add(step)

        with pytest.raises(Unreachable, match=f"{step}: "):
            append_rows(OPTIONS, UNIT, "run", [rows("a")])

        assert brokers.steps[-1] == "discard"

    def test_without_rows_it_appends_nothing(self, brokers: Brokers) -> None:
        assert append_rows(OPTIONS, UNIT, "run", [rows(), rows()]).attempt is None
        assert brokers.steps == ["known"]

    @pytest.mark.parametrize("closed", [False, True])
    def test_of_what_is_decided_it_appends_nothing_and_reads_its_input_to_the_end(self, brokers: Brokers, closed: bool) -> None:
        brokers.stands = UnitDecision(UNIT, "before", committed=not closed)
        given = iter([rows("a"), rows("b")])

        told = append_rows(OPTIONS, UNIT, "run", given)

        assert next(given, None) is None, "operators before it finish their state with their input"
        assert (told.attempt is None, len(brokers.records)) == ((False, 2) if closed else (True, 0))

    def test_while_a_decision_is_being_made_it_appends_and_asks_again_the_next_time(self, brokers: Brokers) -> None:
        brokers.stands = InDoubt("a decision is open")
        assert append_rows(OPTIONS, UNIT, "run", [rows("a")]).attempt is not None
        brokers.stands = UnitDecision(UNIT, "before", committed=True)

        assert append_rows(OPTIONS, UNIT, "run", [rows("a")]).attempt is None


class TestDriver:
    """What the driver decides, and the markers that hasten it."""

    OTHER = Attempt(b"o" * 16, 1, (LogPartition("orders", 1), LogPartition("orders", 2)))

    @staticmethod
    def marked(brokers: Brokers) -> set[tuple[int, bytes, bool, bool]]:
        """Return the partition, capture, outcome and proof of each marker."""
        found = [(record[1], decode_marker(record[2], record[3], record[4])) for record in brokers.records]
        return {(partition, one.capture, one.committed, one.proved) for partition, one in found if one is not None}

    def test_a_commit_is_decided_before_it_is_marked(self, brokers: Brokers) -> None:
        stands = UnitDecider(OPTIONS, UNIT, "run").commit([MINE, self.OTHER])

        assert brokers.steps == ["decide", "append", "flush"]
        assert stands == UnitDecision(UNIT, "run", committed=True, attempts=(MINE, self.OTHER))
        assert self.marked(brokers) == {(0, MINE.capture, True, True), (1, self.OTHER.capture, True, True), (2, self.OTHER.capture, True, True)}

    def test_where_another_run_was_committed_its_attempts_count_and_these_are_dropped(self, brokers: Brokers) -> None:
        brokers.stands = UnitDecision(UNIT, "before", committed=True, attempts=(MINE,))

        assert UnitDecider(OPTIONS, UNIT, "run").commit([self.OTHER]).run == "before"

        assert self.marked(brokers) == {(0, MINE.capture, True, True), (1, self.OTHER.capture, False, False), (2, self.OTHER.capture, False, False)}

    def test_a_run_that_was_closed_is_no_success_and_marks_nothing(self, brokers: Brokers) -> None:
        brokers.stands = UnitDecision(UNIT, "run", committed=False)

        with pytest.raises(CaptureError, match="run run of unit q/3 was closed"):
            UnitDecider(OPTIONS, UNIT, "run").commit([MINE])

        assert brokers.records == []

    def test_an_abort_closes_the_run_unless_it_was_committed_after_all(self, brokers: Brokers) -> None:
        UnitDecider(OPTIONS, UNIT, "run").abort([MINE])
        assert self.marked(brokers) == {(0, MINE.capture, False, False)}
        brokers.records, brokers.stands = [], UnitDecision(UNIT, "run", committed=True, attempts=(MINE,))

        assert UnitDecider(OPTIONS, UNIT, "run").abort([MINE]).committed

        assert self.marked(brokers) == {(0, MINE.capture, True, True)}

    @pytest.mark.parametrize("step", ["append", "flush"])
    def test_markers_that_cannot_be_written_leave_the_decision_as_it_is(self, brokers: Brokers, step: str) -> None:
        brokers.fails.add(step)

        assert UnitDecider(OPTIONS, UNIT, "run").commit([MINE]).committed

        assert brokers.steps[-1] == "discard"

    def test_what_is_decided_before_is_a_commit_only(self, brokers: Brokers) -> None:
        decider = UnitDecider(OPTIONS, UNIT, "run")
        brokers.stands = UnitDecision(UNIT, "run", committed=False)
        assert decider.committed() is None
        brokers.stands = done = replace(brokers.stands, committed=True)

        assert decider.committed() is done


@pytest.mark.timeout(20)
def test_a_row_for_which_the_client_never_has_room_is_refused() -> None:
    """The task waited for ever: nothing was queued that could have timed out."""
    kafka = {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.kbytes": "1024", "message.max.bytes": "5000000"}
    appender = BulkAppender(kafka, Timing(), 1.0)

    with pytest.raises(CaptureError, match="a message of 2000000 bytes finds no room in the client"):
        appender.append([("orders", 0, None, b"x" * 2_000_000, [])])

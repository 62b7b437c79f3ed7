"""A unit's attempts and its decision on a real broker, as Spark's tasks and driver make them, without Spark itself."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from relay.audit.verify import verify
from relay.capture.decisions import Unit, batch_unit
from relay.cli.main import app
from relay.config.loading import load
from relay.config.timing import Timing
from relay.kafka.topics import Topics
from relay.message.errors import CaptureError, ConfigError, Unreachable
from relay.spark import writing
from relay.spark.deciding import abort_unit, commit_unit, mark
from relay.spark.following import CommittedReader
from relay.spark.options import WriteOptions, check_topics
from relay.spark.writing import Appended, append_rows, attempts_of
from tests.conftest import MakeRoute, MakeTopic
from tests.raw_headers import append_raw
from tests.routes import TopicRoute, ce, publish, read_all, wait_for

UNIT = batch_unit("query", 3)


@pytest.fixture
def route(make_route: MakeRoute) -> TopicRoute:
    return make_route(partitions=2)


def options(route: TopicRoute, topic: str | None = None) -> WriteOptions:
    return WriteOptions(route.name, {"bootstrap.servers": route.kafka}, topic=topic or route.log)


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pydict({"key": list(values), "value": list(values)})])


def attempt(route: TopicRoute, run: str, *values: str, unit: Unit = UNIT) -> Appended:
    return append_rows(options(route), unit, run, rows(*values))


def shown(route: TopicRoute) -> list[str]:
    return sorted(record.value().decode() for record in route.outputs())


def test_only_the_attempts_that_the_decision_lists_show(route: TopicRoute) -> None:
    lost = attempt(route, "run", "a", "b")
    kept = attempt(route, "run", "a", "b", "c")
    speculative = attempt(route, "run", "c")
    route.start()

    stands = commit_unit(options(route), UNIT, "run", attempts_of([kept, None]))

    assert stands.rows == 3
    wait_for(lambda: len(route.outputs()) >= 3, what="the counted rows")
    assert lost.attempt is not None
    assert speculative.attempt is not None
    assert route.finish(number=1) == 0
    assert shown(route) == ["a", "b", "c"]


def test_a_rerun_finds_the_decision_and_its_rows_do_not_count(route: TopicRoute) -> None:
    first, zombie = attempt(route, "run", "a"), attempt(route, "zombie", "a")
    commit_unit(options(route), UNIT, "run", attempts_of([first]))

    rerun = attempt(route, "later", "a")
    late = commit_unit(options(route), UNIT, "zombie", attempts_of([zombie]))

    assert rerun.attempt is None, "the first batch of a run asks, and appends nothing for a decided unit"
    assert late.run == "run"
    assert route.finish() == 0
    assert shown(route) == ["a"]


def test_a_closed_run_never_counts_and_the_next_one_does(route: TopicRoute) -> None:
    failed = attempt(route, "run", "a")
    abort_unit(options(route), UNIT, "run", attempts_of([failed, None]))
    with pytest.raises(CaptureError, match="was closed before it was done"):
        commit_unit(options(route), UNIT, "run", attempts_of([failed]))

    again = attempt(route, "next", "a")
    commit_unit(options(route), UNIT, "next", attempts_of([again]))

    assert route.finish() == 0
    assert shown(route) == ["a"]


def test_an_abort_after_an_unknown_commit_leaves_the_commit(route: TopicRoute) -> None:
    done = attempt(route, "run", "a")
    commit_unit(options(route), UNIT, "run", attempts_of([done]))

    stands = abort_unit(options(route), UNIT, "run", attempts_of([done]))

    assert stands.committed
    assert route.finish() == 0
    assert shown(route) == ["a"]


def test_a_person_who_closes_a_run_is_told_if_nobody_waits_for_it(route: TopicRoute) -> None:
    left = attempt(route, "gone", "a").attempt
    assert left is not None
    worker = route.start()

    def relay(*words: str) -> Any:
        return json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)

    waiting = f"decisions:{UNIT.name}/gone"
    wait_for(lambda: waiting in json.dumps(relay("status", str(route.path))), what="the hold in the status")
    told = relay("indoubt", "show", str(route.path), f"capture:{left.capture.hex()}")
    assert f"`relay unit close CONFIG {UNIT.name} gone --reason WHY`" in told["evidence"]
    close = ("unit", "close", str(route.path), UNIT.name)
    slip = CliRunner().invoke(app, [*close, "gnoe", "--reason", "lost"])
    assert (slip.exit_code, "no worker waits for that run" in slip.stdout) == (0, True)
    assert relay("unit", "close", str(route.path), "qery/3", "gone", "--reason", "lost")["known"] is False

    assert relay(*close, "gone", "--reason", "its driver's machine is lost")["known"] is True
    wait_for(lambda: waiting not in json.dumps(relay("status", str(route.path))), what="the end of the hold")
    worker.terminate()
    assert worker.wait(30) == 0
    assert shown(route) == []


def test_an_empty_rerun_ends_what_an_earlier_run_left(route: TopicRoute) -> None:
    attempt(route, "run", "a")
    empty = append_rows(options(route), UNIT, "next", iter([]))

    commit_unit(options(route), UNIT, "next", attempts_of([empty]))

    assert empty.attempt is None
    assert route.finish() == 0
    assert shown(route) == []


def test_without_markers_the_decision_alone_is_enough_and_markers_may_come_twice(
    route: TopicRoute, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = attempt(route, "run", "a")
    with monkeypatch.context() as patch:
        patch.setattr("relay.spark.deciding.mark", lambda *_: None)
        stands = commit_unit(options(route), UNIT, "run", attempts_of([done]))
    assert len(read_all(route.kafka, route.log, 2)) == 1

    route.start()
    wait_for(lambda: shown(route) == ["a"], what="the row")
    mark(options(route), stands, [])
    mark(options(route), stands, [])

    assert route.finish(number=1) == 0
    assert shown(route) == ["a"]


def test_what_is_missing_is_said_before_any_row(route: TopicRoute, make_topic: MakeTopic) -> None:
    with pytest.raises(ConfigError, match="topic 'absent' does not exist"):
        append_rows(options(route, "absent"), UNIT, "run", rows("a"))
    with pytest.raises(ConfigError, match=r"there is no relay 'nobody' on these brokers; run `relay migrate`"):
        check_topics(WriteOptions("nobody", {"bootstrap.servers": route.kafka}, topic=route.log), [route.log])
    compacted = make_topic(1, config={"cleanup.policy": "compact"})
    with pytest.raises(ConfigError, match="compaction could drop"):
        append_rows(options(route, compacted), UNIT, "run", rows("a"))
    with pytest.raises(Unreachable, match="no broker answers"):
        check_topics(WriteOptions("shop", {"bootstrap.servers": "127.0.0.1:1"}), ["orders"])
    assert read_all(route.kafka, route.log, 2) == []


def test_a_record_that_the_broker_refuses_fails_its_attempt(route: TopicRoute) -> None:
    large = pa.RecordBatch.from_pydict({"value": [secrets.token_bytes(2_000_000)]})

    with pytest.raises(CaptureError, match=r"max\.message\.bytes"):
        append_rows(options(route), UNIT, "run", iter([large]))


def test_only_the_first_batch_of_a_run_asks_for_decisions(route: TopicRoute, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    known = writing.DecisionWriter.known
    monkeypatch.setattr(writing.DecisionWriter, "known", lambda self, wanted: asked.append(wanted) or known(self, wanted))

    attempt(route, "one-run", "a")
    attempt(route, "one-run", "b", unit=batch_unit("query", 4))

    assert len(asked) == 1


def test_a_stream_reads_what_is_decided_and_a_repeated_batch_the_same(route: TopicRoute) -> None:
    first, dropped = attempt(route, "run", "a", "b"), attempt(route, "run", "a")
    commit_unit(options(route), UNIT, "run", attempts_of([first]))
    following = batch_unit("query", 4)
    late = attempt(route, "run", "c", unit=following)
    reader = CommittedReader(options(route))
    start = reader.initialOffset()
    end = reader.latestOffset()
    before = read_span(reader, start, end)

    commit_unit(options(route), following, "run", attempts_of([late]))
    after = read_span(reader, end, reader.latestOffset())
    fresh = CommittedReader(options(route))

    assert dropped.attempt is not None
    assert before == ["a", "b"]
    assert after == ["c"]
    assert read_span(fresh, start, end) == before
    assert fresh.latestOffset() == reader.latestOffset()


def test_a_stream_goes_on_where_its_topic_has_got_another_partition(route: TopicRoute) -> None:
    """Brokers tell a client of it only when it asks for the topic anew, minutes later."""
    reader = CommittedReader(options(route))
    start = reader.latestOffset()
    with Topics({"bootstrap.servers": route.kafka}, Timing()) as topics:
        topics.grow(route.log, len(start) + 1)
    publish(route.kafka, route.log, [(len(start), ce("/plain", "1"), b"new")])

    assert read_span(reader, start, reader.latestOffset()) == ["new"]


def test_a_header_that_no_client_can_read_does_not_end_a_stream(route: TopicRoute) -> None:
    append_raw(route.kafka, route.log, 0, [(b"caf\xe9", b"x"), (b"ce_id", b"1")], b"odd")
    append_raw(route.kafka, route.log, 0, [(b"ce_id", b"2")], b"even")
    reader = CommittedReader(options(route))

    assert read_span(reader, reader.initialOffset(), reader.latestOffset()) == ["even", "odd"]


def read_span(reader: CommittedReader, start: dict[str, object], end: dict[str, object]) -> list[str]:
    batches = [batch for span in reader.partitions(start, end) for batch in reader.read(span)]
    return sorted(value.decode() for batch in batches for value in batch.column("value").to_pylist())


def test_the_audit_takes_the_decision_where_no_marker_lies(route: TopicRoute, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt(route, "lost", "a", "b")
    done = attempt(route, "run", "a", "b", "c")
    undecided = attempt(route, "run", "d", unit=batch_unit("query", 4))
    with monkeypatch.context() as patch:
        patch.setattr("relay.spark.deciding.mark", lambda *_: None)
        commit_unit(options(route), UNIT, "run", attempts_of([done]))
    route.start()
    wait_for(lambda: len(route.outputs()) == 3, what="the counted rows")

    (report,) = verify(load(route.path), ("main",), allow_lag=True)

    assert undecided.attempt is not None
    counts = report.document()
    assert (counts["captured"], counts["delivered"], counts["aborted"], counts["in_doubt"]) == (3, 3, 2, 1)
    assert (counts["lost"], counts["phantoms"]) == (0, 0)

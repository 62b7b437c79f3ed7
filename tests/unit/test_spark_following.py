"""The prefix that a stream may read: it ends before the first message of which nobody knows how its capture ended."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Self

import pytest
from pyspark.sql.types import StructType

from relay.capture.decisions import Attempt, UnitDecision, UnitDecisions, batch_unit
from relay.capture.outcomes import encode_marker, marker_headers
from relay.message.envelope import CAPTURE, ID, RESOURCE, TYPE, Headers, ResourceName
from relay.message.errors import ConfigError
from relay.message.identity import capture_id
from relay.message.record import LogPartition
from relay.spark import following
from relay.spark.following import CommittedReader, Prefix, Span, ended_by
from relay.spark.options import WriteOptions
from relay.spark.source import RelaySource

SHOP = ResourceName("shop", "uuid")
UNIT = batch_unit("q", 1)
NONCE, OTHER = b"n" * 16, b"o" * 16


def captured(nonce: bytes, resource: ResourceName = SHOP) -> Headers:
    return [(ID, b"1"), (CAPTURE, capture_id(nonce).hex().encode()), (RESOURCE, resource.encode())]


def marker(nonce: bytes, proof: bytes | None, resource: ResourceName = SHOP) -> tuple[bytes, bytes, Headers]:
    capture = capture_id(nonce)
    return capture, encode_marker(capture, proof, None, []), marker_headers(capture, b"/s", resource)


def test_it_ends_before_the_first_undecided_message_and_goes_on_with_its_marker() -> None:
    prefix = Prefix(0)
    prefix.take(0, None, b"plain", [])
    prefix.take(1, None, b"a", captured(NONCE))
    prefix.take(2, None, b"b", captured(OTHER))
    before = prefix.position()
    prefix.take(3, *marker(OTHER, None))
    between = prefix.position()
    prefix.take(4, *marker(NONCE, NONCE))

    assert (before, between, prefix.position()) == (1, 1, 5)


def test_of_outcomes_without_messages_only_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "OUTCOMES_REMEMBERED", 2)
    prefix, nonces = Prefix(0), [b"1" * 16, b"2" * 16, b"3" * 16]
    for offset, nonce in enumerate(nonces):
        prefix.take(offset, *marker(nonce, nonce))

    for offset, (nonce, position) in enumerate(zip(reversed(nonces), (4, 5, 5), strict=True), 3):
        prefix.take(offset, None, b"repeat", captured(nonce))
        assert prefix.position() == position


@pytest.mark.parametrize("raw", [b"ab", b"00" * 17, b"", b"no hex", b"00 " * 16, b"00" * 16 + b"\n"])
def test_a_message_of_what_can_be_no_capture_holds_nothing(raw: bytes) -> None:
    prefix = Prefix(0)
    prefix.take(0, None, b"a", [(ID, b"1"), (CAPTURE, raw), (RESOURCE, SHOP.encode())])
    prefix.take(1, None, b"b", [])

    assert prefix.position() == 2


def test_a_forged_marker_moves_nothing() -> None:
    prefix = Prefix(0)
    prefix.take(0, None, b"a", captured(NONCE))
    prefix.take(1, *marker(NONCE, OTHER))

    assert prefix.position() == 0
    assert ended_by(*marker(NONCE, OTHER)) is None


def test_of_a_unit_only_the_decision_counts() -> None:
    resource = UNIT.resource("run")
    prefix = Prefix(0)
    prefix.take(0, None, b"a", captured(NONCE, resource))
    prefix.take(1, *marker(NONCE, None, resource))
    prefix.ask(UnitDecisions())
    before = prefix.position()
    decisions = UnitDecisions()
    decisions.add(UnitDecision(UNIT, "run", True, (Attempt(NONCE, 1, ()),)))
    prefix.ask(decisions)

    assert (before, prefix.position()) == (0, 2)


def test_a_message_that_only_has_the_type_of_a_marker_is_a_row() -> None:
    named = (TYPE, b"relay.outcome")
    decisions = UnitDecisions()
    plain, of_capture, marks = [(ID, b"1"), named], [*captured(NONCE), named], marker(NONCE, NONCE)

    found = [
        following._counts(key, headers, {capture_id(NONCE): True}, decisions)
        for key, headers in ((b"k", plain), (b"k", of_capture), (marks[0], marks[2]))
    ]

    assert found == [True, True, False]


class Record:
    """A record as the client gives it."""

    def __init__(self, offset: int, key: bytes | None, value: bytes, headers: Headers) -> None:
        self._offset, self._key, self._value, self._headers = offset, key, value, headers

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes:
        return self._value

    def headers(self) -> Headers:
        return self._headers

    def topic(self) -> str:
        return "log"

    def partition(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def leader_epoch(self) -> int:
        return 0


class Log:
    """Gives one batch of records after the other, and counts them."""

    def __init__(self, batches: list[list[Record]]) -> None:
        self.batches, self.given = batches, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, _: object) -> Iterator[list[Any]]:
        for batch in self.batches:
            self.given += 1
            yield batch

    def decisions(self) -> UnitDecisions:
        known = UnitDecisions()
        known.add(UnitDecision(UNIT, "run", True, (Attempt(NONCE, 1, ()),)))
        return known


def test_a_task_keeps_no_more_of_the_log_than_waits_for_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = captured(NONCE, UNIT.resource("run"))
    old = batch_unit("q", 0).resource("run")
    log = Log([
        [Record(0, None, b"plain", []), Record(1, None, b"of a unit", unit)],
        [Record(2, None, b"waits", captured(OTHER)), Record(3, None, b"behind it", [])],
        [Record(4, None, b"more behind it", [])],
        [Record(5, *marker(OTHER, OTHER)), Record(6, None, b"aborted", captured(b"a" * 16))],
        [Record(7, *marker(b"a" * 16, None)), Record(8, None, b"decision forgotten", captured(b"f" * 16, old))],
        [Record(9, *marker(b"f" * 16, b"f" * 16, old)), Record(10, None, b"last", []), Record(11, None, b"next", [])],
    ])  # fmt: skip
    monkeypatch.setattr(following, "decision_log", lambda *_: log)
    monkeypatch.setattr(following, "_reader", lambda *_, **__: log)

    rows = CommittedReader(WriteOptions("r", {}, topic="log")).read(Span(0, 0, 11, 12))

    assert [(log.given, batch.column("value").to_pylist()) for batch in rows] == [
        (1, [b"plain", b"of a unit"]), (4, [b"waits", b"behind it", b"more behind it"]), (6, [b"decision forgotten", b"last"]),
    ]  # fmt: skip


def test_of_a_unit_a_task_reads_only_the_attempts_that_are_listed_and_of_kafkas_transactions_the_committed_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unit, asked = UNIT.resource("run"), list[object]()
    log = Log([[Record(0, None, b"listed", captured(NONCE, unit)), Record(1, None, b"not listed", captured(OTHER, unit)), Record(2, None, b"plain", [])]])
    monkeypatch.setattr(following, "decision_log", lambda *_: log)
    monkeypatch.setattr(following, "_reader", lambda *_, committed: asked.append(committed) or log)

    rows = CommittedReader(WriteOptions("r", {}, topic="log")).read(Span(0, 0, 3, 3))

    assert [value for batch in rows for value in batch.column("value").to_pylist()] == [b"listed", b"plain"]
    assert asked == [True]


def test_a_message_whose_marker_lies_before_the_task_keeps_nothing_back_that_is_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a capture was called aborted, and a message of it arrives after that."""
    late = [Record(8, None, b"late", captured(OTHER)), Record(9, None, b"behind it", []), Record(10, None, b"last", [])]
    log = Log([late])
    monkeypatch.setattr(following, "decision_log", lambda *_: log)
    monkeypatch.setattr(following, "_reader", lambda *_, **__: log)

    rows = CommittedReader(WriteOptions("r", {}, topic="log")).read(Span(0, 8, 11, 11))

    assert [value for batch in rows for value in batch.column("value").to_pylist()] == [b"behind it", b"last"]


def test_a_stream_goes_on_where_it_had_read_to_and_takes_partitions_that_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Growing(Log):
        """A log of partitions of which each read is noted; above its last record lie ends of Kafka transactions only."""

        def __init__(self) -> None:
            self.ends, self.records, self.asked = [(0, 4)], [unit, waits], list[dict[int, tuple[int, int]]]()

        def watermarks(self, place: LogPartition) -> tuple[int, int]:
            return self.ends[place.partition]

        def read(self, ranges: Any) -> Iterator[list[Any]]:
            self.asked.append({place.partition: edges for place, edges in ranges.items()})
            yield self.records

    unit, waits = Record(0, None, b"of a unit", captured(NONCE, UNIT.resource("run"))), Record(1, None, b"waits", captured(OTHER))
    log = Growing()
    monkeypatch.setattr(following, "decision_log", lambda *_: log)
    monkeypatch.setattr(following, "_reader", lambda *_, **__: log)
    monkeypatch.setattr(following, "check_topics", lambda *_: {"log": len(log.ends)})
    reader = CommittedReader(WriteOptions("r", {}, topic="log"))

    assert reader.latestOffset() == {"0": [1, 4]}
    log.ends, log.records = [(0, 6), (3, 3)], [Record(4, *marker(OTHER, OTHER))]
    assert reader.latestOffset() == {"0": [6, 6], "1": [3, 3]}
    assert log.asked == [{0: (0, 4)}, {0: (4, 6), 1: (3, 3)}]


def test_a_checkpoint_below_the_logs_beginning_is_a_sentence_with_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trimmed:
        def watermarks(self, _: object) -> tuple[int, int]:
            return 7, 12

    monkeypatch.setattr(following, "_reader", lambda *_, **__: Trimmed())
    reader = CommittedReader(WriteOptions("r", {}, topic="log"))

    assert reader.partitions({"0": [7, 9]}, {"0": [12, 12]}) == [Span(0, 7, 12, 12)]
    assert reader.partitions({"0": [7, 9]}, {"0": [8, 9]}) == [Span(0, 7, 8, 9)], "what was read had no outcome yet"
    assert reader.partitions({"0": [12, 12]}, {"0": [12, 14]}) == [], "nothing more is decided"
    with pytest.raises(ConfigError, match=r'option\("checkpointLocation", .*\): .* offset 5 of log\[0\], .* begins at 7'):
        reader.partitions({"0": [5, 9]}, {"0": [12, 12]})


def test_a_log_that_ends_before_what_was_read_of_it_is_a_sentence_with_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the topic was deleted and created again: what it has below the checkpoint's offsets would be passed over."""

    class Shorter(Log):
        def __init__(self) -> None:
            super().__init__([[]])
            self.end, self.told_anew = 9, 3

        def watermarks(self, _: object) -> tuple[int, int]:
            return 0, self.end

        def end_anew(self, place: LogPartition, least: int) -> int:
            assert (place, least) == (LogPartition("log", 0), 9)
            return self.told_anew

    log, sentence = Shorter(), r'option\("checkpointLocation", .*\): .* up to offset 9 of log\[0\], .* ends at 3'
    monkeypatch.setattr(following, "decision_log", lambda *_: log)
    monkeypatch.setattr(following, "_reader", lambda *_, **__: log)
    monkeypatch.setattr(following, "check_topics", lambda *_: {"log": 1})
    reader = CommittedReader(WriteOptions("r", {}, topic="log"))
    assert reader.latestOffset() == {"0": [9, 9]}
    log.end = 3

    with pytest.raises(ConfigError, match=sentence):
        reader.latestOffset()
    with pytest.raises(ConfigError, match=sentence):
        CommittedReader(WriteOptions("r", {}, topic="log")).partitions({"0": [7, 9]}, {"0": [3, 3]})

    log.told_anew = 9
    for planned in ({"0": [3, 3]}, {"0": [3, 9]}, {}):  # the second one by decisions of which some were not told
        with pytest.raises(ConfigError, match=r"planned by what a broker that was behind told of log\[0\] .* delete the last file of offsets"):
            CommittedReader(WriteOptions("r", {}, topic="log")).partitions({"0": [7, 9]}, planned)
    log.told_anew = 9  # a broker that was cut off had told where it ended when it led
    assert reader.latestOffset() == {"0": [9, 9]}


@pytest.mark.parametrize(("at_ms", "micros"), [(1000, 1_000_000), (-1, -1000), (2**62, None), (2**63 - 1, None), (-(2**63), None)])
def test_a_row_whose_time_no_timestamp_holds_has_none(at_ms: int, micros: int | None) -> None:
    """Producers say it, and brokers before 4.0 take any: one such record must not end the query at each start."""
    record: Any = SimpleNamespace(
        topic=lambda: "orders", partition=lambda: 0, offset=lambda: 7, key=lambda: None, value=lambda: b"v",
        timestamp=lambda: (1, at_ms),
    )  # fmt: skip
    (batch,) = following._batches([(record, [(ID, b"1")])])

    assert batch.column("timestamp").cast("int64").to_pylist() == [micros]


def test_a_batch_read_is_refused_with_what_reads_the_log_at_rest() -> None:
    source = RelaySource({"relay": "shop", "topic": "log", "kafka.bootstrap.servers": "127.0.0.1:1"})

    with pytest.raises(ConfigError, match=r'format\("relay"\) is read as a stream.*relay\.spark\.committed'):
        source.reader(StructType())

"""What another version of the relay wrote stops whoever would decide by it: passed over, it loses or doubles messages."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from relay.audit import readers
from relay.capture.decisions import Unit, UnitDecision, batch_unit, encode_decision
from relay.capture.resolver import Resolution, State
from relay.delivery.numbering import taken_rows
from relay.kafka.decisions import DecisionLog
from relay.message.errors import Stopped
from relay.message.identity import capture_id
from relay.message.record import LogPartition
from relay.message.schemas import FRAME_BYTES, OtherVersion, UnknownRecord
from relay.monitor.entries import Begin, Page, Proof, Seal, decode, encode, frames
from relay.monitor.ranges import RangeEntry, Ranges, encode_value
from relay.queue.stores.files_message import Content
from relay.queue.stores.files_record import decode_content, encode_content
from relay.run.units import AskingUnits
from relay.transfer.cursor import Claim, RangeRow
from tests.unit.memory_kafka import MemoryKafka
from tests.unit.numbered_messages import MONITOR, batch, captured, out
from tests.unit.test_intake import Fake
from tests.unit.test_numbered_delivery import TopicProcess
from tests.unit.test_unit_decisions import MINE, OTHER, UNIT, Topic, attempt, commit

INSTANCE = b"i" * 16
NAMES = ("begin", "page", "seal", "range")


def written(name: str) -> tuple[bytes, bytes]:
    """Return key and value of an entry, made anew: who counts the begins in memory must not find one that is kept here."""
    if name == "begin":
        return encode(Begin("later", "later", INSTANCE, 1, -1, [], []))
    if name == "page":
        return encode(Page("later", INSTANCE, 1, Proof.PROVEN, None, "log", 0, b"d" * 16, b"c" * 8, [0], b"\0"))
    if name == "seal":
        return encode(Seal("later", INSTANCE, 1))
    return encode(RangeEntry("later", INSTANCE, 1, "log", b"s", b"i", [1, 2], [], [], [], 0))


def append(kafka: MemoryKafka, key: bytes, value: bytes) -> int:
    """Append to the monitor as a worker does, and return the offset."""
    made = kafka.transaction("later")
    made.init()
    made.begin()
    made.produce(MONITOR, key, value)
    made.commit()
    return len(kafka.logs[MONITOR]) - 1


def of_another_version(value: bytes) -> bytes:
    """Give a record the frame of a schema that this version does not have."""
    return value[:2] + bytes(8) + value[10:]


@pytest.mark.parametrize("name", NAMES)
def test_a_monitor_entry_of_another_version_is_told_from_a_broken_one(name: str) -> None:
    key, value = written(name)

    with pytest.raises(OtherVersion):
        decode(key, of_another_version(value))
    with pytest.raises(UnknownRecord) as broken:
        decode(key, b"broken")
    assert not isinstance(broken.value, OtherVersion)


def test_a_kind_of_monitor_entry_that_is_not_known_is_not_passed_over() -> None:
    with pytest.raises(OtherVersion, match="kind"):
        decode(b"q" + INSTANCE, written("seal")[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_route_stops_over_what_another_version_wrote_into_its_monitor(name: str) -> None:
    kafka = MemoryKafka()
    TopicProcess(kafka).delivery.submit(batch([captured(1)], 1))
    key, value = written(name)
    offset = append(kafka, key, of_another_version(value))

    with pytest.raises(Stopped, match=rf"monitor\[0\] has at offset {offset} what another version .*run that version"):
        TopicProcess(kafka)

    assert len(out(kafka)) == 1


@pytest.mark.parametrize(
    "state",
    [
        encode_value(RangeEntry("later", bytes(16), 0, "/log", b"further", b"", [], [], [], [1, 2, 3], -1)),
        of_another_version(encode_value(RangeEntry("later", bytes(16), 0, "log", b"s", b"i", [1, 2], [], [], [], 0))),
    ],
    ids=["a note that is not known", "a range"],
)
def test_a_table_or_queue_route_stops_over_what_another_version_wrote_beside_its_position(state: bytes) -> None:
    place = LogPartition("log", 0)
    claims = {place: Claim(1, 7, ranges=[RangeRow(place, b"p" * 16, state)])}

    with pytest.raises(Stopped, match=r"relay_range has a row of log\[0\] that another version .*run that version"):
        taken_rows({0: Ranges()}, claims)


def test_a_route_passes_over_what_is_broken() -> None:
    kafka = MemoryKafka()
    append(kafka, written("seal")[0], b"broken")
    TopicProcess(kafka).delivery.submit(batch([captured(1)], 1))

    assert len(out(kafka)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_audit_judges_nothing_by_what_it_can_read_of_another_version(name: str) -> None:
    kafka = MemoryKafka()
    key, value = written(name)
    append(kafka, key, value)
    known, broken = readers.monitor([[(0, 0, one) for one in kafka.logs[MONITOR]]])
    offset = append(kafka, key, of_another_version(value))

    assert broken == 0
    with pytest.raises(Stopped, match=f"offset {offset}"):
        readers.monitor([[(0, 0, one) for one in kafka.logs[MONITOR]]], known)


def test_the_frames_of_all_entries_are_known() -> None:
    assert {written(name)[1][:FRAME_BYTES] for name in NAMES} < frames()
    assert len(frames()) == len(NAMES) + 2, "and those of two earlier begins"


def another(unit: Unit, offset: int, *, committed: bool = True) -> Fake:
    """A decision of another version: its key is its unit's name there as well."""
    key, value = encode_decision(UnitDecision(unit, "later", committed))
    return Fake(offset, None, of_another_version(value), key)


def test_a_decision_of_another_version_leaves_its_own_unit_in_doubt_and_no_other() -> None:
    topic: Any = Topic()
    log = DecisionLog(lambda _: topic, "shop")
    asks = AskingUnits(None, lambda: log)  # type: ignore[arg-type]
    topic.records.append(another(batch_unit("q", 7), 0))
    topic.write(commit(MINE))  # by whoever passed over the first
    topic.write(UnitDecision(batch_unit("q", 8), "a", True, (attempt(MINE),)))

    known = asks.resolve([(capture_id(MINE), batch_unit("q", 8).resource("a"))])
    doubted = asks.resolve([(capture_id(MINE), UNIT.resource("a")), (capture_id(OTHER), batch_unit("q", 8).resource("a"))])

    assert known[capture_id(MINE)] == Resolution(State.COMMITTED, MINE)
    assert doubted[capture_id(OTHER)].state is State.ABORTED
    assert doubted[capture_id(MINE)].state is State.UNREACHABLE
    assert "at offset 0 what another version of the relay wrote" in doubted[capture_id(MINE)].detail
    with pytest.raises(Stopped, match=r"at offset 0 what another version .*run that version"):
        log.decisions().resolve(capture_id(MINE), "q/7", "a")
    topic.low = 1
    assert log.decisions().resolve(capture_id(MINE), "q/7", "a").state is State.UNDECIDED


def test_what_stood_before_another_version_wrote_of_that_unit_stands() -> None:
    topic: Any = Topic()
    log = DecisionLog(lambda _: topic, "shop")
    topic.write(commit(MINE))
    topic.write(UnitDecision(batch_unit("q", 8), "a", committed=False))
    topic.records += [another(UNIT, 2), another(batch_unit("q", 8), 3)]

    known = log.decisions()

    assert known.resolve(capture_id(MINE), "q/7", "a").state is State.COMMITTED
    assert known.resolve(capture_id(OTHER), "q/8", "a").state is State.ABORTED, "that run is closed, however the unit ends"
    with pytest.raises(Stopped, match="at offset 3 "):
        known.resolve(capture_id(OTHER), "q/8", "b")


def test_who_asks_for_all_decisions_or_all_of_a_query_is_told_of_those_that_cannot_be_read() -> None:
    topic: Any = Topic()
    log = DecisionLog(lambda _: topic, "shop")
    topic.write(commit(MINE))
    topic.records.append(another(batch_unit("other", 3), 1))
    known = log.decisions()

    assert known.has_batches_of("q")
    assert not known.has_batches_of("third")
    with pytest.raises(Stopped, match="at offset 1 "):
        known.has_batches_of("other")
    with pytest.raises(Stopped, match="at offset 1 "):
        list(known.captures())


@pytest.mark.parametrize("key", [None, b"", b"\xff"])
def test_a_decision_of_another_version_that_names_no_unit_stops_whoever_asks(key: bytes | None) -> None:
    topic: Any = Topic()
    log = DecisionLog(lambda _: topic, "shop")
    topic.write(commit(MINE))
    assert len(log.decisions()) == 1
    topic.records.append(Fake(1, None, of_another_version(topic.records[0].value()), key))

    for _ in range(2):
        with pytest.raises(Stopped, match=r"at offset 1 what another version .*run that version"):
            log.decisions()


def test_a_message_in_a_file_of_another_version_is_not_called_damaged() -> None:
    whole = encode_content(Content(b"k", b"v", (), None, ()))[4:]
    later = of_another_version(whole)

    with pytest.raises(Stopped, match=r"message 7 was written by another version .*open the queue with that one"):
        decode_content(crc32(later).to_bytes(4, "big") + later, "message 7")

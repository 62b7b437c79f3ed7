"""A log that lost its end and has grown again: what lay below a position tells it from the one that was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from relay.delivery.batch import Batch
from relay.delivery.numbering import publisher
from relay.delivery.table.anchor_rows import AnchorRows
from relay.delivery.topic.position_note import PositionNote, anchors_of, read_note
from relay.log.anchor import Anchor, NewEpoch, Trail, anchor_of
from relay.message.errors import InDoubt, Stopped
from relay.message.identity import content_digest
from relay.message.record import LogMessage, LogPartition
from relay.monitor.ranges import RangeEntry, RangeKey, encode_value
from relay.run.anchorage import Anchorage
from relay.run.starts import StartPolicy
from relay.transfer.cursor import Claim, RangeRow
from tests.unit.memory_kafka import MemoryKafka, MemoryReader, Stored
from tests.unit.test_intake import PLACE, Fake, captured, intake, marker
from tests.unit.test_starts import ID, Shared
from tests.unit.test_unshown import LOG, Worker, view

ELSEWHERE = LogPartition("orders", 1)


class Led(Fake):
    """A record that the leader of an epoch has written."""

    def __init__(self, offset: int, epoch: int | None, value: bytes = b"v") -> None:
        super().__init__(offset, value=value)
        self._epoch = epoch

    def leader_epoch(self) -> int:
        return self._epoch  # type: ignore[return-value] - the client says None where the broker has not said it


def below(position: int) -> Anchor:
    return Anchor(position - 1, content_digest(b"k", b"v"), 1000)


class TestOfIntake:
    def test_what_was_read_last_lies_below_a_position_at_the_end(self) -> None:
        made = intake()
        made.take([captured(0), marker(1, bytes(32))], 0)
        assert made.anchors({PLACE: 2}) == {PLACE: anchor_of(marker(1, bytes(32)))}

    def test_what_was_handed_on_last_lies_below_a_position_before_the_end(self) -> None:
        made = intake()
        made.take([Led(n, 0) for n in range(4)], 0)
        made.take_ready(2)
        assert made.positions() == {PLACE: 2}
        assert made.anchors(made.positions()) == {PLACE: below(2)}
        made.take_ready(9)
        assert made.anchors(made.positions()) == {PLACE: below(4)}

    def test_a_held_message_keeps_the_anchor_below_it(self) -> None:
        made = intake()
        made.take([Led(0, 0), captured(1), Led(2, 0)], 0)
        made.take_ready(1)
        assert made.anchors(made.positions()) == {PLACE: below(1)}
        made.take_ready(9)  # what is not of its lane goes past it
        assert made.positions() == {PLACE: 1}
        assert made.anchors(made.positions()) == {PLACE: below(1)}

    def test_of_what_nothing_was_read_nothing_is_known(self) -> None:
        made = intake()
        made.start({PLACE: 0, ELSEWHERE: 5}, {"orders": b"i" * 16})
        made.take([Led(0, 0)], 0)
        assert made.anchors({PLACE: 1, ELSEWHERE: 5}) == {PLACE: below(1)}
        made.start({PLACE: 1}, {"orders": b"i" * 16})
        assert made.anchors({PLACE: 1}) == {}

    def test_another_leaders_records_are_told_once_with_what_was_read_before(self) -> None:
        made = intake()
        made.take([Led(0, 3), Led(1, 3)], 0)
        assert made.new_epochs() == {PLACE: NewEpoch(3, None)}
        made.take([Led(2, 3)], 0)
        assert made.new_epochs() == {}
        made.take([Led(3, 3), Led(4, 5)], 0)
        made.take([Led(5, 6)], 0)
        assert made.new_epochs() == {PLACE: NewEpoch(5, below(3))}
        assert made.new_epochs() == {}

    def test_a_broker_that_does_not_say_its_epoch_tells_nothing(self) -> None:
        made = intake()
        made.take([Led(0, None)], 0)
        assert made.new_epochs() == {}


def handed_on(offset: int) -> LogMessage:
    return LogMessage(*PLACE, offset, b"k", b"v", [], bytes(16), below(0).content, b"", None, 1000)


class TestTrail:
    def trail(self, read: int, *handed: int) -> Trail:
        made = Trail()
        made.read(Led(read, 0))
        for offset in handed:
            made.hand_on(handed_on(offset))
        return made

    def test_the_record_at_a_position_is_above_what_was_delivered_and_no_anchor_of_it(self) -> None:
        assert self.trail(3, 1, 2).below(3) == below(3)
        assert self.trail(3).below(3) is None

    def test_what_is_handed_on_late_takes_the_place_of_nothing_higher(self) -> None:
        trail = self.trail(9, 2, 4, 3)
        assert trail.below(6) == below(5)
        assert trail.below(10) == below(10)
        trail.hand_on(handed_on(8))
        assert trail.below(10) == below(10)


class Log(MemoryReader):
    """A log from ``low`` on, whose records a leader wrote each."""

    def __init__(self, *records: Led, low: int = 0) -> None:
        super().__init__(MemoryKafka(), committed=False)
        self.low = low
        self.records: list[Any] = list(records)
        self.reads = 0

    @property
    def end(self) -> int:
        return self.records[-1].offset() + 1 if self.records else self.low

    def watermarks(self, partition: LogPartition) -> tuple[int, int]:
        assert partition == PLACE
        return self.low, self.end

    def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[list[Any]]:
        self.reads += bool(ranges)
        for first, end in ranges.values():
            assert first >= self.low, "reading below the log's begin fails"
            assert end <= self.end, "reading above its end does not return"
            yield [one for one in self.records if first <= one.offset() < end]


class TestAnchorage:
    def test_another_record_in_its_place_is_told(self) -> None:
        log = Log(Led(0, 0), Led(1, 1, b"new"))
        assert not Anchorage(log).replaced({PLACE: below(1)})
        assert list(Anchorage(log).replaced({PLACE: below(2)})) == [PLACE]
        assert not Anchorage(Log(Led(0, 0), Led(2, 0))).replaced({PLACE: below(2)}), "what is not there tells nothing"

    def test_the_same_words_at_another_time_are_another_record(self) -> None:
        assert list(Anchorage(Log(Led(0, 0))).replaced({PLACE: below(1)._replace(time_ms=999)})) == [PLACE]

    def test_a_leader_that_comes_after_the_take_over_is_held_against_what_lay_below_the_position(self) -> None:
        log = Log(Led(0, 3), Led(1, 3))
        made = Anchorage(log)
        assert not made.replaced({PLACE: below(2)})
        log.records[1:] = [Led(1, 4, b"new"), Led(2, 4)]
        made.check({PLACE: NewEpoch(3, None)})
        with pytest.raises(InDoubt, match="another record at 1"):
            made.check({PLACE: NewEpoch(4, None)})

    def test_a_leader_that_has_everything_costs_one_look(self) -> None:
        log = Log(Led(0, 3), Led(1, 3), Led(2, 4))
        made = Anchorage(log)
        made.replaced({PLACE: below(2)})
        before = log.reads
        made.check({PLACE: NewEpoch(3, None)})
        made.check({})
        assert log.reads == before
        made.check({PLACE: NewEpoch(4, None)})
        assert log.reads == before + 1

    def test_after_a_pause_what_was_read_last_counts(self) -> None:
        log = Log(Led(0, 3), Led(1, 4, b"new"))
        with pytest.raises(InDoubt, match="another record at 1"):
            Anchorage(log).check({PLACE: NewEpoch(4, below(2))})
        Anchorage(log).check({PLACE: NewEpoch(4, below(1))})

    def test_what_retention_took_or_the_log_does_not_reach_is_not_asked_for(self) -> None:
        Anchorage(Log(low=5)).check({PLACE: NewEpoch(4, below(3))})
        Anchorage(Log(Led(0, 4))).check({PLACE: NewEpoch(4, below(2))})
        Anchorage(Log(Led(0, 4))).check({PLACE: NewEpoch(4, below(3))})

    def test_the_first_record_that_retention_left_is_looked_at(self) -> None:
        with pytest.raises(InDoubt, match="another record at 5"):
            Anchorage(Log(Led(5, 4, b"new"), low=5)).check({PLACE: NewEpoch(4, below(6))})


class TestStarts:
    def start(
        self, anchor: Anchor, position: int = 7, marks: tuple[int, int] = (2, 9), end: int = 0
    ) -> list[Mapping[LogPartition, Anchor]]:
        asked: list[Mapping[LogPartition, Anchor]] = []

        def replaced(anchors: Mapping[LogPartition, Anchor]) -> list[LogPartition]:
            asked.append(anchors)
            return list(anchors)

        made = StartPolicy(
            Shared(), route="main", policy="earliest", topics={"orders": 1}, topic_ids={"orders": ID},
            watermarks=lambda _: marks, end_anew=lambda _place, _least: end, replaced=replaced,
        )  # fmt: skip
        made.resolve({PLACE: position}, {PLACE}, {PLACE: anchor})
        return asked

    @pytest.mark.parametrize("low", [2, 6], ids=["in the log", "the first that is left"])
    def test_a_log_that_has_another_record_below_the_position_stops_the_route(self, low: int) -> None:
        with pytest.raises(Stopped, match=r"orders\[0\] of route 'main' stands at 7, and what it has read at 6 .* at or below 6"):
            self.start(below(7), marks=(low, 9))

    @pytest.mark.parametrize("at", [1, 7, 8], ids=["taken by retention", "put back by a person", "put back further"])
    def test_what_says_nothing_of_the_position_is_not_looked_for(self, at: int) -> None:
        assert self.start(Anchor(at, bytes(8), 1000)) == [{}]

    def test_a_log_that_grows_while_it_is_asked_for_its_end_is_looked_at(self) -> None:
        """It ended below the position, and beyond it when that was asked for once more."""
        with pytest.raises(Stopped, match=r"stands at 7, and what it has read at 6 "):
            self.start(below(7), marks=(2, 5), end=9)

    def test_what_lies_above_the_end_is_not_looked_for(self) -> None:
        assert self.start(Anchor(6, bytes(8), 1000), position=6, marks=(2, 6)) == [{}]


class TestNotes:
    def test_a_note_has_the_record_below_the_position(self) -> None:
        note = PositionNote("00ff", b"i" * 16, 7, below(10))
        assert read_note(note.text) == note
        assert anchors_of({PLACE: (10, note.text), ELSEWHERE: (4, PositionNote("00ff", b"i" * 16, 7).text)}) == {PLACE: below(10)}

    @pytest.mark.parametrize("text", ["", "00ff", "00ff:aa:1", "00ff:aa:1:2", "00ff:aa:1:2:aa", "00ff:aa:1:x:aa:1", "00ff:aa:1:2:zz:1", "00ff:hint"])
    def test_other_notes_have_none(self, text: str) -> None:
        assert anchors_of({PLACE: (10, text)}) == {}


class TestRows:
    def claimed(self, *rows: RangeRow) -> tuple[AnchorRows, dict[LogPartition, Claim]]:
        made = AnchorRows()
        return made, made.take({PLACE: Claim(1, 10, rows)})

    @pytest.mark.parametrize("content", [bytes(8), b"\xff" * 8, b"\x80" + bytes(7)], ids=["zeros", "ones", "least"])
    def test_a_claim_finds_what_a_batch_has_written(self, content: bytes) -> None:
        (row,) = AnchorRows().rows({PLACE: Anchor(9, content, 1 << 41)}, "w")
        other = RangeRow(PLACE, b"p" * 16, b"state")
        found, left = self.claimed(other, row)
        assert found.stored == {PLACE: Anchor(9, content, 1 << 41)}
        assert left[PLACE].ranges == [other]

    def test_ranges_of_a_publisher_without_resource_and_source_are_no_anchor(self) -> None:
        key = RangeKey("orders", b"", b"")
        state = encode_value(RangeEntry("w", bytes(16), 0, *key, [], [], [], [1, 2, 3], -1))
        theirs = RangeRow(PLACE, publisher(key), state)
        found, left = self.claimed(theirs)
        assert (found.stored, left[PLACE].ranges) == ({}, [theirs])

    def test_only_what_has_changed_is_written(self) -> None:
        made, _ = self.claimed(*AnchorRows().rows({PLACE: below(9)}, "w"))
        assert made.rows({PLACE: below(9)}, "w") == []
        assert [row.partition for row in made.rows({PLACE: below(10), ELSEWHERE: below(3)}, "w")] == [PLACE, ELSEWHERE]
        assert made.rows({PLACE: below(10)}, "w") == []

    def test_a_row_that_cannot_be_read_is_written_anew(self) -> None:
        (row,) = AnchorRows().rows({PLACE: below(9)}, "w")
        made, left = self.claimed(row._replace(state=b"broken"))
        assert made.stored == {}
        assert left[PLACE].ranges == []
        assert made.rows({PLACE: below(9)}, "w") == [row]


def policy(kafka: MemoryKafka) -> Callable[..., dict[LogPartition, int]]:
    reader = MemoryReader(kafka, committed=False)
    return StartPolicy(
        Shared(), route="main", policy="earliest", topics={"log": 1}, topic_ids={"log": b"id"},
        watermarks=reader.watermarks, replaced=Anchorage(reader).replaced,
    ).resolve  # fmt: skip


def grown_again(kafka: MemoryKafka, cut: int) -> None:
    """The log has lost its end; others have written there since, beyond where it ended."""
    kept = kafka.logs[LOG]
    unit = kept[0].unit
    kafka.logs[LOG] = [*kept[:cut], *(Stored(LOG, n, b"k", b"new %d" % n, [], unit) for n in range(cut, len(kept) + 3))]


def deliver(worker: Worker, first: int, end: int) -> None:
    last = worker.kafka.logs[LOG][end - 1]
    anchors = {LOG: anchor_of(last)}
    worker.delivery.submit(Batch(1, worker.messages[first:end], {LOG: first}, {LOG: end}, {LOG: end}, b"member", anchors=anchors))


def recover(worker: Worker) -> dict[LogPartition, int]:
    return worker.delivery.recover([LOG], [view()], worker.kafka, policy(worker.kafka), {"log": b"id"})


def test_a_topic_route_does_not_read_on_in_a_log_that_was_cut_and_has_grown_beyond_its_position() -> None:
    kafka = MemoryKafka()
    worker = Worker(kafka)
    worker.recover()
    deliver(worker, 0, 4)
    recover(Worker(kafka))  # another one takes over, and stores the position with what lies below it once more
    grown_again(kafka, 2)
    with pytest.raises(Stopped, match="what it has read at 3 is not there any more"):
        recover(Worker(kafka))


def test_what_was_cut_above_the_position_is_nothing_to_it() -> None:
    kafka = MemoryKafka()
    worker = Worker(kafka)
    worker.recover()
    deliver(worker, 0, 4)
    worker.submit(4, 4)  # a batch that knows no anchor keeps the last one
    grown_again(kafka, 4)
    assert recover(Worker(kafka)) == {LOG: 4}


def test_a_position_that_a_person_has_put_back_is_read_from() -> None:
    kafka = MemoryKafka()
    worker = Worker(kafka)
    worker.recover()
    deliver(worker, 0, 4)
    grown_again(kafka, 2)
    kafka.group[LOG] = (2, "")
    assert recover(Worker(kafka)) == {LOG: 2}

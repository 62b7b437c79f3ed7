"""Numbers through a topic route: closed with the delivery or not at all, and what they decide afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from relay.delivery.evidence_reading import MonitorView
from relay.delivery.topic.route import IDLE_S, NEWS_AFTER_S, TopicDelivery
from relay.log.holds import Aborted
from relay.message.envelope import INCARNATION, SEQUENCE, SOURCE
from relay.message.errors import Fenced, MessageRejected, Stopped
from relay.message.numbers import Number, NumberRun, number_of, numbers_of
from relay.message.record import LogPartition
from relay.monitor.entries import decode
from relay.monitor.ranges import RangeEntry, RangeLimits
from tests.unit.memory_kafka import LETTERS, MemoryKafka
from tests.unit.numbered_messages import DAY, KEY, LOG, MONITOR, OTHER, batch, captured, out, start, view


class TopicProcess:
    """A worker's process on a topic route; it starts with an empty index and reads what the monitor still holds."""

    def __init__(
        self,
        kafka: MemoryKafka,
        *,
        stop: bool = False,
        places: tuple[LogPartition, ...] = (LOG,),
        worker: str = "w",
        opened: Callable[[int], MonitorView] = view,
    ) -> None:
        self.views = {p.partition: opened(p.partition) for p in places}
        self.delivery = TopicDelivery(
            kafka, route="main", group_id="g", transactional_id=worker, monitor_topic="monitor", topic="out",
            topic_partitions=1, letters=LETTERS, stop_on_dead=stop,
            limits=RangeLimits(), horizon_s=7 * DAY,
        )  # fmt: skip
        self.delivery.tend(0.0)
        self.delivery.recover(list(places), list(self.views.values()), kafka, start, {"log": b"id"})

    @property
    def ranges(self) -> Any:
        return self.views[0].index.ranges


def keep_only_ranges(kafka: MemoryKafka) -> None:
    """Let the horizon pass: the ranges were written again, everything before them has left the monitor."""
    ranges = [one for one in kafka.visible(MONITOR) if (one.key() or b"")[:1] == b"r"]
    kafka.low[MONITOR] = ranges[-1].offset()


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


def test_a_redrive_delivers_what_was_put_aside_for_its_number() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    put_aside = captured(2, name="other", offset=3)
    process.delivery.submit(batch([captured(n) for n in (1, 2, 3)], 3))
    process.delivery.submit(batch([put_aside], 4, first=3))

    process.delivery.submit(replace(batch([put_aside], 4, first=4, numbered=False), replays={put_aside.digest: 1}))
    again = TopicProcess(kafka)
    again.delivery.submit(batch([put_aside, captured(4, offset=4)], 5, first=4))

    assert out(kafka) == ["i1-0-1", "i1-0-2", "i1-0-3", "other", "i1-0-4"]
    assert (again.delivery.counts.duplicates, again.delivery.counts.conflicts) == (1, 0)


def test_two_ids_under_one_number_in_one_batch_are_a_conflict_too() -> None:
    kafka = MemoryKafka()
    TopicProcess(kafka).delivery.submit(batch([captured(1), captured(1, name="other", offset=1)], 2))

    assert (out(kafka), out(kafka, "dead")) == (["i1-0-1"], ["other"])


def test_beside_conflicts_all_others_are_delivered_and_a_fault_that_was_there_stays() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    process.delivery.submit(batch([captured(n) for n in (1, 2, 3)], 3))

    plain = captured(9, name="plain", capture=None, offset=4)  # a stranger's: only a message of a capture has a number
    unread = captured(3, name="unread", offset=6)._replace(fault=MessageRejected("decode", "schema", "nothing can read it"))
    others = [plain, captured(1, name="elsewhere", incarnation=b"i2", offset=5)]
    conflicts = [captured(n, name=f"other-{n}", offset=6 + n) for n in (1, 2)]
    process.delivery.submit(batch([*others, unread, *conflicts], 9, first=3))

    assert out(kafka) == ["i1-0-1", "i1-0-2", "i1-0-3", "plain", "elsewhere"]
    assert out(kafka, "dead") == ["unread", "other-1", "other-2"]
    assert process.delivery.counts.conflicts == 3
    assert process.delivery.counts.causes == {"schema": 1, "number_conflict": 2}


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
    process.delivery.tend(NEWS_AFTER_S)
    written = len(kafka.logs[MONITOR])

    process.delivery.tend(DAY)
    assert len(kafka.logs[MONITOR]) == written
    process.delivery.tend(2 * DAY + IDLE_S)

    keys = [(one.key() or b"")[:1] for one in kafka.visible(MONITOR)[written:]]
    assert keys == [b"b", b"r", b"s"]
    assert kafka.group[LOG][0] == 1, "the position stays"
    process.delivery.tend(2 * DAY + 2 * IDLE_S)
    assert len(kafka.logs[MONITOR]) == written + 3


def test_after_a_rebalance_in_mid_batch_ranges_store_no_positions_as_the_new_member() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    process.delivery.submit(batch([captured(1)], 1))
    kafka.rebalance()
    kafka.group[LOG] = (7, b"id".hex())

    with pytest.raises(Fenced):
        process.delivery.tend(2 * DAY + IDLE_S)

    assert kafka.group[LOG][0] == 7, "what another member has stored meanwhile stays"


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

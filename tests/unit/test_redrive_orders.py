"""Orders to redrive: what is decided about each message, how the records fold, and what a torn redrive leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Self
from unittest.mock import MagicMock

import pytest

from relay.delivery.batch import Batch
from relay.delivery.queue.route import QueueDelivery
from relay.delivery.table.route import TableDelivery
from relay.delivery.topic.recovery import _next_replays
from relay.message.identity import content_digest
from relay.message.record import LogMessage, LogPartition
from relay.monitor.entries import DEAD, DELIVERED, Begin, InputRange, Page, Proof, SettleSeal
from relay.monitor.evidence import Evidence
from relay.monitor.index import DedupIndex, Standing
from relay.monitor.recovery import settle
from relay.monitor.redrive import ROWS_MAX, Do, Ending, Order, Orders, Wanted, decide, encode, encode_ending
from relay.run.redriving import GONE, OFFSETS_MAX, OTHER_MESSAGE, Redriving
from relay.run.worker import RouteWorker
from tests.memory_index import memory_index
from tests.unit.memory_kafka import LETTERS

PLACE = LogPartition("log", 2)
OWNER, HEIR = b"O" * 16, b"H" * 16


def digest(offset: int) -> bytes:
    return b"%016d" % offset


def page(offsets: list[int], outcome: int, replay: int, instance: bytes = OWNER, n: int = 1, proof: Proof = Proof.PROVEN) -> Page:
    return Page(
        "w", instance, n, proof, None, *PLACE, b"".join(map(digest, offsets)),
        b"".join(content_digest(None, b"%d" % offset) for offset in offsets), offsets,
        bytes([outcome]) * len(offsets), bytes([replay]) * len(offsets),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("standing", "do"),
    [
        (None, Do.REFUSE),
        (Standing(b"", False, 0), Do.REFUSE),
        (Standing(b"", True, 0), Do.REFUSE),
        (Standing(b"", True, 1), Do.DELIVER),
        (Standing(b"", False, 1), Do.REFUSE),
        (Standing(b"", True, 2), Do.DIED),
        (Standing(b"", False, 2), Do.DELIVERED),
        (Standing(b"", True, 3), Do.DIED),
        (Standing(b"", False, 3), Do.DELIVERED),
    ],
)
def test_only_what_is_dead_and_was_redriven_one_time_less_is_delivered(standing: Standing | None, do: Do) -> None:
    found, why = decide(Wanted(7, digest(7), 2), standing)
    assert found is do
    assert bool(why) is (do is Do.REFUSE)


def order(number: int = 1, offsets: tuple[int, ...] = (3, 5), replay: int = 1) -> Order:
    wanted = [Wanted(offset, digest(offset), replay) for offset in offsets]
    return Order(bytes([number]) * 16, "main", PLACE, b"t" * 16, wanted, "ann", 1)


def test_an_order_is_open_until_it_has_an_ending_and_whatever_cannot_be_read_is_passed_over() -> None:
    orders = Orders()
    for key, value in [encode(order(1)), encode(order(2)), (b"redrive/xx", None), (b"redrive/00", b"no"), (b"redriven/00", b"no")]:
        orders.add(key, value)
    assert orders.of("main", {PLACE: 0}) == [order(1), order(2)]
    assert orders.of("other", {PLACE: 0}) == orders.of("main", {LogPartition("log", 3): 0}) == []

    orders.add(*encode_ending(Ending(order(1).id, "w", 1, 2, 0, {})))
    orders.add(*encode(order(1)))  # compaction leaves either
    orders.add(order(2).key, None)

    assert orders.open == {}


def test_compaction_leaves_the_ending_of_each_order() -> None:
    kept = dict([encode(order(1)), encode(order(2)), *(encode_ending(Ending(order(n).id, "w", 1, 2, 0, {})) for n in (1, 2))])

    orders = Orders()
    for key, value in kept.items():
        orders.add(key, value)

    assert orders.open == {}
    assert set(orders.endings) == {order(1).id, order(2).id}


def test_an_order_lies_under_its_own_key_and_its_columns_agree() -> None:
    orders = Orders()
    orders.add(order(2).key, encode(order(1))[1])
    _, value = encode(replace(order(1), wanted=[Wanted(1, b"short", 1)]))
    orders.add(order(1).key, value)
    orders.add(*encode(order(1, tuple(range(ROWS_MAX + 1)))))
    assert orders.open == {}
    orders.add(*encode(order(1, tuple(range(ROWS_MAX)))))
    assert len(orders.open) == 1


def test_the_index_tells_the_dead_and_how_often_they_were_redriven() -> None:
    index = memory_index(2)
    index.add_page(page([1, 2], DEAD, 0))
    index.add_page(page([2], DELIVERED, 1))
    index.add_page(page([2], DEAD, 0))
    assert index.standings([digest(1), digest(2), digest(9)]) == [
        Standing(content_digest(None, b"1"), True, 0), Standing(content_digest(None, b"2"), False, 1), None,
    ]  # fmt: skip


def test_an_output_without_an_entry_is_a_redrive_only_of_what_is_dead() -> None:
    index = memory_index(2)
    index.add_page(page([1, 2, 3], DEAD, 0))
    index.add_page(page([2], DEAD, 1))
    index.add_page(page([3], DELIVERED, 1))
    index.add_page(page([4], DELIVERED, 0))

    assert _next_replays(index, [digest(n) for n in (1, 2, 3, 4, 9)]) == bytes([1, 2, 0, 0, 0])
    assert _next_replays(index, [digest(n) for n in (3, 4, 9)]) == b"", "none is a redrive"


def torn_redrive(*, present: set[bytes], can_tell: bool = True, entered: bool = True) -> DedupIndex:
    """Settle a second redrive that a stray COMMIT tore; return the heir's index."""
    index = memory_index(2)
    index.add_page(page([4], DEAD, 0))
    index.add_page(page([4], DEAD, 1))
    evidence = Evidence(index.add_page, index.void)
    begin = Begin("owner", "t", OWNER, 5, 4, [InputRange(*PLACE, 9, 9)], [])
    evidence.add(0, begin)
    if entered:
        evidence.add(1, page([4], DELIVERED, 2, n=5, proof=Proof.SEALED))
    done = settle(
        begin, evidence.pending(OWNER, 5), present, worker="heir", instance=HEIR, n=1,
        replays=lambda digests: bytes(one.replay + 1 for one in index.standings(digests) if one), can_tell=can_tell,
    )  # fmt: skip
    assert done.seal == SettleSeal("heir", OWNER, 5)
    for number, one in enumerate(done.pages):
        assert (one.topic, one.partition) == PLACE
        evidence.add(10 + number, one)
    evidence.add(20, done.seal)
    return index


@pytest.mark.parametrize("can_tell", [True, False])
@pytest.mark.parametrize("entered", [True, False])
def test_a_torn_redrive_whose_output_is_there_counts_as_the_redrive_it_was(*, entered: bool, can_tell: bool) -> None:
    (standing,) = torn_redrive(present={digest(4)}, can_tell=can_tell, entered=entered).standings([digest(4)])
    assert standing is not None
    assert (standing.is_dead, standing.replay) == (False, 2)


def test_a_torn_redrive_without_its_output_falls_back_to_the_death_before_it() -> None:
    (standing,) = torn_redrive(present=set()).standings([digest(4)])
    assert standing is not None
    assert decide(Wanted(4, digest(4), 2), standing)[0] is Do.DELIVER


def test_a_torn_redrive_of_which_nobody_can_tell_is_not_repeated_by_itself() -> None:
    (standing,) = torn_redrive(present=set(), can_tell=False).standings([digest(4)])
    assert decide(Wanted(4, digest(4), 2), standing)[0] is Do.DIED


class Log:
    """A log partition of messages that say their offset, as control topic and reader."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.compacted: set[int] = set()
        self.widest = 0
        self.news: list[tuple[bytes, bytes | None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def watermarks(self, _: LogPartition) -> tuple[int, int]:
        return self.low, self.high

    def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[list[int]]:
        yield [offset for first, end in ranges.values() for offset in range(first, end)]

    def close(self) -> None:
        pass

    def records(self) -> list[tuple[bytes, bytes | None]]:
        found, self.news = self.news, []
        return found


class Record:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


def redriving(
    log: Log, written: list[tuple[bytes, bytes | None]], entering: AbstractSet[bytes] = frozenset()
) -> Redriving:
    def derive(record: Record, topic: str, partition: int) -> LogMessage:
        offset = record.offset()
        value = b"%d" % (offset if offset != 6 else 0)  # another message lies at 6 by now
        return LogMessage(
            topic, partition, offset, None, value, [], digest(offset), content_digest(None, value), b"", None, 0
        )

    class Reader(Log):
        def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[list[Record]]:  # type: ignore[override]
            ((first, end),) = ranges.values()
            log.widest = max(log.widest, end - first)
            yield [Record(offset) for offset in range(first, end) if offset not in log.compacted]

    return Redriving(
        "main", "w", log, lambda key, value: written.append((key, value)), derive,  # type: ignore[arg-type]
        lambda: Reader(log.low, log.high), lambda: entering, batch_bytes=1000,  # type: ignore[arg-type,return-value]
    )  # fmt: skip


def test_an_order_is_carried_out_in_pieces_and_ended_when_every_message_is_entered() -> None:
    log, written = Log(2, 100), list[tuple[bytes, bytes | None]]()
    index = memory_index(2)
    index.add_page(page([1, 3, 5, 6, 7], DEAD, 0))
    one = redriving(log, written)
    log.news = [encode(order(1, (1, 3, 5, 6, 7, 8)))]

    def turn(now: float) -> list[int]:
        found = one.turn(now, {PLACE: 0}, {2: index}, lambda: {"log": b"t" * 16}, 2)
        assert all(replay == 1 for _, replay in found)
        return [message.offset for message, _ in found]

    assert turn(0.0) == [3, 5]  # 1 has left the log
    assert turn(1.0) == [7]  # at 6 lies another message
    assert turn(2.0) == []
    assert one.is_busy({PLACE: 0})
    index.add_page(page([3, 5], DELIVERED, 1))
    index.add_page(page([7], DEAD, 1))
    assert turn(3.0) == []

    assert not one.is_busy({PLACE: 0})
    told = Orders()
    told.add(*written[0])
    (ending,) = told.endings.values()
    assert (ending.delivered, ending.died, sum(ending.refused.values())) == (2, 1, 3)
    assert written[1] == (order(1).key, None)


def test_what_was_compacted_away_is_refused_and_the_order_ends() -> None:
    log, written = Log(0, 100), list[tuple[bytes, bytes | None]]()
    log.compacted = {3, 5}
    index = memory_index(2)
    index.add_page(page([3, 5], DEAD, 0))
    one = redriving(log, written)
    log.news = [encode(order(1))]
    for now in (0.0, 1.0):
        assert one.turn(now, {PLACE: 0}, {2: index}, lambda: {"log": b"t" * 16}, 10) == []

    told = Orders()
    told.add(*written[0])
    assert told.endings[order(1).id].refused == {GONE: 2}
    assert not one.is_busy({PLACE: 0})
    log.news = written
    one.turn(2.0, {PLACE: 0}, {2: index}, lambda: {"log": b"t" * 16}, 10)
    assert one._orders.endings == {}, "endings are kept for nobody"


def test_messages_that_lie_far_apart_are_not_read_in_one_turn() -> None:
    log = Log(0, 10 * OFFSETS_MAX)
    index = memory_index(2)
    index.add_page(page([3, 9 * OFFSETS_MAX], DEAD, 0))
    one = redriving(log, [])
    log.news = [encode(order(1, (3, 9 * OFFSETS_MAX)))]

    turns = [one.turn(now, {PLACE: 0}, {2: index}, lambda: {"log": b"t" * 16}, 10) for now in (0.0, 1.0)]

    assert [[message.offset for message, _ in found] for found in turns] == [[3], [9 * OFFSETS_MAX]]
    assert log.widest <= OFFSETS_MAX


def test_what_died_is_delivered_although_its_content_is_not_known() -> None:
    log = Log(0, 100)
    index = memory_index(2)
    known = page([3], DEAD, 0)
    index.add_page(replace(known, contents=bytes(len(known.contents))))
    one = redriving(log, [])
    log.news = [encode(order(1, (3,)))]

    found = one.turn(0.0, {PLACE: 0}, {2: index}, lambda: {"log": b"t" * 16}, 10)

    assert [message.offset for message, _ in found] == [3]


def test_a_message_that_an_order_names_twice_is_handed_on_once() -> None:
    log = Log(0, 100)
    index = memory_index(2)
    index.add_page(page([3], DEAD, 0))
    one = redriving(log, [])
    content = content_digest(None, b"3")
    one._derive = lambda record, topic, partition: LogMessage(
        topic, partition, record.offset() or 0, None, b"3", [], digest(3), content, b"", None, 0
    )
    log.news = [encode(replace(order(), wanted=[Wanted(3, digest(3), 1), Wanted(5, digest(3), 1)]))]
    found = one.turn(0.0, {PLACE: 0}, {2: index}, lambda: {"log": b"t" * 16}, 10)
    assert len(found) == 1


def test_after_a_takeover_what_was_handed_on_is_handed_on_again_if_it_is_dead_still() -> None:
    log = Log(0, 100)
    index = memory_index(2)
    index.add_page(page([3, 5], DEAD, 0))
    one = redriving(log, [])
    log.news = [encode(order(1))]

    def turn() -> list[int]:
        return [message.offset for message, _ in one.turn(0.0, {PLACE: 0}, {2: index}, lambda: {"log": b"t" * 16}, 10)]

    assert [turn(), turn()] == [[3, 5], []]
    one.start()
    index.add_page(page([3], DELIVERED, 1))
    assert turn() == [5]


def test_a_message_that_has_another_identity_by_now_is_refused() -> None:
    log, written = Log(0, 100), list[tuple[bytes, bytes | None]]()
    index = memory_index(2)
    index.add_page(page([3], DEAD, 0))
    one = redriving(log, written)
    derive = one._derive
    one._derive = lambda *given: made._replace(digest=digest(99)) if (made := derive(*given)) else None
    log.news = [encode(order(1, (3,)))]
    for now in (0.0, 1.0):
        assert one.turn(now, {PLACE: 0}, {2: index}, lambda: {"log": b"t" * 16}, 10) == []

    told = Orders()
    told.add(*written[0])
    assert told.endings[order(1).id].refused == {OTHER_MESSAGE: 1}


def test_orders_of_other_routes_and_partitions_keep_no_worker_busy() -> None:
    log = Log(0, 100)
    one = redriving(log, [])
    log.news = [encode(replace(order(1), route="other")), encode(replace(order(2), place=LogPartition("log", 3)))]

    assert one.turn(0.0, {PLACE: 0}, {2: memory_index(2)}, lambda: {"log": b"t" * 16}, 10) == []
    assert not one.is_busy({PLACE: 0})


def test_an_order_waits_for_the_one_before_it() -> None:
    log, written = Log(0, 100), list[tuple[bytes, bytes | None]]()
    index = memory_index(2)
    index.add_page(page([3], DEAD, 0))
    one = redriving(log, written)
    log.news = [encode(order(1, (3,), 1)), encode(order(2, (3,), 2))]

    def turn() -> list[tuple[int, int]]:
        found = one.turn(0.0, {PLACE: 0}, {2: index}, lambda: {"log": b"t" * 16}, 10)
        return [(message.offset, replay) for message, replay in found]

    assert [turn(), turn()] == [[(3, 1)], []]
    assert written == [], "the second would skip one"
    index.add_page(page([3], DEAD, 1))
    assert turn() == [(3, 2)]


def test_a_message_whose_entry_is_on_its_way_is_waited_for() -> None:
    log, written, entering = Log(0, 100), list[tuple[bytes, bytes | None]](), {digest(3)}
    index = memory_index(2)
    one = redriving(log, written, entering)
    log.news = [encode(order(1, (3,)))]

    def turn() -> list[int]:
        return [message.offset for message, _ in one.turn(0.0, {PLACE: 0}, {2: index}, lambda: {"log": b"t" * 16}, 10)]

    assert turn() == []
    assert one.is_busy({PLACE: 0}), "whether it is dead is not known yet"
    index.add_page(page([3], DEAD, 0))
    entering.clear()
    assert turn() == [3]
    assert written == []


def test_an_order_for_a_topic_that_was_created_again_is_refused() -> None:
    log, written = Log(0, 100), list[tuple[bytes, bytes | None]]()
    index = memory_index(2)
    index.add_page(page([3, 5], DEAD, 0))
    one = redriving(log, written)
    log.news = [encode(order(1))]
    assert one.turn(0.0, {PLACE: 0}, {2: index}, lambda: {"log": b"other" + b"t" * 11}, 10) == []
    told = Orders()
    told.add(*written[0])
    assert sum(told.endings[order(1).id].refused.values()) == 2


def test_nothing_is_trimmed_while_a_redrive_is_not_entered() -> None:
    parts = MagicMock()
    parts.appends.return_value.acknowledged.return_value = []
    delivery = TableDelivery(
        parts.ports, parts.cursor, parts.sending, parts.appends, route="main", worker_id="w", monitor_topic="m",
        letters=LETTERS, keep_inbox_s=None,
    )  # fmt: skip
    delivery._topics, delivery._views = {"log"}, {2: MagicMock()}
    delivery._trimmable.note({PLACE: 9}, 0.0)
    batch = Batch(1, [], {PLACE: 9}, {PLACE: 9}, {PLACE: 9}, b"", replays={digest(4): 1})

    delivery.submit(batch)
    asked = [name for name, *_ in parts.sending.mock_calls if name in ("forget_trims", "send")]
    assert asked == ["forget_trims", "send"], "what was asked for before is not trimmed behind it either"
    delivery.tend(100.0)
    delivery._under_way.clear()
    delivery._entering.open({PLACE: 9}, is_redriven=True)
    delivery.tend(200.0)
    parts.sending.trim.assert_not_called()

    delivery._entering.clear()
    delivery.tend(300.0)
    parts.sending.trim.assert_called_once_with(PLACE, 9)


def test_a_worker_without_partitions_goes_on_hearing_what_persons_want() -> None:
    """Of two workers of one partition the second has none for weeks, and the clients keep what they say of themselves, until they are asked."""
    followed, queue, worker = MagicMock(), MagicMock(), MagicMock()
    followed.records.return_value = []
    worker._redriving, worker._running = redriving(Log(0, 0), []), {}
    worker._redriving._followed = followed
    worker._destination.listen = lambda: QueueDelivery.listen(queue)
    worker._read.return_value = None
    RouteWorker._turn(worker)
    followed.records.assert_not_called()  # the first time it waits for the brokers, as who is to deliver must
    worker._redriving.hear()

    RouteWorker._turn(worker)

    assert followed.records.call_count == 2
    assert queue._desired.call_count == 2


def test_orders_are_heard_of_while_none_can_be_delivered() -> None:
    """As on a queue that is paused for days: the client that reads them keeps what it says of itself, until it is asked."""
    worker = MagicMock()
    worker._redriving.is_due.return_value = True
    worker._destination.settled.return_value = False

    RouteWorker._redrive(worker, 0.0)

    worker._redriving.hear.assert_called_once_with()
    worker._redriving.turn.assert_not_called()

"""A message that waits longer than the monitor keeps entries costs no repeat: what overtook it is written again in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from relay.audit.evidence import Evidence as Audited
from relay.delivery.batch import Batch
from relay.delivery.topic.carrying import FIRST_LOOK_S, Carrying, Held, Span, carried, spans
from relay.message.errors import Fenced, MessageRejected, RecordRefused, Stopped
from relay.message.record import LogMessage, LogPartition
from relay.monitor.entries import DEAD, DELIVERED, UNKNOWN_OFFSET, Begin, Page, Proof, SettleSeal, decode
from tests.unit.memory_kafka import MemoryKafka
from tests.unit.numbered_messages import DAY, LOG, MONITOR, captured, out
from tests.unit.test_numbered_delivery import TopicProcess

HORIZON = 7 * DAY
QUARTER = HORIZON / 4
COUNT = 8


def plain(offset: int) -> LogMessage:
    """A message without a number: nothing but its entry tells that it is a repeat."""
    return captured(offset + 1, name=f"m-{offset}", offset=offset, capture=None)


OVERTAKING = [plain(offset) for offset in range(1, COUNT)]


def held_back(messages: list[LogMessage], upto: int = COUNT, position: int = 0) -> Batch:
    """What is delivered while the message at the position waits."""
    return Batch(1, messages, {LOG: position}, {LOG: position}, {LOG: upto}, b"member", numbered=False)


class Passing:
    """Time that passes, and the monitor's retention with it: nothing is kept for longer than the horizon."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka
        self.now = 0.0
        self._lengths: list[tuple[float, int]] = []

    def let(self, seconds: float, process: TopicProcess | None, step: float = DAY / 4) -> None:
        until = self.now + seconds
        while self.now < until:
            self._lengths.append((self.now, len(self.kafka.logs.get(MONITOR, []))))
            self.now += step
            if process is not None:
                process.delivery.tend(self.now)
            self.kafka.low[MONITOR] = max((n for at, n in self._lengths if at <= self.now - HORIZON), default=0)


def entries_of(kafka: MemoryKafka) -> list[Any]:
    return [decode(one.key(), one.value()) for one in kafka.visible(MONITOR)]


def carried_pages(kafka: MemoryKafka) -> list[Page]:
    return [one for one in entries_of(kafka) if isinstance(one, Page) and one.proof is Proof.PROVEN]


def pages_ever(kafka: MemoryKafka) -> list[Any]:
    """All entries that were ever written, whether the monitor still has them or not."""
    return [one for one in kafka.logs[MONITOR] if isinstance(decode(one.key(), one.value()), Page)]


def overtaken(kafka: MemoryKafka) -> TopicProcess:
    process = TopicProcess(kafka)
    process.delivery.submit(held_back(OVERTAKING))
    process.delivery.tend(0.0)
    return process


def test_a_monitor_that_does_not_take_what_is_written_again_stops_the_route_with_the_remedy() -> None:
    """Restarts would hide it: each would find it refused only ten minutes later, and what overtook would be forgotten in the end."""
    kafka = MemoryKafka()
    process = overtaken(kafka)

    def refuse(_: str, place: LogPartition, key: bytes | None) -> None:
        if place == MONITOR and (key or b"").startswith(b"e"):
            raise RecordRefused("MSG_SIZE_TOO_LARGE: it is too large")

    kafka.appending = refuse
    process.delivery.tend(1.0)
    with pytest.raises(Stopped, match=r"leaving 'monitor' is refused \(MSG_SIZE_TOO_LARGE.*max.message.bytes"):
        process.delivery.tend(FIRST_LOOK_S + 2.0)


def test_whoever_takes_over_after_the_horizon_repeats_nothing() -> None:
    kafka = MemoryKafka()
    process, time = overtaken(kafka), Passing(kafka)
    before = out(kafka)

    time.let(3 * HORIZON, process)

    late = TopicProcess(kafka)
    late.delivery.submit(held_back([plain(0), *OVERTAKING], position=0))
    assert out(kafka) == [*before, "m-0"]
    assert late.delivery.counts.duplicates == len(OVERTAKING)


def test_takeovers_in_between_do_not_start_the_age_anew() -> None:
    kafka = MemoryKafka()
    process, time = overtaken(kafka), Passing(kafka)

    for _ in range(8):
        time.let(0.7 * HORIZON, process)
        process = TopicProcess(kafka)
        process.delivery.tend(time.now)

    process.delivery.submit(held_back([plain(0), *OVERTAKING]))
    assert out(kafka)[len(OVERTAKING) :] == ["m-0"]


def test_an_entry_stays_what_it_was() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    dead, redriven = plain(3), plain(4)
    fault = MessageRejected("apply", "no", "not this one")
    process.delivery.submit(held_back([plain(2), dead._replace(fault=fault), redriven._replace(fault=fault)], 5))
    process.delivery.submit(replace(held_back([redriven], 0), replays={redriven.digest: 1}))
    digests = [one.digest for one in (plain(2), dead, redriven)]
    before = list(process.views[0].index.held(digests))
    assert [(one.is_dead, one.replay, one.offset) for one in before] == [(False, 0, 2), (True, 0, 3), (False, 1, 4)]

    Passing(kafka).let(2 * HORIZON, process)

    assert list(TopicProcess(kafka).views[0].index.held(digests)) == before
    audited = Audited()
    for entry in entries_of(kafka):
        audited.take(0, entry)
    found = {one.digest: one for one in audited.proven()}
    assert [found[digest].outcome for digest in digests] == [DELIVERED, DEAD, DELIVERED]
    assert [(found[digest].offset, found[digest].group) for digest in digests] == [(2, -1), (3, -1), (4, -1)]


def test_it_is_written_four_times_a_horizon_and_ten_minutes_after_a_takeover() -> None:
    kafka = MemoryKafka()
    process = overtaken(kafka)
    seen = []
    for now in (1.0, FIRST_LOOK_S - 1, FIRST_LOOK_S, FIRST_LOOK_S + 1, QUARTER, FIRST_LOOK_S + QUARTER, 2 * QUARTER):
        process.delivery.tend(now)
        seen.append(len(carried_pages(kafka)))

    assert seen == [0, 0, 1, 1, 1, 2, 2]


def test_what_was_delivered_since_the_last_look_is_young() -> None:
    kafka = MemoryKafka()
    process = overtaken(kafka)
    process.delivery.tend(FIRST_LOOK_S)
    process.delivery.submit(held_back([plain(COUNT)], COUNT + 1))

    process.delivery.tend(FIRST_LOOK_S + QUARTER)
    process.delivery.tend(FIRST_LOOK_S + 2 * QUARTER)

    assert [page.offsets for page in carried_pages(kafka)] == [
        [*range(1, COUNT)], [*range(1, COUNT)], [*range(1, COUNT + 1)]
    ]  # fmt: skip


def test_a_position_that_moves_on_leaves_nothing_to_carry() -> None:
    kafka = MemoryKafka()
    process = overtaken(kafka)
    process.delivery.tend(FIRST_LOOK_S)
    process.delivery.submit(held_back([plain(0)], COUNT, position=COUNT))
    written = len(pages_ever(kafka))

    Passing(kafka).let(2 * HORIZON, process)

    assert len(pages_ever(kafka)) == written > 0
    assert kafka.group[LOG][0] == COUNT


def test_a_transaction_holds_a_bounded_number_and_what_the_position_has_passed_meanwhile_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.delivery.topic.carrying.CARRIED_AT_ONCE", 3)
    kafka = MemoryKafka()
    process = overtaken(kafka)

    process.delivery.tend(FIRST_LOOK_S)
    process.delivery.submit(held_back([plain(0)], COUNT, position=6))
    for second in range(1, 5):
        process.delivery.tend(FIRST_LOOK_S + second)

    assert [page.offsets for page in carried_pages(kafka)] == [[1, 2, 3], [6], [7]]


def test_a_takeover_forgets_what_was_still_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.delivery.topic.carrying.CARRIED_AT_ONCE", 3)
    carrying, kafka = Carrying(HORIZON), MemoryKafka()
    index = overtaken(kafka).views[0]
    names: dict[str, Any] = {"worker": "w", "instance": bytes(16), "n": 1}
    carrying.due(0.0, [index], {LOG: 0}, {LOG: COUNT}, **names)
    assert carrying.due(FIRST_LOOK_S, [index], {LOG: 0}, {LOG: COUNT}, **names)

    carrying.start()

    assert carrying.due(FIRST_LOOK_S + 1, [index], {LOG: 0}, {LOG: COUNT}, **names) == []


def test_after_a_takeover_nothing_is_known_to_be_young() -> None:
    carrying, kafka = Carrying(HORIZON), MemoryKafka()
    process = overtaken(kafka)
    index = process.views[0]
    names: dict[str, Any] = {"worker": "w", "instance": bytes(16), "n": 1}
    carrying.due(0.0, [index], {LOG: 0}, {LOG: COUNT}, **names)
    assert carrying.due(FIRST_LOOK_S, [index], {LOG: 0}, {LOG: COUNT}, **names)
    process.delivery.submit(held_back([plain(COUNT)], COUNT + 1))

    carrying.start()
    carrying.due(HORIZON, [index], {LOG: 0}, {LOG: COUNT + 1}, **names)
    ((_, page),) = carrying.due(HORIZON + FIRST_LOOK_S, [index], {LOG: 0}, {LOG: COUNT + 1}, **names)

    assert list(page.offsets) == [*range(1, COUNT + 1)]


def test_after_a_rebalance_in_mid_batch_nothing_is_carried_as_the_new_member() -> None:
    kafka = MemoryKafka()
    process = overtaken(kafka)
    kafka.rebalance()
    kafka.group[LOG] = (5, b"id".hex())

    with pytest.raises(Fenced):
        process.delivery.tend(FIRST_LOOK_S)

    assert kafka.group[LOG][0] == 5, "what another member has stored meanwhile stays"
    assert carried_pages(kafka) == []


@pytest.mark.parametrize("outputs_are_gone", [False, True])
def test_a_torn_carrying_is_settled_without_asking_the_outputs_and_takes_no_entry_back(outputs_are_gone: bool) -> None:
    kafka = MemoryKafka()
    process, time = overtaken(kafka), Passing(kafka)
    producer = process.delivery._producer
    assert producer is not None

    def torn(*_: Any) -> None:
        kafka.end("w", commit=True)  # a stray COMMIT: the pages show, the offsets and the seal do not follow
        raise Fenced("ended from outside")

    producer._tx.send_offsets = torn  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        process.delivery.tend(FIRST_LOOK_S)
    if outputs_are_gone:
        kafka.low[LogPartition("out", 0)] = len(OVERTAKING)

    heir = TopicProcess(kafka)

    assert heir.delivery.counts.settled == 1
    settled = [one for one in entries_of(kafka) if isinstance(one, SettleSeal)]
    begins = [one for one in entries_of(kafka) if isinstance(one, Begin) and one.n == settled[0].n]
    assert (len(settled), begins[-1].inputs, begins[-1].outputs) == (1, [], [])
    assert not any(isinstance(one, Page) and one.proof is Proof.VOID for one in entries_of(kafka))
    heir.delivery.tend(0.0)
    time.let(2 * HORIZON, heir)
    last = TopicProcess(kafka)
    last.delivery.submit(held_back([plain(0), *OVERTAKING]))
    assert last.delivery.counts.duplicates == len(OVERTAKING)


def test_on_an_idle_route_entries_and_ranges_share_a_transaction() -> None:
    kafka = MemoryKafka()
    process = TopicProcess(kafka)
    process.delivery.submit(replace(held_back([captured(n) for n in (2, 3)], 3), numbered=True))
    process.delivery.tend(0.0)
    written = len(kafka.logs[MONITOR])

    process.delivery.tend(2 * DAY)

    assert [(one.key() or b"")[:1] for one in kafka.visible(MONITOR)[written:]] == [b"b", b"r", b"e", b"s"]


@pytest.mark.parametrize(
    ("positions", "reached", "marks", "expected"),
    [
        ({LOG: 5}, {LOG: 9}, None, Span(5, 1 << 62, True)),
        ({LOG: 5}, {}, None, Span(5, 1 << 62, False)),
        ({LOG: 5}, {LOG: 5}, {LOG: 5}, None),
        ({LOG: 5}, {LOG: 9}, {LOG: 4}, None),
        ({LOG: 5}, {LOG: 9}, {LOG: 8}, Span(5, 8, True)),
    ],
)
def test_due_is_what_lies_between_the_position_and_the_mark(
    positions: Any, reached: Any, marks: Any, expected: Span | None
) -> None:
    assert spans(positions, reached, marks) == ({LOG: expected} if expected else {})


def test_an_entry_of_unknown_offset_is_carried_while_something_is_overtaken() -> None:
    lost = Held(b"d" * 16, "log", UNKNOWN_OFFSET, bytes(8), False, 0)
    stranger = Held(b"e" * 16, "other", 7, bytes(8), False, 0)

    def rows(span: Span) -> list[Page]:
        return carried(iter([lost, stranger]), {"log": span}, 0, worker="w", instance=bytes(16), n=1)

    assert rows(Span(0, 9, False)) == []
    (page,) = rows(Span(0, 9, True))
    assert (page.offsets, page.outcomes) == ([UNKNOWN_OFFSET], bytes([DELIVERED]))


def test_a_worker_whose_partition_is_quiet_for_longer_than_the_horizon_is_still_found_and_fenced() -> None:
    kafka = MemoryKafka()
    quiet, time = TopicProcess(kafka), Passing(kafka)
    before = len(kafka.visible(MONITOR))

    time.let(3 * HORIZON, quiet)

    begins = [one for one in entries_of(kafka) if isinstance(one, Begin)]
    assert 3 <= len(begins) <= 6, "four times a horizon, and the last horizon's are left"
    assert len(kafka.logs[MONITOR]) - before < 30
    TopicProcess(kafka, worker="heir")
    with pytest.raises(Fenced):
        quiet.delivery.submit(held_back([plain(0)], position=0))

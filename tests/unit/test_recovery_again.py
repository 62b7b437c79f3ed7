"""Recovery may be killed at each of its steps, again and again: what it leaves is what one clean run leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from relay.delivery.batch import Batch
from relay.delivery.evidence_reading import MonitorView
from relay.delivery.topic.route import TopicDelivery
from relay.delivery.topic.sealed import SealedProducer, SealedWork
from relay.message.envelope import OUT_DIGEST
from relay.message.errors import Retriable, Stuck, TwinDetected
from relay.message.record import LogMessage, LogPartition
from relay.monitor.entries import Begin, InputRange, decode, pages
from relay.monitor.evidence import Evidence
from relay.monitor.resolution import (
    Answer,
    Kind,
    Resolution,
    Resolutions,
    Told,
    encode,
    encode_answer,
    of_offsets,
)
from relay.world import crash
from tests.memory_index import memory_index
from tests.unit.memory_kafka import LETTERS, MemoryKafka, MemoryTransaction

LOG, OUT, DEAD, MONITOR = (LogPartition(name, 0) for name in ("log", "out", "dead", "monitor"))
COUNT = 12
SURE, SHOWN, ENTERED = 4, 6, 8
"""Below the first all is sealed; a stray COMMIT then showed the outputs up to the second and entries up to the third."""
POINTS = (
    "recovery.started",
    "recovery.fencing",
    "recovery.fenced",
    "recovery.read",
    "recovery.settled",
    "recovery.claiming",
    "sealed.begun",
    "sealed.outputs",
    "sealed.entries",
    "sealed.offsets",
    "sealed.committing",
    "sealed.committed",
    "recovery.claimed",
)


class Killed(BaseException):
    """The process is gone; nothing of it may be used again."""


@contextmanager
def killed_at(name: str) -> Iterator[None]:
    def kill() -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crash, "_name", name)
        patch.setattr(crash, "_count_down", kill)
        yield


def message(offset: int) -> LogMessage:
    return LogMessage("log", 0, offset, b"k", b"v", [], offset.to_bytes(16, "big"), b"c" * 8, b"lane", None, 0)


MESSAGES = [message(offset) for offset in range(COUNT)]


class MemoryBook:
    """The control topic, in memory."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes]] = []
        self._read = Resolutions()

    def read(self) -> Resolutions:
        self._read = Resolutions()
        for key, value in self.records:
            self._read.add(key, value)
        return self._read

    def obey(self, resolution: Resolution, done: str) -> None:
        answer = Answer(resolution.id, "w", 1, done)
        self.records.append(encode_answer(answer))
        self._read.answers.setdefault(resolution.id, []).append(answer)

    def tell(self, told: Told, first: int, following: int) -> None:
        subject = of_offsets(Kind.DELIVERY, "main", LOG, first, following)
        made = Resolution(bytes([len(self.records)]) * 16, subject, told, "ann", "looked", 1, "nothing")
        self.records.append(encode(made))


def work(messages: list[LogMessage], shown: int, producer: SealedProducer, position: int) -> SealedWork:
    entries = pages(messages, worker="x", instance=producer.instance, n=producer.n + 1)
    return SealedWork(
        positions={LOG: position},
        membership=b"",
        inputs=[InputRange("log", 0, messages[0].offset, position)],
        outputs={OUT: messages[:shown]} if shown else {},
        pages=[(page.partition, page) for page in entries],
        claims={0},
        topic_ids={"log": b"id".hex()},
    )


def after_a_stray_commit(kafka: MemoryKafka | None = None) -> MemoryKafka:
    """Worker ``x`` delivered some messages, then a stray COMMIT cut its second transaction off before the offsets.

    Worker ``y`` owned the partition in between and has left a transaction open.
    """
    kafka = kafka or MemoryKafka()
    victim = kafka.transaction("x")
    victim.init()
    producer = SealedProducer(victim, "x", "monitor", {OUT: 0})
    producer.run(work(MESSAGES[:SURE], SURE, producer, SURE))
    cut = work(MESSAGES[SURE:ENTERED], SHOWN - SURE, producer, ENTERED)
    with killed_at("sealed.offsets"), pytest.raises(Killed):
        producer.run(cut)
    kafka.open["x"].offsets.clear()  # cut before the offsets were sent
    kafka.end("x", commit=True)
    other = kafka.transaction("y")
    other.init()
    left = SealedProducer(other, "y", "monitor", {OUT: len(kafka.logs[OUT])})
    with killed_at("sealed.entries"), pytest.raises(Killed):
        left.run(work(MESSAGES[ENTERED:], COUNT - ENTERED, left, COUNT))
    return kafka


class Process:
    """A worker's process: it starts with an empty index and reads everything anew."""

    def __init__(
        self, kafka: MemoryKafka, book: MemoryBook | None = None, kept: dict[str, float] | None = None, **more: Any
    ) -> None:
        self.kafka = kafka
        self.view = view()
        self.delivery = TopicDelivery(
            kafka, route="main", group_id="g", transactional_id="w", monitor_topic="monitor", topic="out",
            topic_partitions=1, letters=LETTERS, stop_on_dead=False, book=book,
            kept=kept, **more,
        )  # fmt: skip

    def recover(self) -> dict[LogPartition, int]:
        return self.delivery.recover(
            [LOG], [self.view], self.kafka, lambda stored, *_: {p: at or 0 for p, at in stored.items()}, {"log": b"id"}
        )

    def deliver(self, first: int) -> None:
        self.delivery.submit(
            Batch(1, MESSAGES[first:], {LOG: first}, {LOG: COUNT}, {LOG: COUNT}, membership=b"member")
        )


def view() -> MonitorView:
    index = memory_index(0)
    return MonitorView(0, index, Evidence(index.add_page, index.void), 0, 0)


def positions(kafka: MemoryKafka) -> dict[LogPartition, int]:
    """The stored positions; their notes name transactions, of which no two are alike."""
    return {place: offset for place, (offset, _) in kafka.group.items()}


def delivered(kafka: MemoryKafka) -> list[int]:
    """The messages that a read_committed reader finds, by the digest that each output carries."""
    return [int(dict(one.headers())[OUT_DIGEST], 16) for one in kafka.visible(OUT)]


def entries(kafka: MemoryKafka) -> dict[int, str | None]:
    """Which messages are proven, and by whose recovery."""
    index = memory_index(0)
    fold = Evidence(index.add_page, index.void)
    who: dict[int, str | None] = {}
    for stored in kafka.visible(MONITOR):
        entry = decode(stored.key(), stored.value())
        assert entry is not None
        fold.add(stored.offset(), entry)
        if hasattr(entry, "recovery"):
            who.update(dict.fromkeys(entry.offsets, entry.recovery))
    assert fold.unsealed() == []
    found = index.find([one.digest for one in MESSAGES])
    return {n: who[n] for n, value in enumerate(found) if value is not None}


def killed_then_clean(kafka: MemoryKafka, points: list[str], book: MemoryBook | None = None) -> int:
    """Kill a recovery at each of these points in turn, each in a process of its own; then recover. Return the kills."""
    kills = 0
    for point in points:
        with killed_at(point):
            try:
                Process(kafka, book).recover()
            except Killed:
                kills += 1
    last = Process(kafka, book)
    starts = last.recover()
    assert kafka.open == {}, "whoever left a transaction open is fenced"
    last.deliver(starts[LOG])
    return kills


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_each_step_it_ends_as_one_clean_run(point: str, times: int) -> None:
    clean = after_a_stray_commit()
    killed_then_clean(clean, [])
    kafka = after_a_stray_commit()

    kills = killed_then_clean(kafka, [point] * times)

    assert kills == times, "the step is there to be killed at"
    assert delivered(kafka) == delivered(clean) == list(range(COUNT))
    assert entries(kafka) == entries(clean)
    assert set(entries(clean)) == set(range(COUNT))
    assert {entries(clean)[n] for n in range(SURE, COUNT)} == {"w"}
    assert positions(kafka) == positions(clean) == {LOG: COUNT}


@pytest.mark.parametrize("seed", range(30))
def test_killed_at_any_steps_in_any_order(seed: int) -> None:
    random = Random(seed)
    kafka = after_a_stray_commit()

    killed_then_clean(kafka, [random.choice(POINTS) for _ in range(random.randrange(1, 8))])

    assert delivered(kafka) == list(range(COUNT))
    assert set(entries(kafka)) == set(range(COUNT))


def test_a_claim_whose_first_position_is_not_stored_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, made = MemoryKafka(), list[MemoryTransaction]()
    with monkeypatch.context() as patch:
        patch.setattr(kafka, "committed", lambda _partitions: {})
        patch.setattr(kafka, "transaction", lambda name: made.append(MemoryTransaction(kafka, name)) or made[-1])
        with pytest.raises(Retriable, match="claims again"):
            Process(kafka).recover()
    assert made
    assert {one._epoch for one in made} == {-1}, "no instance is left, or it would be used again"

    assert Process(kafka).recover() == positions(kafka) == {LOG: 0}


def test_the_position_is_read_once_nobody_can_move_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A predecessor's last commit may be under way until it is fenced: what it moves must not be put back."""
    kafka = MemoryKafka()
    victim = kafka.transaction("x")
    victim.init()
    producer = SealedProducer(victim, "x", "monitor", {OUT: 0})
    producer.run(work(MESSAGES[:SURE], SURE, producer, SURE))
    with killed_at("sealed.committing"), pytest.raises(Killed):
        producer.run(work(MESSAGES[SURE:], COUNT - SURE, producer, COUNT))
    fence = MemoryTransaction.init

    def init(self: MemoryTransaction) -> None:
        kafka.end(self.transactional_id, commit=True)  # the coordinator has its EndTxn already
        fence(self)

    monkeypatch.setattr(MemoryTransaction, "init", init)
    assert Process(kafka).recover() == positions(kafka) == {LOG: COUNT}


def test_the_position_is_read_before_the_end_of_the_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever commits between the two looks has entered what lies above the position that is read: it must be known, too."""
    kafka = MemoryKafka()
    other = kafka.transaction("x")
    other.init()
    producer = SealedProducer(other, "x", "monitor", {OUT: 0})
    producer.run(work(MESSAGES[:SURE], SURE, producer, SURE))
    stored = kafka.committed

    def committed(partitions: Sequence[LogPartition]) -> dict[LogPartition, tuple[int, str]]:
        found = stored(partitions)
        monkeypatch.setattr(kafka, "committed", stored)
        another = kafka.transaction("x")
        another.init()
        again = SealedProducer(another, "x", "monitor", {OUT: SURE})
        again.run(work(MESSAGES[SHOWN:], COUNT - SHOWN, again, SURE))
        return found

    monkeypatch.setattr(kafka, "committed", committed)
    process = Process(kafka)
    process.deliver(process.recover()[LOG])
    assert sorted(delivered(kafka)) == list(range(COUNT))


def test_of_two_processes_of_one_name_the_older_stops_and_the_newer_goes_on() -> None:
    kafka = MemoryKafka()
    older, newer = Process(kafka), Process(kafka)
    for process in (older, newer, newer):
        process.recover()

    with pytest.raises(TwinDetected, match="this older one stops"):
        older.recover()

    newer.deliver(newer.recover()[LOG])
    assert delivered(kafka) == list(range(COUNT))


def test_a_former_process_of_the_same_name_is_no_twin_however_often_recovery_looks() -> None:
    kafka = after_a_stray_commit()
    Process(kafka).recover()
    process = Process(kafka)
    with killed_at("recovery.claimed"), pytest.raises(Killed):
        process.recover()
    another = kafka.transaction("z")  # it must be fenced, and so the begins are read once more
    another.init()
    left = SealedProducer(another, "z", "monitor", {OUT: len(kafka.logs[OUT])})
    with killed_at("sealed.entries"), pytest.raises(Killed):
        left.run(work(MESSAGES[ENTERED:], COUNT - ENTERED, left, COUNT))

    process.deliver(process.recover()[LOG])

    assert delivered(kafka) == list(range(COUNT))


def outputs_have_left() -> MemoryKafka:
    kafka = after_a_stray_commit()
    kafka.low[OUT] = SURE + 1
    return kafka


def test_what_no_evidence_decides_stays_in_doubt_and_is_named() -> None:
    kafka, book = outputs_have_left(), MemoryBook()
    book.tell(Told.COMMIT, SURE, SHOWN)

    with pytest.raises(Stuck, match=f"delivery:main/log/0/{SHOWN}-{ENTERED - 1}") as stuck:
        Process(kafka, book).recover()

    assert (stuck.value.by_person, stuck.value.numbers) == (True, {0})
    assert delivered(kafka) == [SURE + 1], "nothing is guessed; the first offsets have left the output"
    assert kafka.group[LOG][0] == SURE


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("point", [None, *POINTS, "recovery.told"])
def test_what_a_person_decided_holds_whenever_recovery_is_killed(point: str | None, times: int) -> None:
    kafka, book = outputs_have_left(), MemoryBook()
    book.tell(Told.COMMIT, SURE, SHOWN)
    book.tell(Told.ABORT, SHOWN, ENTERED)

    killed_then_clean(kafka, [point] * times if point else [], book)

    assert delivered(kafka) == [SURE + 1, *range(SHOWN, COUNT)], "what happened is not repeated, what did not is done"
    found = entries(kafka)
    assert set(found) == set(range(COUNT))
    assert {found[n] for n in range(SURE, SHOWN)} == {f"w, resolution {'00' * 16}"}


def test_an_obeyed_word_holds_after_its_transaction_was_settled() -> None:
    kafka, book = outputs_have_left(), MemoryBook()
    book.tell(Told.COMMIT, SURE, ENTERED)
    Process(kafka, book).recover()  # and dies before it delivers anything

    killed_then_clean(kafka, [], book)

    assert delivered(kafka) == [SURE + 1, *range(ENTERED, COUNT)]


def test_a_word_that_was_not_obeyed_does_not_override_the_outputs() -> None:
    kafka, book = after_a_stray_commit(), MemoryBook()
    book.tell(Told.COMMIT, SURE, COUNT)

    killed_then_clean(kafka, [], book)

    assert delivered(kafka) == list(range(COUNT))
    assert book.read().answers == {}


def test_the_victims_begin_is_what_was_cut_off() -> None:
    kafka = after_a_stray_commit()
    fold = Evidence()
    for stored in kafka.visible(MONITOR):
        entry = decode(stored.key(), stored.value())
        assert entry is not None
        fold.add(stored.offset(), entry)

    (begin,) = fold.unsealed()
    assert isinstance(begin, Begin)
    assert begin.inputs == [InputRange("log", 0, SURE, ENTERED)]

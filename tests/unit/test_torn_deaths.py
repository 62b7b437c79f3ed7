"""What a stray COMMIT leaves of a death or of a redrive: it is settled as what it was, and a person may redrive it."""

from __future__ import annotations

import pytest

from relay.delivery.batch import Batch
from relay.delivery.deadletter import PREFIX
from relay.message.envelope import DEAD_CODE, REDRIVEN
from relay.message.errors import MessageRejected
from relay.message.identity import content_digest
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD as DIED
from relay.monitor.entries import Page, Proof, encode
from relay.monitor.entries import decode as decoded
from relay.monitor.evidence import Evidence
from relay.monitor.redrive import Do, Wanted, decide
from tests.memory_index import memory_index
from tests.unit.memory_kafka import MemoryKafka, MemoryTransaction
from tests.unit.test_recovery_again import DEAD, LOG, MONITOR, OUT, Killed, Process, killed_at, message

REFUSED = message(1)._replace(fault=MessageRejected("apply", "refused", "no"))


def cut_off(kafka: MemoryKafka) -> None:
    """Let no page of entries arrive: the process dies, and a stray COMMIT ends its transaction."""

    def appending(transactional_id: str, partition: LogPartition, key: bytes | None) -> None:
        if partition == MONITOR and (key or b"").startswith(b"e"):
            kafka.appending = lambda *_: None
            kafka.end(transactional_id, commit=True)
            raise Killed

    kafka.appending = appending


def torn(batch: Batch, *, deaths: int = 0) -> Process:
    """Return the heir of a process that died with this batch; the message died so many times before."""
    kafka = MemoryKafka()
    victim = Process(kafka)
    victim.recover()
    for replay in range(deaths):
        enter_a_death(kafka, victim, replay)
    cut_off(kafka)
    with pytest.raises(Killed):
        victim.delivery.submit(batch)
    assert len(kafka.visible(DEAD)) == 1
    heir = Process(kafka)
    heir.recover()
    return heir


def enter_a_death(kafka: MemoryKafka, process: Process, replay: int) -> None:
    process.view.index.add_page(died(replay))
    earlier = kafka.transaction("earlier")
    earlier.init()
    earlier.produce(MONITOR, *encode(died(replay), replay))
    earlier.commit()


def died(replay: int) -> Page:
    return Page(
        "w", b"E" * 16, 1, Proof.PROVEN, None, *LOG, REFUSED.digest, REFUSED.content, [1], bytes([DIED]), bytes([replay])
    )


def at(position: int, **replays: dict[bytes, int]) -> Batch:
    return Batch(1, [REFUSED], {LOG: position}, {LOG: 2}, {LOG: 2}, membership=b"member", **replays)


def test_a_death_without_its_entry_is_settled_as_a_death() -> None:
    (standing,) = torn(at(1)).view.index.standings([REFUSED.digest])
    assert decide(Wanted(1, REFUSED.digest, 1), standing) == (Do.DELIVER, "")


def test_a_redrive_that_died_without_its_entry_is_not_settled_as_delivered() -> None:
    heir = torn(at(2, replays={REFUSED.digest: 1}), deaths=1)
    (standing,) = heir.view.index.standings([REFUSED.digest])
    assert decide(Wanted(1, REFUSED.digest, 1), standing) == (Do.DIED, "")
    assert decide(Wanted(1, REFUSED.digest, 2), standing) == (Do.DELIVER, "")


@pytest.mark.parametrize("in_log", [True, False])
def test_a_redrive_of_which_nobody_can_tell_may_be_ordered_again_by_its_new_dead_letter(*, in_log: bool) -> None:
    kafka = MemoryKafka()
    victim = Process(kafka)
    victim.recover()
    enter_a_death(kafka, victim, 0)
    good = message(1)._replace(content=content_digest(b"k", b"v"))
    batch = Batch(1, [good], {LOG: 2}, {LOG: 2}, {LOG: 2}, membership=b"member", replays={good.digest: 1})
    with killed_at("sealed.offsets"), pytest.raises(Killed):
        victim.delivery.submit(batch)
    kafka.end("w", commit=True)
    kafka.low[OUT] = 1  # the output, if there was one, has left its topic
    publisher = kafka.transaction("publisher")
    publisher.init()
    for _ in range(2 if in_log else 0):
        publisher.produce(LOG, b"k", b"v", [("ce_id", b"m-1")])
    kafka.end("publisher", commit=True)

    heir = Process(kafka)
    heir.recover()

    (standing,) = heir.view.index.standings([good.digest])
    assert decide(Wanted(1, good.digest, 1), standing)[0] is Do.DIED, "nobody repeats it by himself"
    (letter,) = kafka.visible(DEAD)
    assert letter.key() == good.digest.hex().encode()
    assert letter.value() == (b"v" if in_log else None)
    ordered = int(dict(letter.headers())[PREFIX + "replay_count"] or b"") + 1
    assert decide(Wanted(1, good.digest, ordered), standing)[0] is Do.DELIVER, "a person may"


def test_a_letter_is_taken_back_behind_the_output_that_makes_it_void() -> None:
    kafka = MemoryKafka()
    victim = Process(kafka)
    victim.recover()
    enter_a_death(kafka, victim, 0)

    def dies_at_the_output(transactional_id: str, partition: LogPartition, _key: bytes | None) -> None:
        if partition == OUT:
            kafka.appending = lambda *_: None
            kafka.end(transactional_id, commit=True)  # a stray COMMIT shows what lies before it
            raise Killed

    kafka.appending = dies_at_the_output
    good = message(1)
    with pytest.raises(Killed):
        victim.delivery.submit(Batch(1, [good], {LOG: 2}, {LOG: 2}, {LOG: 2}, membership=b"member", replays={good.digest: 1}))

    assert kafka.visible(OUT) == []
    assert [dict(one.headers()).get(DEAD_CODE) for one in kafka.visible(DEAD)] != [REDRIVEN.encode()]


def test_no_output_is_written_before_the_dead_letters_and_their_entries_are_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stray COMMIT would else show what lies behind a death in its lane, and not the death, which may end otherwise later."""
    kafka = MemoryKafka()
    process = Process(kafka)
    process.recover()
    unacknowledged: list[LogPartition] = []
    before_outputs: list[list[LogPartition]] = []

    def appending(_transactional_id: str, partition: LogPartition, _key: bytes | None) -> None:
        if partition == OUT:
            before_outputs.append(list(unacknowledged))
        unacknowledged.append(partition)

    kafka.appending = appending
    monkeypatch.setattr(MemoryTransaction, "flush", lambda _: unacknowledged.clear())
    process.delivery.submit(Batch(1, [REFUSED, message(2)], {LOG: 1}, {LOG: 3}, {LOG: 3}, membership=b"member"))

    assert kafka.visible(DEAD)
    assert before_outputs == [[]]


def test_entries_of_deaths_and_of_deliveries_in_one_transaction_outlive_compaction() -> None:
    kafka = MemoryKafka()
    process = Process(kafka)
    process.recover()
    process.delivery.submit(Batch(1, [REFUSED, message(2)], {LOG: 1}, {LOG: 3}, {LOG: 3}, membership=b"member"))
    kept = {one.key(): one for one in kafka.visible(MONITOR)}
    kafka.logs[MONITOR] = [one for one in kafka.logs[MONITOR] if kept.get(one.key()) is one]

    evidence = memory_index(0)
    folded = Evidence(evidence.add_page, evidence.void)
    for one in kafka.visible(MONITOR):
        entry = decoded(one.key(), one.value())
        assert entry is not None
        folded.add(one.offset(), entry)
    dead, delivered = evidence.standings([REFUSED.digest, message(2).digest])
    assert dead is not None
    assert dead.is_dead
    assert delivered is not None
    assert not delivered.is_dead

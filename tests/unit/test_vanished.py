"""A commit whose marker the monitor never got: what an abort takes there, the note beside the position still tells."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from relay.audit.evidence import Evidence as AuditEvidence
from relay.delivery.batch import Batch
from relay.delivery.topic import sightings
from relay.delivery.topic.position_note import PositionNote, committed_by, read_note
from relay.delivery.topic.sealed import SealedProducer
from relay.message.errors import NAMESAKE_REMEDY, InDoubt, Stopped
from relay.message.record import LogPartition
from relay.monitor.entries import decode, pages
from tests.unit.test_recovery_again import LOG, MONITOR, OUT, Killed, delivered, killed_at, message, work
from tests.unit.test_recovery_again import entries as entered
from tests.unit.test_unshown import DEAD, LeftOut, Worker, letters

TRANSACTION = bytes(range(16)), 7


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sightings, "MONITOR_WAIT_S", 0.01)


def last_of(worker: Worker, kafka: LeftOut, left_out: Collection[LogPartition], position: int = 6) -> None:
    """The worker delivers what is left, unseen in some places, and dies before it saw its seal."""
    kafka.left_out = set(left_out)
    with pytest.raises(InDoubt):
        worker.delivery.submit(Batch(1, worker.messages[3:], {LOG: 3}, {LOG: position}, {LOG: 6}, b"member"))
    kafka.left_out = set()
    kafka.late_request()


def begun(bad: Collection[int] = ()) -> tuple[Worker, LeftOut]:
    kafka = LeftOut()
    worker = Worker(kafka, bad=bad)
    worker.recover()
    worker.submit(0, 3)
    return worker, kafka


def test_what_vanished_from_output_and_monitor_is_written_again() -> None:
    worker, kafka = begun()
    last_of(worker, kafka, {OUT, MONITOR})
    assert delivered(kafka) == [0, 1, 2]
    assert kafka.group[LOG][0] == 6

    for _ in range(2):
        Worker(kafka).recover_for_good()

        assert delivered(kafka) == list(range(6))
        assert set(entered(kafka)) == set(range(6))
    assert kafka.group[LOG][0] == 6


def test_so_is_a_dead_letter() -> None:
    worker, kafka = begun(bad={4})
    last_of(worker, kafka, {OUT, DEAD, MONITOR})

    Worker(kafka, bad={4}).recover_for_good()

    assert delivered(kafka) == [0, 1, 2, 3, 5]
    assert letters(kafka) == [(4, "no_id")]


def test_what_shows_above_the_position_is_not_delivered_again() -> None:
    worker, kafka = begun()
    last_of(worker, kafka, {MONITOR}, position=3)  # an undecided capture holds the position back
    heir = Worker(kafka)

    heir.recover_for_good()
    heir.submit(3, 6)

    assert delivered(kafka) == list(range(6))
    assert set(entered(kafka)) == set(range(6))


def claim_vanishes(kafka: LeftOut, left_out: set[LogPartition], bad: Collection[int] = ()) -> None:
    """An heir claims, unseen in some places, and dies before it saw its seal."""
    kafka.left_out = left_out
    with killed_at("sealed.committed"), pytest.raises(Killed):
        Worker(kafka, bad=bad).recover_for_good()
    kafka.left_out = set()
    kafka.late_request()


@pytest.mark.parametrize("left_out", [{OUT, MONITOR}, {MONITOR}])
@pytest.mark.parametrize("first_left_out", [{OUT, MONITOR}, {MONITOR}])
def test_a_claim_that_vanishes_as_well_is_mended_with_what_it_had_mended(
    first_left_out: set[LogPartition], left_out: set[LogPartition]
) -> None:
    worker, kafka = begun()
    last_of(worker, kafka, first_left_out)
    claim_vanishes(kafka, left_out)

    Worker(kafka).recover_for_good()

    assert delivered(kafka) == list(range(6))
    assert set(entered(kafka)) == set(range(6))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("left_out", [{OUT, MONITOR}, {MONITOR}])
def test_what_a_vanished_claim_has_settled_and_written_is_not_written_once_more(left_out: set[LogPartition], times: int) -> None:
    kafka = LeftOut()
    victim = kafka.transaction("x")
    messages = Worker(kafka).messages
    victim.init()
    producer = SealedProducer(victim, "x", "monitor", {OUT: 0})
    with killed_at("sealed.offsets"), pytest.raises(Killed):
        producer.run(work(messages, 6, producer, 6))
    kafka.left_out = {OUT}
    kafka.end("x", commit=True)  # a stray one, behind the offsets
    kafka.left_out = set()
    kafka.late_request()
    for _ in range(times):
        claim_vanishes(kafka, left_out)

    Worker(kafka).recover_for_good()

    assert delivered(kafka) == list(range(6))
    assert set(entered(kafka)) == set(range(6))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("low", [0, 5])
def test_letters_that_a_vanished_claim_has_written_are_not_written_once_more(low: int, times: int) -> None:
    worker, kafka = begun(bad={4})
    kafka.left_out = {OUT, DEAD}
    worker.submit(3, 6)
    kafka.left_out = set()
    kafka.late_request()
    kafka.low[LOG] = low
    for _ in range(times):
        claim_vanishes(kafka, {MONITOR}, bad={4})

    Worker(kafka, bad={4}).recover_for_good()

    assert letters(kafka) == ([(3, "output_lost"), (4, "letter_lost")] if low else [(4, "no_id")])
    assert delivered(kafka) == ([0, 1, 2, 5] if low else [0, 1, 2, 3, 5])


@pytest.mark.parametrize("left_out", [{OUT, MONITOR}, {MONITOR}])
def test_a_redrive_that_a_vanished_claim_has_written_beside_others_is_there_once(left_out: set[LogPartition]) -> None:
    worker, kafka = begun(bad={1})
    worker.messages[1] = message(1)
    kafka.left_out = {OUT}
    redriven = {worker.messages[1].digest: 1}
    worker.delivery.submit(Batch(1, [worker.messages[1]], {LOG: 3}, {LOG: 3}, {LOG: 3}, b"member", replays=redriven))
    worker.submit(3, 6)
    kafka.left_out = set()
    kafka.late_request()
    claim_vanishes(kafka, left_out)

    Worker(kafka).recover_for_good()

    assert sorted(delivered(kafka)) == list(range(6))


def test_auditors_take_what_is_written_again_for_the_later_word() -> None:
    """They fold by offset: what a settlement takes back lies before what is dead by now."""
    worker, kafka = begun(bad={4})
    last_of(worker, kafka, {OUT, DEAD, MONITOR})
    Worker(kafka, bad={4}).recover_for_good()
    evidence = AuditEvidence()
    for stored in kafka.visible(MONITOR):
        entry = decode(stored.key(), stored.value())
        assert entry is not None
        evidence.take(0, entry)

    assert {one.offset: one.outcome for one in evidence.proven()} == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 0}


def test_what_a_person_said_was_delivered_is_not_written_now() -> None:
    kafka = LeftOut()
    heir = Worker(kafka)
    former = kafka.transaction("x")
    former.init()
    producer = SealedProducer(former, "x", "monitor", {OUT: 0})
    told = pages(heir.messages, worker="x", instance=producer.instance, n=1, recovery="x, R1")
    done = replace(work(heir.messages, 0, producer, 6), pages=[(page.partition, page) for page in told])
    kafka.left_out = {MONITOR}
    producer.run(done)
    kafka.left_out = set()
    kafka.late_request()

    heir.recover_for_good()

    assert delivered(kafka) == []
    assert set(entered(kafka)) == set(range(6))


def test_what_was_aborted_everywhere_is_delivered_by_whoever_comes() -> None:
    """No position names it."""
    worker, kafka = begun()
    with killed_at("sealed.committing"), pytest.raises(Killed):
        worker.submit(3, 6)
    heir = Worker(kafka)

    heir.recover_for_good()
    assert delivered(kafka) == [0, 1, 2]
    heir.submit(3, 6)

    assert delivered(kafka) == list(range(6))


@pytest.mark.parametrize("left_out", [{MONITOR}, {MONITOR, DEAD}])
def test_what_shows_is_not_delivered_again_although_the_position_hung_as_well(left_out: set[LogPartition]) -> None:
    worker, kafka = begun(bad={4})
    stored = kafka.group[LOG]
    last_of(worker, kafka, left_out)
    kafka.group[LOG] = stored  # what hung was aborted
    heir = Worker(kafka, bad={4})

    heir.recover_for_good()
    heir.submit(3, 6)

    assert delivered(kafka) == [0, 1, 2, 3, 5]
    assert letters(kafka) == [(4, "no_id")]
    assert set(entered(kafka)) == set(range(6))


@pytest.mark.parametrize("note", ["", b"id".hex()], ids=["a person's", "an earlier version's"])
def test_a_position_that_names_nobody_is_taken_as_it_is(note: str) -> None:
    _, kafka = begun()
    kafka.group[LOG] = kafka.group[LOG][0], note
    heir = Worker(kafka)

    heir.recover_for_good()
    heir.submit(3, 6)

    assert delivered(kafka) == list(range(6))


def test_a_position_of_another_topic_stops() -> None:
    _, kafka = begun()
    kafka.group[LOG] = 3, PositionNote(b"other".hex(), *TRANSACTION).text

    with pytest.raises(Stopped, match=f"deleted and created again.*{NAMESAKE_REMEDY}"):
        Worker(kafka).recover()


def test_a_note_says_the_topic_and_who_stored_the_position() -> None:
    note = PositionNote("00ff", *TRANSACTION)

    assert read_note(note.text) == note
    assert committed_by({LOG: (3, note.text), OUT: (5, "00ff"), DEAD: (1, "")}) == {TRANSACTION}


@pytest.mark.parametrize("text", ["", "00ff", "00ff:", "00ff:zz:1", "00ff:aa:one", "00ff:aa:1:2", ":::"])
def test_what_is_no_note_names_no_transaction(text: str) -> None:
    assert read_note(text) == PositionNote(text.partition(":")[0])
    assert committed_by({LOG: (3, text)}) == set()

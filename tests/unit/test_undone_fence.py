"""A client for each transaction undoes a fence: a former owner begins behind the claim of whoever took over."""

from __future__ import annotations

import pytest

from relay.delivery.topic import sightings
from relay.delivery.topic.sealed import SealedProducer
from tests.unit.test_recovery_again import MONITOR, OUT, Killed, delivered, entries, killed_at, work
from tests.unit.test_unshown import LeftOut, Worker
from tests.unit.test_vanished import last_of


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sightings, "MONITOR_WAIT_S", 0.01)


def frozen(kafka: LeftOut) -> SealedProducer:
    """Another worker delivers the first three, stands still, and does not notice that it is fenced."""
    transaction = kafka.transaction("x")
    transaction.init()
    former = SealedProducer(transaction, "x", "monitor", {OUT: 0})
    former.run(work(Worker(kafka).messages[:3], 3, former, 3))
    return former


def begins_late(kafka: LeftOut, former: SealedProducer) -> None:
    """It wakes, its new client undoes the fence, and the group refuses its offsets; then it dies."""
    former._tx.init()
    with killed_at("sealed.announced"), pytest.raises(Killed):
        former.run(work(Worker(kafka).messages[3:], 3, former, 6))
    kafka.end("x", commit=False)


def test_what_the_new_owner_lost_is_found_although_the_former_one_began_behind_it() -> None:
    kafka = LeftOut()
    former = frozen(kafka)
    heir = Worker(kafka)
    heir.recover()
    kafka.left_out = {OUT}
    heir.submit(3, 6)
    kafka.left_out = set()
    kafka.late_request()
    begins_late(kafka, former)

    Worker(kafka).recover_for_good()

    assert delivered(kafka) == list(range(6))


def test_a_claim_that_vanished_is_found_although_the_former_owner_began_behind_it() -> None:
    kafka = LeftOut()
    former = frozen(kafka)
    heir = Worker(kafka)
    heir.recover()
    last_of(heir, kafka, {OUT, MONITOR})
    begins_late(kafka, former)

    Worker(kafka).recover_for_good()

    assert delivered(kafka) == list(range(6))
    assert set(entries(kafka)) == set(range(6))

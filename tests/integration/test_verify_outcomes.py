"""`relay verify` tells a message with two outcomes, and a death without a letter, from redrives and from what retention took."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from relay.audit import letters
from relay.message.record import LogPartition
from relay.monitor import redrive
from relay.monitor.entries import DEAD, DELIVERED, Begin, InputRange, OutputStart, Page, Proof, Seal
from tests.integration.audit_site import Site, digest, offender, wrong
from tests.routes import delete_below


@pytest.fixture
def both(make_site: Callable[..., Site]) -> Site:
    """A route that has delivered m0, and has a dead letter of it as well."""
    site = make_site()
    site.write(site.log, 0)
    site.write(site.output, 0)
    site.dead(digest(0))
    site.stand_at(1, 0)
    return site


def order(site: Site, number: int, replay: int) -> redrive.Order:
    """Order a redrive of a message as `relay deadletter redrive` does."""
    wanted = [redrive.Wanted(number, digest(number), replay)]
    made = redrive.Order(os.urandom(16), "main", LogPartition(site.log, 0), site.topic_id, wanted, "a person", 0)
    key, value = redrive.encode(made)
    site.producer.produce(site.config.control_topic, key=key, value=value)
    assert site.producer.flush(30) == 0
    return made


def test_an_effect_beside_a_dead_letter_that_stands_is_a_second_outcome(both: Site) -> None:
    report = both.audit()

    assert wrong(report) == {"duplicates": 1}
    assert offender(report, "duplicates") == (f"{both.log}[0]@0", "m0", "/a")
    assert "dead letter" in report.offences[0].why


def test_a_redrive_takes_the_death_back(both: Site) -> None:
    both.dead(digest(0), code="redriven", replay=1)

    assert wrong(both.audit()) == {}
    both.dead(digest(0), replay=2)  # another redrive, in which it died: what was delivered before stands beside that
    assert wrong(both.audit()) == {"duplicates": 1}


def test_a_redrive_that_a_recovery_found_done_needs_no_record_that_takes_the_letter_back(both: Site) -> None:
    done = Page("w", bytes(16), 1, Proof.PROVEN, "w", both.log, 0, digest(0), bytes(8), [0], bytes([DELIVERED]))
    both.record(done)
    assert wrong(both.audit()) == {"duplicates": 1}

    both.record(Page(*(getattr(done, name) for name in list(Page.__slots__)[:11]), replays=bytes([1])))
    assert wrong(both.audit()) == {}


def test_what_takes_the_letter_back_may_lag_behind_the_effect_of_a_redrive_under_way(both: Site) -> None:
    made = order(both, 0, 1)
    assert wrong(both.audit()) == {"unseen": 1}

    both.producer.produce(both.config.control_topic, key=made.key, value=None)
    assert both.producer.flush(30) == 0
    assert wrong(both.audit()) == {"duplicates": 1}


def test_an_order_that_does_not_follow_the_letter_excuses_nothing(both: Site) -> None:
    both.dead(digest(0), replay=3)
    order(both, 0, 3)

    assert wrong(both.audit()) == {"duplicates": 1}


def test_a_letter_that_says_that_nobody_can_tell_is_no_second_outcome(both: Site) -> None:
    both.dead(digest(0), code="untold", replay=1)

    assert wrong(both.audit()) == {}


@pytest.fixture
def trimmed(make_site: Callable[..., Site], kafka_admin: AdminClient) -> Site:
    """A route that has passed m0, and whose dead-letter topic has forgotten the only letter that it had."""
    site = make_site()
    site.write(site.log, 0)
    site.stand_at(1, 0)
    site.dead(digest(100))
    delete_below(kafka_admin, site.config.deadletter_topic, 1)
    return site


def death(
    site: Site, *, number: int = 0, proof: Proof = Proof.SEALED, recovery: str | None = None, instance: bytes = bytes(16)
) -> Page:
    return Page("w", instance, 1, proof, recovery, site.log, 0, digest(number), bytes(8), [number], bytes([DEAD]))


def die(site: Site, *starts: int, number: int = 0, recovery: str | None = None) -> None:
    """Record a death in a sealed transaction whose letter lies at one of these offsets, or above."""
    instance = os.urandom(16)
    outputs = [OutputStart(site.config.deadletter_topic, 0, start) for start in starts]
    site.record(
        Begin("w", "t", instance, 1, -1, [InputRange(site.log, 0, 0, 1)], outputs),
        death(site, number=number, recovery=recovery, instance=instance),
        Seal("w", instance, 1),
    )


def test_a_death_whose_letter_lies_above_what_was_trimmed_needs_its_letter(trimmed: Site) -> None:
    die(trimmed, 1)

    report = trimmed.audit()

    assert wrong(report) == {"lost": 1}
    assert report.offences[0].why == "recorded as dead, but there is no dead letter of it"
    trimmed.dead(digest(0))
    assert wrong(trimmed.audit()) == {}


def test_a_death_whose_transaction_named_no_place_for_a_letter_never_had_one(trimmed: Site) -> None:
    die(trimmed)

    assert wrong(trimmed.audit()) == {"lost": 1}


def test_a_death_whose_letter_may_have_been_trimmed_is_believed(trimmed: Site) -> None:
    die(trimmed, 0)
    assert wrong(trimmed.audit()) == {}


def test_a_death_that_a_recovery_entered_is_believed_whenever_that_was(trimmed: Site) -> None:
    die(trimmed, 1, recovery="w2")  # settled long after its letter, maybe
    trimmed.dead(digest(101))
    assert wrong(trimmed.audit()) == {}


def test_a_death_later_than_the_oldest_letter_that_is_left_needs_its_letter(
    trimmed: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed.record(death(trimmed, proof=Proof.PROVEN))  # a table route's: no begin tells where its letter may lie
    assert wrong(trimmed.audit()) == {}, "nothing is left to compare it with"
    trimmed.dead(digest(101))
    trimmed.record(death(trimmed, proof=Proof.PROVEN, instance=bytes([1]) * 16))

    assert wrong(trimmed.audit()) == {}, "brokers' clocks may differ by more than that"
    monkeypatch.setattr(letters, "SLACK_MS", -1)
    assert wrong(trimmed.audit()) == {"lost": 1}

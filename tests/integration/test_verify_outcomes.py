"""`relay verify` tells a message with two outcomes from one that was redriven."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from relay.message.record import LogPartition
from relay.monitor import redrive
from relay.monitor.entries import DELIVERED, Page, Proof
from tests.integration.audit_site import Site, digest, offender, wrong


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

"""`relay verify` after a route was changed: what it delivered before, from another topic or by another name, is no phantom."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from relay.audit.verify import verify
from relay.config.loading import load
from relay.message.record import LogMessage
from relay.monitor.entries import (
    DEAD,
    DELIVERED,
    SKIPPED,
    UNKNOWN_OFFSET,
    Entry,
    Page,
    Proof,
    Seal,
    pages,
)
from relay.setup.migrate import migrate
from tests.cluster_changes import make_topics
from tests.integration.audit_site import Site, digest, wrong
from tests.routes import delete_below


def delivered(topic: str, *numbers: int, outcome: int = DELIVERED) -> list[Entry]:
    """What a monitor says of messages that lay in this topic."""
    instance = os.urandom(16)
    messages = [
        LogMessage(topic, 0, number, b"k", b"v", [], digest(number), b"c" * 8, b"lane", None, 0) for number in numbers
    ]
    said = pages(messages, worker="w", instance=instance, n=1, outcomes=bytes([outcome] * len(messages)))
    return [*said, Seal("w", instance, 1)]


@contextmanager
def a_route_beside(site: Site, log: str) -> Iterator[None]:
    """A second route into the output, from another log."""
    path = site.config.path
    path.write_text(f'{path.read_text()}\n[routes.beside]\nfrom = ["{log}"]\nto = {{ topic = "{site.output}" }}\n')
    site.config = load(path)
    migrate(site.config)
    yield
    monitor, admin = site.config.monitor_topic("beside"), AdminClient({"bootstrap.servers": site.kafka})
    admin.delete_topics([monitor])[monitor].result(30)


def by(entries: list[Entry]) -> dict[str, str]:
    """What an output says of the transaction that these entries are of."""
    (page,) = (entry for entry in entries if isinstance(entry, Page))
    return {"relay_instance": page.instance.hex(), "relay_n": str(page.n)}


def test_what_came_from_a_topic_that_the_route_reads_no_more_is_no_phantom(make_site: Callable[..., Site]) -> None:
    site = make_site()
    site.write(site.log, 1)
    for number in (1, 2, 3):
        site.write(site.output, number)
    site.record(*delivered("returns", 2))
    site.stand_at(1, 0)

    report = site.audit()

    assert wrong(report) == {"phantoms": 1}, "of the third nobody knows"
    assert report.findings.expired == 1


@pytest.mark.parametrize("outcome", [DEAD, SKIPPED])
def test_an_effect_of_what_was_never_delivered_is_a_phantom_also_when_its_message_has_left(
    make_site: Callable[..., Site], outcome: int
) -> None:
    site = make_site()
    site.write(site.log, 1)
    for number in (1, 2):
        site.write(site.output, number)
    site.record(*delivered("returns", 2, outcome=outcome))
    site.stand_at(1, 0)

    report = site.audit()

    assert (wrong(report), report.findings.expired) == ({"phantoms": 1}, 0)


def starts_at(site: Site, topic_id: str) -> None:
    """Let the route have started from the log's beginning, when its topic had this id."""
    recorded = {"policy": "earliest", "starts": {f"{site.log}/{topic_id}": {"0": 0, "1": 0}}}
    site.producer.produce(site.config.control_topic, key=b"start/main", value=json.dumps(recorded))
    assert site.producer.flush(30) == 0


@pytest.mark.parametrize("made_again", [True, False])
def test_what_came_from_a_log_that_was_made_again_under_its_name_is_no_phantom(make_site: Callable[..., Site], made_again: bool) -> None:
    site = make_site()
    starts_at(site, "0" * 32 if made_again else site.topic_id.hex())
    site.write(site.log, 1)
    for number in (2, 3):
        site.write(site.output, number)
    site.record(*delivered(site.log, 2))

    report = site.audit()

    assert wrong(report) == {"phantoms": 1 if made_again else 2, "unseen": 1}, "of the third nobody knows"
    assert report.findings.expired == made_again


def test_a_route_that_never_ran_is_not_credited_with_what_it_finds(make_site: Callable[..., Site]) -> None:
    site = make_site()
    for topic in (site.log, site.output):
        site.write(topic, 1)
    said = "nothing tells that this route ever ran"

    before = site.audit()
    starts_at(site, site.topic_id.hex())
    site.stand_at(1, 0)
    after = site.audit()

    assert [(wrong(one), any(note.startswith(said) for note in one.findings.notes)) for one in (before, after)] == [
        ({}, True), ({}, False),
    ]  # fmt: skip


def test_what_a_route_delivered_under_its_former_name_is_no_phantom(
    make_site: Callable[..., Site], kafka_admin: AdminClient
) -> None:
    site = make_site()
    site.write(site.log, 1)
    for number in (1, 2, 3, 1):
        site.write(site.output, number)
    site.stand_at(1, 0)
    former = f"{site.config.relay.name}.before.monitor"
    make_topics(kafka_admin, NewTopic(former, 1))
    site.monitor = former
    site.record(*delivered("deleted", 1, 2))
    try:
        report = site.audit()
    finally:
        kafka_admin.delete_topics([former])[former].result(30)

    # Once more under the new name, a message has two effects in the topic all the same.
    assert wrong(report) == {"phantoms": 1, "duplicates": 1}
    assert report.findings.expired == 1


@pytest.mark.parametrize("is_former", [False, True])
def test_what_another_routes_monitor_has_forgotten_is_no_phantom_here(
    make_site: Callable[..., Site], make_topic: Callable[..., str], kafka_admin: AdminClient, *, is_former: bool
) -> None:
    """Each monitor is trimmed on its own: a quiet route's may be whole, and its neighbour's in the same output not, or that of a former route."""
    site = make_site()
    other = make_topic(1)
    alone = site.config.path.read_text()
    with a_route_beside(site, other):
        own, theirs = delivered(site.log, 1), delivered(other, 2)
        site.write(site.log, 1)
        site.write(site.output, 1, **by(own))
        site.write(site.output, 2, **by(theirs))
        site.record(*own)
        site.monitor = site.config.monitor_topic("beside")
        site.record(*theirs)
        site.stand_at(1, 0)
        if is_former:
            site.config.path.write_text(alone)
            site.config = load(site.config.path)
        (before,) = verify(site.config, ["main"])
        delete_below(kafka_admin, site.monitor, 2)
        (report,) = verify(site.config, ["main"])
        site.write(site.output, 3, **by(own))
        site.write(site.output, 4)
        (spoilt,) = verify(site.config, ["main"])
        site.record(*delivered(other, 2))  # carried on by a later instance
        (carried,) = verify(site.config, ["main"])

    found = [(wrong(one), one.findings.forgotten, one.findings.expired) for one in (before, report, spoilt, carried)]
    told = ({"phantoms": 2}, 0, 1) if is_former else ({"phantoms": 2}, 1, 0)
    assert found == [({}, 0, int(is_former)), ({}, 1, 0), ({"phantoms": 2}, 1, 0), told]
    assert any("1 effects are of workers that no monitor tells of any more" in note for note in report.findings.notes)


@pytest.mark.parametrize("has_left", [True, False])
def test_what_a_settlement_found_in_the_output_alone_is_no_phantom_once_its_message_has_left(
    make_site: Callable[..., Site], kafka_admin: AdminClient, *, has_left: bool
) -> None:
    """Such an entry does not know where its message lay."""
    site = make_site()
    if has_left:
        site.write(site.log, 1)
        site.write(site.log, 2)
        delete_below(kafka_admin, site.log, 2)
    for number in (2, 3):
        site.write(site.output, number)
    (page, seal) = delivered(site.log, 2)
    assert isinstance(page, Page)
    site.record(replace(page, proof=Proof.PROVEN, recovery="w", offsets=[UNKNOWN_OFFSET]), seal)
    site.stand_at(2 if has_left else 0, 0)

    report = site.audit()

    assert wrong(report) == {"phantoms": 1 if has_left else 2}, "of the third nobody knows"
    assert report.findings.expired == has_left

"""The audit job finds what plain clients planted, and says of it what `relay verify` says, number for number."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from relay.audit.verify import COUNTS, MORE_COUNTS, verify
from relay.local import spark
from relay.message import identity
from relay.monitor.entries import (
    DEAD,
    DELIVERED,
    UNKNOWN_OFFSET,
    Begin,
    InputRange,
    Page,
    Proof,
    Seal,
    encode,
)
from tests.cluster_changes import make_topics
from tests.integration.audit_site import TABLE_ROUTE, TOPIC_ROUTE, Site, digest
from tests.integration.test_verify_changed import a_route_beside, by, delivered
from tests.integration.test_verify_outcomes import death, die, order
from tests.integration.test_verify_table import on_postgresql
from tests.integration.warm_spark import WarmSpark, brief
from tests.routes import delete_below

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WARM = WarmSpark("audit")


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    yield
    WARM.end()


def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the job; return its exit code, its JSON report (empty if it gave none) and all that it said."""
    job = brief(spark.submission("audit", [*arguments, "--json"]))
    done = subprocess.run(job.command, env=dict(job.environment), capture_output=True, text=True, timeout=300)
    report = json.loads(done.stdout) if done.stdout else {}
    return done.returncode, report, done.stdout + done.stderr


def warmly(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run it as ``run`` does, in a process that has its Spark already."""
    code, out, err = WARM.run(*arguments, "--json")
    return code, json.loads(out) if out else {}, out + err


def agree(site: Site, *arguments: str) -> dict[str, Any]:
    """Run both; every count must be the same. Return the job's report of the route."""
    code, report, said = warmly(str(site.config.path), "--route", "main", *arguments)
    (verified,) = verify(site.config, ["main"])
    assert report, said
    route: dict[str, Any] = report["routes"]["main"]
    names = (*COUNTS, *MORE_COUNTS)
    assert {name: route[name] for name in names} == {name: getattr(verified.findings, name) for name in names}
    assert {(one["kind"], one["place"], one["id"]) for one in route["offenders"]} == {
        (one.kind, one.place, one.id) for one in verified.offences
    }
    assert code == (0 if verified.ok else 1), said
    return route


def page_of(site: Site, numbers: list[int], instance: bytes, outcomes: bytes | None = None) -> Page:
    return Page(
        "w", instance, 1, Proof.SEALED, None, site.log, 0, b"".join(map(digest, numbers)), bytes(8 * len(numbers)),
        numbers, outcomes or bytes(len(numbers)),
    )  # fmt: skip


def test_every_planted_fault_is_found_by_name_and_window(
    make_site: Callable[..., Site], tmp_path: Path
) -> None:
    site = make_site()
    for number in range(11):
        site.write(site.log, number, partition=number // 10)
    site.write(site.log, 3, value="other")  # a conflict
    site.write(site.log, 4, partition=1)  # a repeat in another partition
    site.write(site.log, 11, partition=1)
    # 2 before 1; 0 twice; 5 lost; 6 dead; 7 passed, recorded and not there; 8 skipped; 9 to come; 77 never sent
    for number in (0, 2, 1, 3, 0, 4, 77, 10, 11):
        site.write(site.output, number, value="spoilt" if number == 4 else None)
    site.dead(digest(6))
    site.dead(digest(5), route="another")
    instance = os.urandom(16)
    site.record(Begin("w", "t", instance, 1, -1, [InputRange(site.log, 0, 0, 9)], []))
    site.record(page_of(site, [0, 1, 7, 8], instance, bytes([0, 0, 0, 2])), Seal("w", instance, 1))
    site.stand_at(9, 3)
    html = tmp_path / "audit.html"

    route = agree(site, "--window", "3600", "--html", str(html))

    kinds = (
        "lost",
        "duplicates",
        "reordered",
        "phantoms",
        "altered",
        "unseen",
        "dead_letters",
        "skipped",
        "conflicts",
    )
    assert {kind: route[kind] for kind in kinds} == {
        "lost": 2, "duplicates": 1, "reordered": 1, "phantoms": 1, "altered": 1, "unseen": 1, "dead_letters": 1,
        "skipped": 1, "conflicts": 1,
    }  # fmt: skip
    for kind in ("captured", "lost", "duplicates", "reordered", "phantoms", "conflicts"):
        assert sum(window[kind] for window in route["windows"]) == route[kind], kind
    text = html.read_text("utf-8")
    assert "<svg" in text
    assert "m77" in text
    assert "http" not in text.replace("http-equiv", "")  # nothing is loaded from anywhere


def test_what_a_redrive_delivered_stands_outside_of_its_order_and_is_dead_no_more(make_site: Callable[..., Site]) -> None:
    site = make_site()
    for number in range(9):
        site.write(site.log, number)
    # 1 redriven; 4 dead; 5 redriven by every word, and not there; 6 redriven just now; 7 before 3 without any redrive;
    # 8 redriven, and then, in a destination of before, dead in that redrive
    for number in (0, 2, 7, 3, 1):
        site.write(site.output, number)
    for number in (1, 4, 5, 6, 8):
        site.dead(digest(number))
    for number in (1, 5, 6, 8):
        site.dead(digest(number), code="redriven", replay=1)
    site.dead(digest(8), replay=1)
    instance = os.urandom(16)
    site.record(
        Begin("w", "t", instance, 1, -1, [InputRange(site.log, 0, 0, 9)], []),
        replace(page_of(site, [1, 5, 8], instance, bytes([0, 0, 1])), replays=b"\1\1\1"),
        page_of(site, [0, 1, 2, 3, 4, 5, 6, 7, 8], instance, bytes([0, 1, 0, 0, 1, 1, 1, 0, 1])),
        Seal("w", instance, 1),
    )
    site.stand_at(9, 0)

    route = agree(site)

    kinds = ("captured", "delivered", "dead_letters", "reordered", "lost", "unseen", "duplicates")
    assert {kind: route[kind] for kind in kinds} == {
        "captured": 9, "delivered": 5, "dead_letters": 2, "reordered": 1, "lost": 1, "unseen": 1, "duplicates": 0,
    }  # fmt: skip


def test_captures_and_what_no_page_proves(make_site: Callable[..., Site], shop: str) -> None:
    site = make_site(TOPIC_ROUTE, shop)
    committed, forged, aborted, unknown = (os.urandom(16) for _ in range(4))
    for number, nonce in enumerate((committed, forged, aborted, unknown)):
        resource = "elsewhere/1" if nonce is not unknown else "shop/another-uuid"
        capture = identity.capture_id(nonce).hex()
        site.write(site.log, number, ce_relaycapture=capture, ce_relayresource=resource)
    site.mark(identity.capture_id(committed), committed)
    site.mark(identity.capture_id(forged), os.urandom(16))
    site.mark(identity.capture_id(aborted), None)
    for number in (2, 3):  # aborted, and undecided
        site.dead(digest(number))
    site.write(site.log, 4)  # begun, and nothing says how it ended
    site.write(site.log, 5)  # in a page of a transaction that was settled: counts for nothing
    begun, settled = os.urandom(16), os.urandom(16)
    site.record(Begin("w", "t", begun, 1, -1, [InputRange(site.log, 0, 7, 8)], []))
    site.record(page_of(site, [5], settled))
    for number in (0, 2):
        site.write(site.output, number)
    site.stand_at(7, 0)

    route = agree(site)

    assert (route["captured"], route["aborted"], route["in_doubt"], route["phantoms"]) == (3, 1, 3, 2)
    assert route["unseen"] == 1


def test_a_second_effect_is_a_duplicate_although_its_message_has_left_the_log(
    make_site: Callable[..., Site], kafka_admin: AdminClient
) -> None:
    site = make_site()
    for number in range(3):
        site.write(site.log, number)
    instance = os.urandom(16)
    site.record(Begin("w", "t", instance, 1, -1, [InputRange(site.log, 0, 0, 3)], []))
    found = replace(page_of(site, [1], instance), proof=Proof.PROVEN, recovery="w", offsets=[UNKNOWN_OFFSET])  # in the output alone
    site.record(page_of(site, [0, 2], instance), found, Seal("w", instance, 1))
    for number in (0, 1, 2, 0):
        site.write(site.output, number)
    site.stand_at(3, 0)
    delete_below(kafka_admin, site.log, 2)

    route = agree(site)

    assert (route["captured"], route["expired"], route["duplicates"], route["phantoms"]) == (1, 2, 1, 0)


SHORT = '[timing]\ntransaction_timeout = "2s"\nsocket_timeout = "1.9s"\nresend_after = "1.5s"\n'
"""So that what is older than a transaction was a few seconds ago."""


def test_outputs_from_before_anything_that_log_and_monitor_remember_are_no_phantoms(
    make_site: Callable[..., Site], kafka_admin: AdminClient
) -> None:
    site = make_site(TOPIC_ROUTE, SHORT)
    instance = os.urandom(16)
    for number in range(4):
        site.write(site.log, number)
    for n in (1, 2):
        site.record(replace(page_of(site, [n - 1], instance), n=n))
    time.sleep(4.5)
    site.record(replace(page_of(site, [2, 3], instance), n=3), Seal("w", instance, 3))
    for number, n in ((0, 1), (70, 1), (1, 2), (2, 3), (3, 3), (71, 1)):
        site.write(site.output, number, relay_instance=instance.hex(), relay_n=str(n))
    site.write(site.output, 72, partition=1, relay_instance=os.urandom(16).hex(), relay_n="9")
    site.stand_at(4, 0)
    delete_below(kafka_admin, site.log, 2)
    delete_below(kafka_admin, site.monitor, 1)

    route = agree(site)

    assert (route["captured"], route["expired"], route["forgotten"], route["phantoms"]) == (2, 1, 3, 1)


def test_rows_from_before_anything_that_log_and_monitor_remember_are_no_phantoms(
    make_site: Callable[..., Site], shop: str, kafka_admin: AdminClient
) -> None:
    site = make_site(TABLE_ROUTE, shop)
    ledger = on_postgresql(site)
    for number in range(3):
        site.write(site.log, number)
    instance = os.urandom(16)
    site.record(page_of(site, [0], instance), replace(page_of(site, [1], instance), n=2), Seal("w", instance, 2))
    for number in (0, 1, 2, 99):
        ledger.row(number)
    ledger.stand_at(3)
    delete_below(kafka_admin, site.log, 2)
    delete_below(kafka_admin, site.monitor, 1)

    route = agree(site)

    assert (route["captured"], route["expired"], route["forgotten"], route["phantoms"]) == (1, 1, 2, 0)


def test_every_fault_planted_in_a_table_is_found(make_site: Callable[..., Site], shop: str) -> None:
    site = make_site(TABLE_ROUTE, shop)
    ledger = on_postgresql(site)
    for number in range(6):
        site.write(site.log, number)
    for number in (0, 1, 2, 2, 5, 99):  # 2 twice, 3 lost, 4 not read yet, 99 never sent
        ledger.row(number)
    for number in (0, 2, 1):  # 2 committed before 1
        ledger.inbox(number, number)
    instance = os.urandom(16)  # 5 was committed by a living worker, after the others
    site.record(
        replace(page_of(site, [5], instance), offsets=[5], destinations=[100]), Seal("w", instance, 1)
    )
    ledger.stand_at(4)

    code, report, said = run(str(site.config.path))

    verified = site.audit()
    route = report["routes"]["main"]
    names = (*COUNTS, *MORE_COUNTS)
    assert {name: route[name] for name in names} == {
        name: getattr(verified.findings, name) for name in names
    }, said
    kinds = ("lost", "duplicates", "reordered", "phantoms", "unseen")
    assert {kind: route[kind] for kind in kinds} == dict.fromkeys(kinds, 1)
    assert code == 1


def test_a_death_whose_dead_letter_is_still_to_come_is_lag_not_loss(make_site: Callable[..., Site], shop: str) -> None:
    site = make_site(TABLE_ROUTE, shop)
    ledger = on_postgresql(site)
    for number in range(3):  # 0 and 1 dead by the inbox, 0 also by the monitor; 2 lost
        site.write(site.log, number)
    for number in range(2):
        ledger.inbox(number, number, DEAD)
    ledger.stand_at(3)
    site.record(replace(page_of(site, [0], os.urandom(16), bytes([DEAD])), proof=Proof.PROVEN))

    route = agree(site)

    assert (route["unseen"], route["lost"]) == (2, 1)


@pytest.mark.nightly  # `relay verify` is asked the same by day
def test_rows_of_another_route_into_the_same_table_are_no_phantoms(make_site: Callable[..., Site], shop: str) -> None:
    site = make_site(f'{TABLE_ROUTE}\n[routes.other]\nfrom = ["{{output}}"]\n{TABLE_ROUTE}', shop)
    ledger = on_postgresql(site)
    site.write(site.log, 1)
    for number in (1, 2, 3, 99):  # 2 and 3 of the other route, by its inbox and its monitor; 99 never sent
        ledger.row(number)
    ledger.stand_at(1)
    ledger.inbox(2, 0, route="other")
    site.monitor = site.config.monitor_topic("other")
    site.record(
        Page("w", bytes(16), 1, Proof.PROVEN, None, site.output, 0, digest(3), bytes(8), [1], bytes([DELIVERED]))
    )

    route = agree(site)

    assert (route["delivered"], route["phantoms"]) == (1, 1)
    assert "2 rows of ledger are those of other" in route["notes"]
    ledger.execute("insert into ledger (id, source) values (null, :source)", {"source": "/a"})
    code, _, said = warmly(str(site.config.path), "--route", "main")
    assert code == 2, said
    assert "1 rows of ledger have no id" in said


def test_an_upsert_by_the_id_alone_keeps_one_row_of_two_sources(make_site: Callable[..., Site], shop: str) -> None:
    site = make_site(TABLE_ROUTE.replace("columns", 'mode = "upsert", key = ["id"], columns'), shop)
    ledger = on_postgresql(site)
    for number, source in ((1, "/a"), (1, "/b"), (2, "/a"), (3, "/a")):
        site.write(site.log, number, source=source)
    ledger.row(1, source="/b")
    ledger.row(2)
    ledger.stand_at(4)

    route = agree(site)

    assert (route["delivered"], route["lost"]) == (3, 1), "only message 3 has no row of its id"


def test_what_was_delivered_by_another_name_or_topic_is_expired_and_what_left_the_log_first_is_lost(
    make_site: Callable[..., Site], kafka_admin: AdminClient
) -> None:
    site = make_site()
    site.write(site.log, 1)
    for number in (7, 8, 9):
        site.write(site.log, number, partition=1)
    for number in (1, 2, 3, 4, 1, 2):  # 2 by the route's former name, 3 from a former topic, 4 by nobody
        site.write(site.output, number)
    starts = {f"{site.log}/{site.topic_id.hex()}": {"0": 0, "1": 0}}
    site.producer.produce(
        site.config.control_topic, key=b"start/main", value=json.dumps({"policy": "earliest", "starts": starts})
    )
    site.record(*delivered("returns", 3))
    site.stand_at(1)  # partition 1 was not delivered from, when retention took its first two messages
    delete_below(kafka_admin, site.log, 2, partition=1)
    former = f"{site.config.relay.name}.before.monitor"
    make_topics(kafka_admin, NewTopic(former, 1))
    site.monitor = former
    site.record(*delivered("deleted", 1, 2))
    try:
        route = agree(site)
    finally:
        kafka_admin.delete_topics([former])[former].result(30)

    kinds = ("expired", "phantoms", "duplicates", "lost", "unseen")
    assert {kind: route[kind] for kind in kinds} == {
        "expired": 2, "phantoms": 1, "duplicates": 2, "lost": 2, "unseen": 1,
    }  # fmt: skip


def test_what_came_from_a_log_that_was_made_again_is_expired(make_site: Callable[..., Site]) -> None:
    site = make_site()
    recorded = {"policy": "earliest", "starts": {f"{site.log}/{'0' * 32}": {"0": 0, "1": 0}}}
    site.producer.produce(site.config.control_topic, key=b"start/main", value=json.dumps(recorded))
    site.write(site.log, 1)
    for number in (2, 3):
        site.write(site.output, number)
    site.record(*delivered(site.log, 2))

    route = agree(site)

    assert (route["expired"], route["phantoms"]) == (1, 1)


def test_what_is_missing_is_a_sentence(make_site: Callable[..., Site], tmp_path: Path) -> None:
    site = make_site()
    away = tmp_path / "away.toml"
    away.write_text(site.config.path.read_text().replace(site.kafka, "127.0.0.1:1"))
    absent = tmp_path / "absent.toml"
    absent.write_text(site.config.path.read_text().replace(site.log, "no-such-topic"))

    assert warmly(str(site.config.path), "--route", "other")[0] == 2
    code, _, said = warmly(str(absent))
    assert code == 2, said
    assert "topic no-such-topic, the log, does not exist; create it, or correct the route" in said
    code, _, said = warmly(str(away))
    assert code == 3, said
    assert "Traceback" not in said


def test_a_page_of_another_version_is_not_judged_without(make_site: Callable[..., Site]) -> None:
    site = make_site()
    site.write(site.log, 1)
    site.record(Begin("w", "w", b"i" * 16, 1, -1, [], []), page_of(site, [0], b"i" * 16))
    key, value = encode(page_of(site, [1], b"j" * 16))
    site.producer.produce(site.monitor, key=key, value=value[:2] + bytes(8) + value[10:], partition=0)
    assert site.producer.flush(30) == 0

    code, report, said = warmly(str(site.config.path))

    assert (code, report) == (1, {})
    assert f"{site.monitor}[0] has at offset 2 what another version of the relay wrote" in said
    assert "Traceback" not in said


def test_what_was_delivered_and_died_as_well_is_found(make_site: Callable[..., Site]) -> None:
    site = make_site()
    for number in range(9):
        site.write(site.log, number)
    # 0 delivered and dead; 1 untold; 2 redriven by its entry; 3 under redrive; 4 dead in the redrive that took it back
    # once; 5 recorded as delivered, and there is a letter instead; 6 twice there, and dead
    for number in (0, 1, 2, 3, 4, 6, 6):
        site.write(site.output, number)
    for number in (0, 2, 3, 5, 6):
        site.dead(digest(number))
    site.dead(digest(1), code="untold", replay=1)
    site.dead(digest(4), code="redriven", replay=1)
    site.dead(digest(4), replay=2)
    order(site, 3, 1)
    instance = os.urandom(16)
    site.record(
        page_of(site, [5], instance), Seal("w", instance, 1),
        Page("w", bytes(16), 1, Proof.PROVEN, "w", site.log, 0, digest(2), bytes(8), [2], bytes([DELIVERED]), replays=bytes([1])),
    )  # fmt: skip
    site.stand_at(7, 0)

    route = agree(site)

    assert {kind: route[kind] for kind in ("duplicates", "lost", "unseen")} == {"duplicates": 4, "lost": 1, "unseen": 3}


def test_a_death_without_a_letter_is_believed_only_if_retention_may_have_taken_its_letter(
    make_site: Callable[..., Site], kafka_admin: AdminClient
) -> None:
    site = make_site()
    for number in range(6):
        site.write(site.log, number)
    site.dead(digest(100))
    site.dead(digest(101))
    delete_below(kafka_admin, site.config.deadletter_topic, 1)
    # 0: its letter lay above what was taken; 1: maybe not; 2: a recovery entered it; 3: named no place for a letter
    for number, starts in enumerate(((1,), (0,), (1,), ())):
        die(site, *starts, number=number, recovery="w2" if number == 2 else None)
    site.record(death(site, number=4, proof=Proof.PROVEN))  # and no begin tells where its letter may lie
    site.stand_at(5, 0)

    route = agree(site)

    assert {kind: route[kind] for kind in ("captured", "lost", "unseen")} == {"captured": 6, "lost": 2, "unseen": 1}


def test_partitions_that_are_added_while_the_job_reads_are_read(make_site: Callable[..., Site]) -> None:
    site = make_site()
    growing = str(Path(__file__).with_name("spark_growing_audit.py"))

    code, out, err = WARM.run(str(site.config.path), site.log, site.output, program=growing)

    assert code == 0, out + err
    route = json.loads(out)["routes"]["main"]
    assert (route["captured"], route["delivered"], route["dead_letters"]) == (2, 1, 1)


def test_what_another_routes_monitor_has_forgotten_is_no_phantom_here(
    make_site: Callable[..., Site], make_topic: Callable[..., str], kafka_admin: AdminClient
) -> None:
    site = make_site()
    other = make_topic(1)
    with a_route_beside(site, other):
        own, theirs = delivered(site.log, 1), delivered(other, 2)
        site.write(site.log, 1)
        for number, entries in ((1, own), (2, theirs), (3, own)):
            site.write(site.output, number, **by(entries))
        site.write(site.output, 4)
        site.record(*own)
        site.producer.produce(site.config.monitor_topic("beside"), b"", b"b")
        assert site.producer.flush(30) == 0
        site.stand_at(1, 0)
        delete_below(kafka_admin, site.config.monitor_topic("beside"), 1)

        route = agree(site)

    assert (route["phantoms"], route["forgotten"]) == (2, 1)
    assert any("1 effects are of workers that no monitor tells of any more" in note for note in route["notes"])

"""`relay verify` finds faults planted by plain clients, on a real broker and real databases; no worker runs."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from typer.testing import CliRunner

from relay.audit.verify import _RouteAudit, verify
from relay.cli.main import app
from relay.config.timing import Timing
from relay.kafka.scan import Scan
from relay.message import identity
from relay.message.errors import ConfigError, Unreachable
from relay.message.record import LogPartition
from relay.monitor.entries import Begin, InputRange, Seal
from tests.integration.audit_site import PARTITIONS, TABLE_ROUTE, TOPIC_ROUTE, Site, digest, offender, wrong
from tests.routes import delete_below, wait_for


def test_a_clean_topic_route_is_right_on_the_command_line(make_site: Callable[..., Site]) -> None:
    site = make_site()
    for number in range(6):
        site.write(site.log, number, partition=number % 2, source=f"/{number % 2}")
        site.write(site.output, number, source=f"/{number % 2}")
    site.write(site.log, 0, source="/0")  # a producer's repeat
    site.stand_at(4, 3)

    answer = CliRunner().invoke(app, ["verify", str(site.config.path), "--json"])

    assert answer.exit_code == 0, answer.output
    report = json.loads(answer.stdout)
    assert report["ok"] is True
    assert {name: report["routes"]["main"][name] for name in
            ("captured", "delivered", "lost", "duplicates", "reordered", "phantoms", "aborted", "in_doubt",
             "dead_letters", "conflicts", "repeats", "unseen")} == {
        "captured": 6, "delivered": 6, "lost": 0, "duplicates": 0, "reordered": 0, "phantoms": 0, "aborted": 0,
        "in_doubt": 0, "dead_letters": 0, "conflicts": 0, "repeats": 1, "unseen": 0,
    }  # fmt: skip


def test_every_fault_planted_in_a_topic_is_found_and_named(make_site: Callable[..., Site]) -> None:
    site = make_site()
    for number in range(8):
        site.write(site.log, number)
    site.write(site.log, 3, value="other")  # conflict
    for number in (
        0,
        2,
        1,
        3,
        0,
        4,
        77,
    ):  # 2 before 1; 0 twice; 5 lost; 6 dead; 7 not read yet; 77 never sent
        site.write(site.output, number, value="spoilt" if number == 4 else None)
    site.dead(digest(6))
    site.dead(digest(5), route="another")
    site.stand_at(7, 0)

    report = site.audit()

    assert wrong(report) == {
        "lost": 1, "duplicates": 1, "reordered": 1, "phantoms": 1, "altered": 1, "unseen": 1,
    }  # fmt: skip
    assert (report.findings.conflicts, report.findings.dead_letters) == (1, 1)
    assert offender(report, "lost") == (f"{site.log}[0]@5", "m5", "/a")
    assert offender(report, "duplicates") == (f"{site.output}[0]@4", "m0", "/a")
    assert offender(report, "reordered") == (f"{site.log}[0]@1", "m1", "/a")
    assert offender(report, "phantoms") == (f"{site.output}[0]@6", "m77", "/a")
    assert offender(report, "altered") == (f"{site.output}[0]@5", "m4", "/a")
    answer = CliRunner().invoke(app, ["verify", str(site.config.path)], env={"COLUMNS": "200"})
    assert answer.exit_code == 1
    assert (
        f"lost: {site.log}[0]@5 id 'm5' source '/a': passed by the route, but it has no effect"
        in answer.stdout
    )
    assert "WRONG: main: 1 lost, 1 duplicates, 1 reordered, 1 phantoms, 1 altered, 1 unseen." in answer.stdout


def test_lag_fails_unless_it_is_allowed(make_site: Callable[..., Site]) -> None:
    site = make_site()
    site.write(site.log, 1)

    assert not site.audit().ok
    assert site.audit(allow_lag=True).ok


def test_messages_before_the_recorded_start_are_not_the_routes(make_site: Callable[..., Site]) -> None:
    site = make_site()
    for number in range(3):
        site.write(site.log, number)
    starts = {f"{site.log}/{site.topic_id.hex()}": {"0": 2, "1": 0}}
    site.producer.produce(
        site.config.control_topic, key=b"start/main", value=json.dumps({"policy": "latest", "starts": starts})
    )
    site.write(site.output, 2)
    site.stand_at(3, 0)

    report = site.audit()

    assert wrong(report) == {}
    assert report.findings.captured == 1


def test_what_left_the_log_undelivered_is_lost(
    make_site: Callable[..., Site], kafka_admin: AdminClient
) -> None:
    site = make_site()
    for number in range(3):
        site.write(site.log, number)
    starts = {f"{site.log}/{site.topic_id.hex()}": {"0": 0, "1": 0}}
    site.producer.produce(
        site.config.control_topic, key=b"start/main", value=json.dumps({"policy": "earliest", "starts": starts})
    )
    assert site.producer.flush(30) == 0
    delete_below(kafka_admin, site.log, 2)

    assert wrong(site.audit()) == {"lost": 2, "unseen": 1}
    site.stand_at(1, 0)
    assert wrong(site.audit()) == {"lost": 1, "unseen": 1}


def test_what_an_aborted_kafka_transaction_wrote_is_no_effect(make_site: Callable[..., Site]) -> None:
    site = make_site()
    site.write(site.log, 1)
    writer = Producer({"bootstrap.servers": site.kafka, "transactional.id": f"{site.config.relay.name}.x"})
    writer.init_transactions(30)
    for number, end in (
        (1, writer.abort_transaction),
        (1, writer.commit_transaction),
        (2, writer.abort_transaction),
    ):
        writer.begin_transaction()
        site.producer, plain = writer, site.producer
        site.write(site.output, number)
        site.producer = plain
        end(30)
    site.stand_at(1, 0)

    report = site.audit()  # it also ends, although each end of the topic is a marker

    assert wrong(report) == {}
    assert report.findings.delivered == 1


def test_an_open_kafka_transaction_is_named_not_waited_for_without_end(
    make_site: Callable[..., Site],
) -> None:
    site = make_site()
    writer = Producer({"bootstrap.servers": site.kafka, "transactional.id": f"{site.config.relay.name}.x"})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(site.output, b"open", partition=1)
    assert writer.flush(30) == 0
    partition = LogPartition(site.output, 1)

    with (
        Scan(site.config.kafka, Timing(), "t", deadline_s=2) as scan,
        pytest.raises(Unreachable, match=rf"{site.output}\[1\] at offset 0 of 1"),
    ):
        list(scan.read({partition: (0, 1)}))
    writer.abort_transaction(30)
    with Scan(site.config.kafka, Timing(), "t", deadline_s=30) as scan:
        assert list(scan.read({partition: (0, 1)})) == []


def test_a_partition_is_read_to_its_end_while_its_writers_never_pause(make_site: Callable[..., Site]) -> None:
    site = make_site()
    named = f"{site.config.relay.name}.x"
    writer = Producer({"bootstrap.servers": site.kafka, "transactional.id": named, "linger.ms": 0})
    writer.init_transactions(30)
    place, ended = LogPartition(site.output, 1), threading.Event()

    def write() -> None:
        while not ended.is_set():
            writer.begin_transaction()
            writer.produce(place.topic, b"later", partition=place.partition)
            writer.commit_transaction(30)

    writer.begin_transaction()
    writer.produce(place.topic, b"first", partition=place.partition)
    writer.commit_transaction(30)
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        with Scan(site.config.kafka, Timing(), "t", deadline_s=30) as scan:
            # Its last offset is the transaction's marker: only what lies behind it shows that the end was passed.
            found = [one.message.value() for records in scan.read({place: (0, 2)}) for one in records]
    finally:
        ended.set()
        thread.join(30)
    assert found == [b"first"]


def test_messages_without_an_id_are_found_by_the_relays_own_digest(make_site: Callable[..., Site]) -> None:
    site = make_site()
    for _ in range(2):
        site.producer.produce(site.log, b"plain", partition=0)
    assert site.producer.flush(30) == 0
    first = identity.position_digest(site.topic_id, 0, 0)
    site.producer.produce(site.output, b"plain", partition=0, headers={"relay_digest": first.hex().encode()})
    site.producer.produce(site.output, b"plain", partition=0)
    site.producer.flush(30)
    site.stand_at(2, 0)

    report = site.audit()

    assert wrong(report) == {"lost": 1, "phantoms": 1}
    assert offender(report, "lost")[0] == f"{site.log}[0]@1"


def test_outputs_that_log_and_monitor_have_forgotten_are_noted(make_site: Callable[..., Site], kafka_admin: AdminClient) -> None:
    site = make_site()
    for number in (1, 2):
        site.write(site.log, number)
        site.write(site.output, number)
    site.record(Seal("w", os.urandom(16), 1))
    site.stand_at(2, 0)
    delete_below(kafka_admin, site.log, 1)
    before = site.audit()
    delete_below(kafka_admin, site.monitor, 1)

    report = site.audit()

    assert (wrong(before), wrong(report), report.findings.forgotten) == ({"phantoms": 1}, {}, 1)
    said = f"the log begins at {site.log}[0]@1 and the monitor at {site.monitor}[0]@1: 1 effects may be older than both"
    assert [any(note.startswith(said) for note in one.findings.notes) for one in (before, report)] == [False, True]


def test_a_destination_that_forgets_sooner_than_the_log_is_said(
    make_site: Callable[..., Site], kafka_admin: AdminClient
) -> None:
    site = make_site()
    for number in range(3):
        site.write(site.log, number)
        site.write(site.output, number)
    site.stand_at(3, 0)
    delete_below(kafka_admin, site.output, 2)

    report = site.audit()

    assert wrong(report) == {"lost": 2}
    assert any(f"the destination begins at {site.output}[0]@2" in note for note in report.findings.notes)


def test_a_begun_transaction_without_an_end_is_in_doubt(make_site: Callable[..., Site]) -> None:
    site = make_site()
    site.write(site.log, 1)
    instance = os.urandom(16)
    site.record(Begin("w", "t", instance, 1, -1, [InputRange(site.log, 0, 0, 1)], []))

    assert wrong(site.audit()) == {"in_doubt": 1}
    site.record(Seal("w", instance, 1))
    assert wrong(site.audit()) == {"unseen": 1}


class TestCaptures:
    """Messages of captures: what a marker proves, what the resource says, and what nobody knows."""

    @pytest.fixture
    def site(self, make_site: Callable[..., Site], shop: str) -> Site:
        return make_site(TOPIC_ROUTE, shop)

    def capture(self, site: Site, number: int, *, resource: str | None = None) -> tuple[bytes, bytes]:
        nonce = os.urandom(16)
        capture = identity.capture_id(nonce)
        self.message(site, number, capture, resource)
        return capture, nonce

    def message(self, site: Site, number: int, capture: bytes, resource: str | None) -> None:
        named = resource or f"shop/{self.uuid(site)}"
        site.write(site.log, number, ce_relaycapture=capture.hex(), ce_relayresource=named)

    def database(self, site: Site) -> psycopg.Connection[Any]:
        return psycopg.connect(site.config.resources["shop"].url.get_secret_value(), autocommit=True)

    def uuid(self, site: Site) -> str:
        with self.database(site) as database:
            return str(database.execute("select uuid from relay_resource").fetchone()[0])  # type: ignore[index]

    def decide(self, site: Site, capture: bytes, nonce: bytes, outcome: str) -> None:
        with self.database(site) as database:
            database.execute(
                "insert into relay_capture (capture, nonce, outcome) values (%s, %s, %s)",
                (capture, nonce, outcome),
            )

    def test_decided_by_marker_or_row(self, site: Site) -> None:
        marked, nonce = self.capture(site, 1)
        site.mark(marked, nonce)
        rowed, nonce = self.capture(site, 2)
        self.decide(site, rowed, nonce, "committed")
        site.mark(rowed, None)  # anybody may write this; the row decides
        aborted, nonce = self.capture(site, 3)
        self.decide(site, aborted, nonce, "aborted")
        for number in (1, 2):
            site.write(site.output, number)
        site.stand_at(10, 0)

        report = site.audit()

        assert wrong(report) == {}
        assert (report.findings.captured, report.findings.aborted) == (2, 1)
        site.write(site.output, 3)
        after = site.audit()
        assert wrong(after) == {"phantoms": 1}
        assert "its capture was aborted" in after.offences[0].why

    def test_a_committed_marker_with_a_wrong_nonce_proves_nothing(self, site: Site) -> None:
        capture, _ = self.capture(site, 1)
        site.mark(capture, os.urandom(16))
        site.stand_at(10, 0)

        report = site.audit()

        assert wrong(report) == {"in_doubt": 1}
        assert offender(report, "in_doubt") == (f"{site.log}[0]@0", "m1", "/a")

    def test_undecided_or_of_another_database_is_in_doubt(self, site: Site) -> None:
        self.capture(site, 1)
        other, nonce = self.capture(site, 2, resource="shop/another-uuid")
        self.decide(site, other, nonce, "committed")
        site.stand_at(10, 0)

        assert wrong(site.audit()) == {"in_doubt": 2}

    def test_what_commits_while_the_audit_reads_is_unseen_not_in_doubt(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read_log = _RouteAudit._log

        def commit_and_read(audit: _RouteAudit, stores: Any) -> Any:
            capture, nonce = self.capture(site, 1)  # its marker is not written yet
            self.decide(site, capture, nonce, "committed")
            return read_log(audit, stores)

        monkeypatch.setattr(_RouteAudit, "_log", commit_and_read)

        assert wrong(site.audit()) == {"unseen": 1}

    def test_an_aborted_marker_is_believed_only_where_the_resource_is_not_configured(
        self, site: Site
    ) -> None:
        known, _ = self.capture(site, 1)
        site.mark(known, None)
        away, _ = self.capture(site, 2, resource="elsewhere/1")
        site.mark(away, None)
        site.stand_at(10, 0)

        report = site.audit()

        assert wrong(report) == {"in_doubt": 1}
        assert report.findings.aborted == 1


def test_what_is_missing_or_away_is_a_sentence_with_its_exit_code(
    make_site: Callable[..., Site], tmp_path: Path
) -> None:
    site = make_site()
    with pytest.raises(ConfigError, match="--route other: there is no such route; there are: main"):
        verify(site.config, ["other"])
    nowhere = tmp_path / "nowhere.toml"
    nowhere.write_text(site.config.path.read_text().replace(site.kafka, "127.0.0.1:1"))
    answer = CliRunner().invoke(app, ["verify", str(nowhere), "--json"])
    assert answer.exit_code == 3
    assert "no broker answers" in answer.stderr


def test_a_database_that_is_away_is_unreachable(
    make_site: Callable[..., Site], tmp_path: Path, shop: str
) -> None:
    site = make_site(TABLE_ROUTE, shop)
    url = site.config.resources["shop"].url.get_secret_value()
    nowhere = tmp_path / "nowhere.toml"
    nowhere.write_text(site.config.path.read_text().replace(url, "postgresql://u:s3cret@127.0.0.1:1/none"))

    answer = CliRunner().invoke(app, ["verify", str(nowhere)])

    assert answer.exit_code == 3
    assert "resource shop: the database does not answer" in answer.stderr
    assert "s3cret" not in answer.output


def test_of_two_databases_the_one_that_the_route_needs_is_named(make_site: Callable[..., Site], tmp_path: Path, shop: str) -> None:
    site = make_site(TABLE_ROUTE, f'{shop}[resources.till]\nurl = "sqlite:///{tmp_path}/till.db"\n')
    with psycopg.connect(site.config.resources["shop"].url.get_secret_value(), autocommit=True) as database:
        database.execute("drop table relay_resource")
    (tmp_path / "till.db").unlink()

    answer = CliRunner().invoke(app, ["verify", str(site.config.path)])

    assert (answer.exit_code, "resource shop" in answer.stderr, "resource till" in answer.stderr) == (2, True, False)
    assert "run `relay migrate`" in answer.stderr


@pytest.mark.parametrize("how", [(), pytest.param(("--at-once", "3"), marks=pytest.mark.slow)])
def test_a_route_that_cannot_be_audited_keeps_no_other_from_it(
    make_site: Callable[..., Site], tmp_path: Path, how: tuple[str, ...]
) -> None:
    site = make_site()
    site.write(site.log, 0)
    site.write(site.output, 0)
    site.stand_at(1, 0)
    more = tmp_path / "more.toml"
    more.write_text(
        f'{site.config.path.read_text()}\n[routes.ahead]\nfrom = ["{site.log}"]\nto = {{ topic = "nowhere" }}\n'
        f'[routes.away]\nfrom = ["{site.log}"]\nto = {{ table = "t", resource = "shop", columns = {{ id = "ce:id" }} }}\n'
        '[resources.shop]\nurl = "postgresql://u:s3cret@127.0.0.1:1/none"\n'
    )

    told = CliRunner().invoke(app, ["verify", str(more), *how], env={"COLUMNS": "200"})
    counted = CliRunner().invoke(app, ["verify", str(more), "--json", *how])
    lagging = CliRunner().invoke(app, ["verify", str(more), "--route", "away", "--route", "main", *how])
    site.write(site.output, 0)
    doubled = CliRunner().invoke(app, ["verify", str(more), *how])

    assert (told.exit_code, counted.exit_code, lagging.exit_code, doubled.exit_code) == (3, 3, 3, 1)
    assert "right: main: 1 of 1" in told.stdout
    assert "NOT AUDITED: ahead: routes.ahead: topic nowhere, the destination, does not exist" in told.stdout
    assert "NOT AUDITED: away: routes.away: resource shop: the database does not answer" in told.stdout
    report = json.loads(counted.stdout)
    assert (report["ok"], report["routes"]["main"]["ok"], report["routes"]["away"]["ok"]) == (False, True, False)
    assert "does not answer" in report["routes"]["away"]["error"]
    assert "s3cret" not in told.output + counted.output


def test_partitions_that_are_added_while_the_audit_reads_are_read(
    make_site: Callable[..., Site], kafka_admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site()
    read_monitor = _RouteAudit._monitor

    def grow_and_read(audit: _RouteAudit) -> Any:
        topics = (site.log, site.output, site.config.deadletter_topic)
        for done in kafka_admin.create_partitions([NewPartitions(name, PARTITIONS + 1) for name in topics]).values():
            done.result(30)
        for name in topics:
            wait_for(partial(site.has_partitions, name, PARTITIONS + 1), what=f"the partition added to {name}")
        for number, name in ((1, site.log), (2, site.log), (1, site.output)):
            site.write(name, number, partition=PARTITIONS)
        site.dead(digest(2), partition=PARTITIONS)
        site.stand_at(0, 0, 2)
        return read_monitor(audit)

    monkeypatch.setattr(_RouteAudit, "_monitor", grow_and_read)

    report = site.audit()

    assert wrong(report) == {}
    assert (report.findings.captured, report.findings.delivered, report.findings.dead_letters) == (2, 1, 1)


def test_what_retention_takes_before_it_is_read_is_said_and_not_passed_over(
    make_site: Callable[..., Site], kafka_admin: AdminClient
) -> None:
    site = make_site()
    for number in range(3):
        site.write(site.output, number)
    place = LogPartition(site.output, 0)

    with Scan(site.config.kafka, Timing(), "t", deadline_s=5) as scan:
        delete_below(kafka_admin, site.output, 2)
        with pytest.raises(Unreachable, match=rf"{site.output}\[0\] cannot be read"):
            list(scan.read({place: (0, 3)}))

"""`relay verify` finds faults planted by plain clients, on a real broker and real databases; no worker runs."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from relay.audit.checker import MUST_BE_ZERO
from relay.audit.verify import RouteReport, verify
from relay.cli.main import app
from relay.kafka.scan import Scan
from relay.kafka.topics import Topics
from relay.message import identity
from relay.message.errors import ConfigError, Unreachable
from relay.message.record import LogPartition
from relay.message.schemas import codec
from relay.monitor.entries import DELIVERED, Begin, InputRange, Page, Proof, Seal, encode
from relay.run.config import RelayConfig, load
from relay.run.migrate import migrate
from relay.run.timing import Timing

TOPIC_ROUTE = 'to = {{ topic = "{output}" }}'
TABLE_ROUTE = (
    'to = {{ table = "ledger", resource = "shop", columns = {{ id = "ce:id", source = "ce:source" }} }}'
)
PARTITIONS = 2


class Site:
    """A relay with one route, written to and read from by plain clients."""

    def __init__(self, config: RelayConfig, kafka: str, log: str, output: str) -> None:
        self.config, self.kafka, self.log, self.output = config, kafka, log, output
        self.producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
        facts = Topics(config.kafka, config.timing).describe([log], settings=False)
        self.topic_id = facts[log].topic_id
        self.monitor = config.monitor_topic("main")

    def write(self, topic: str, number: int, *, partition: int = 0, source: str = "/a", value: str | None = None,
              **headers: str) -> None:  # fmt: skip
        fields = {"ce_specversion": "1.0", "ce_id": f"m{number}", "ce_source": source, **headers}
        self.producer.produce(
            topic, key=b"k", value=(value or f'{{"n": {number}}}').encode(), partition=partition,
            headers=[(name, text.encode()) for name, text in fields.items()],
        )  # fmt: skip
        assert self.producer.flush(30) == 0

    def mark(self, capture: bytes, nonce: bytes | None) -> None:
        record = {
            "capture": capture,
            "outcome": "COMMITTED" if nonce else "ABORTED",
            "nonce": nonce,
            "incarnation": None,
            "closes": [],
        }
        self.producer.produce(
            self.log, key=capture, value=codec("outcome").encode(record), partition=0,
            headers={"ce_type": b"relay.outcome", "ce_relaycapture": capture.hex().encode()},
        )  # fmt: skip
        assert self.producer.flush(30) == 0

    def dead(self, digest: bytes, route: str = "main") -> None:
        self.producer.produce(
            self.config.deadletter_topic, key=digest.hex(), value=b"{}", partition=0,
            headers={"__relay.errors.route": route.encode()},
        )  # fmt: skip
        assert self.producer.flush(30) == 0

    def record(self, *entries: Page | Begin | Seal) -> None:
        for number, entry in enumerate(entries):
            key, value = encode(entry, number)
            self.producer.produce(self.monitor, key=key, value=value, partition=0)
        assert self.producer.flush(30) == 0

    def stand_at(self, *positions: int) -> None:
        consumer = Consumer({"bootstrap.servers": self.kafka, "group.id": self.config.group_id("main")})
        offsets = [TopicPartition(self.log, partition, at) for partition, at in enumerate(positions)]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()

    def audit(self, *, allow_lag: bool = False) -> RouteReport:
        (report,) = verify(self.config, (), allow_lag=allow_lag)
        return report


def wrong(report: RouteReport) -> dict[str, int]:
    names = (*MUST_BE_ZERO, "unseen")
    return {name: getattr(report.findings, name) for name in names if getattr(report.findings, name)}


def offender(report: RouteReport, kind: str) -> tuple[str, str, str]:
    found = next(offence for offence in report.offences if offence.kind == kind)
    return found.place, found.id, found.source


def digest(number: int, source: str = "/a") -> bytes:
    return identity.cloudevents({"ce_id": b"m%d" % number, "ce_source": source.encode()}, b"", None) or b""


@pytest.fixture
def make_site(kafka: str, kafka_admin: AdminClient, make_topic: Callable[..., str], tmp_path: Path) -> Iterator[Callable[..., Site]]:
    owned: list[str] = []

    def make(route: str = TOPIC_ROUTE, resources: str = "") -> Site:
        name = f"v{secrets.token_hex(4)}"
        log, output = make_topic(PARTITIONS), make_topic(PARTITIONS)
        path = tmp_path / f"{name}.toml"
        path.write_text(
            f'[relay]\nname = "{name}"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "{kafka}"\n{resources}\n'
            f'[routes.main]\nfrom = ["{log}"]\n' + route.format(output=output)
        )
        config = load(path)
        migrate(config)
        owned.extend([f"{name}.main.monitor", config.deadletter_topic, config.control_topic])
        return Site(config, kafka, log, output)

    yield make
    if owned:
        for deleted in kafka_admin.delete_topics(owned).values():
            deleted.result(30)


@pytest.fixture
def shop(postgres: str) -> str:
    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute("create table ledger (id text, source text)")
    return f'[resources.shop]\nurl = "{postgres}"\n'


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

    with Scan(site.config.kafka, Timing(), "t", deadline_s=2) as scan:
        with pytest.raises(Unreachable, match=rf"{site.output}\[1\] at offset 0 of 1"):
            list(scan.read({partition: (0, 1)}))
        writer.abort_transaction(30)
        assert list(scan.read({partition: (0, 1)})) == []


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


class Ledger:
    """The destination table and the relay's own tables, written by hand: each row in a transaction of its own."""

    def __init__(self, site: Site, execute: Callable[[str, Mapping[str, Any]], object]) -> None:
        self.site, self.execute = site, execute

    def row(self, number: int, source: str = "/a") -> None:
        values = {"id": f"m{number}", "source": source}
        self.execute("insert into ledger (id, source) values (:id, :source)", values)

    def inbox(self, number: int, offset: int) -> None:
        self.execute(
            "insert into relay_inbox (relay, route, digest, content, topic_id, partition, log_offset, outcome)"
            " values (:relay, 'main', :digest, :content, :topic, 0, :offset, 0)",
            {"relay": self.site.config.relay.name, "digest": digest(number), "content": b"", "topic": self.site.topic_id,
             "offset": offset},
        )  # fmt: skip

    def stand_at(self, position: int) -> None:
        self.execute(
            "insert into relay_position (relay, route, topic_id, topic, partition, position, epoch, worker)"
            " values (:relay, 'main', :topic, :name, 0, :position, 1, 'w')",
            {"relay": self.site.config.relay.name, "topic": self.site.topic_id, "name": self.site.log, "position": position},
        )  # fmt: skip


def on_postgresql(site: Site) -> Ledger:
    url = site.config.resources["shop"].url.get_secret_value()

    def execute(statement: str, values: Mapping[str, Any]) -> None:
        for name in values:
            statement = statement.replace(f":{name}", f"%({name})s")
        with psycopg.connect(url, autocommit=True) as database:
            database.execute(statement, values)  # type: ignore[call-overload]

    return Ledger(site, execute)


def on_sqlite(site: Site) -> Ledger:
    path = site.config.resources["shop"].url.get_secret_value().removeprefix("sqlite:///")

    def execute(statement: str, values: Mapping[str, Any]) -> None:
        database = sqlite3.connect(path)
        with database:
            database.execute(statement, values)
        database.close()

    return Ledger(site, execute)


class TestTables:
    @pytest.fixture(params=["postgresql", "sqlite"])
    def ledger(self, request: pytest.FixtureRequest, make_site: Callable[..., Site]) -> Ledger:
        return self.make(request, make_site, TABLE_ROUTE)

    def make(self, request: pytest.FixtureRequest, make_site: Callable[..., Site], route: str) -> Ledger:
        if getattr(request, "param", "sqlite") == "postgresql":
            return on_postgresql(make_site(route, request.getfixturevalue("shop")))
        directory = request.getfixturevalue("tmp_path")
        path = directory / "shop.db"
        database = sqlite3.connect(path)
        database.execute("create table ledger (id text, source text)")
        database.close()
        return on_sqlite(make_site(route, f'[resources.shop]\nurl = "sqlite:///{path}"\n'))

    def test_a_clean_table_is_right(self, ledger: Ledger) -> None:
        for number in range(3):
            ledger.site.write(ledger.site.log, number)
            ledger.row(number)
            ledger.inbox(number, number)
        ledger.stand_at(3)

        report = ledger.site.audit()

        assert wrong(report) == {}
        assert (report.findings.captured, report.findings.delivered) == (3, 3)

    def test_every_fault_planted_in_a_table_is_found(self, ledger: Ledger) -> None:
        site = ledger.site
        for number in range(5):
            site.write(site.log, number)
        for number in (0, 1, 2, 2, 99):  # 2 twice, 3 lost, 4 not read yet, 99 never sent
            ledger.row(number)
        ledger.row(0, source="/other")  # another publisher's id 0: never sent either
        for number in (0, 2, 1):  # 2 committed before 1
            ledger.inbox(number, number)
        ledger.stand_at(4)

        report = site.audit()

        assert wrong(report) == {"lost": 1, "duplicates": 1, "phantoms": 2, "reordered": 1, "unseen": 1}
        assert offender(report, "lost") == (f"{site.log}[0]@3", "m3", "/a")
        assert offender(report, "reordered") == (f"{site.log}[0]@1", "m1", "/a")

    def test_order_is_audited_by_the_monitor_when_the_inbox_was_trimmed(self, ledger: Ledger) -> None:
        site = ledger.site
        for number in range(4):
            site.write(site.log, number)
            ledger.row(number)
        ledger.stand_at(4)

        def page(n: int, numbers: list[int], destinations: list[int]) -> Page:
            rows = len(numbers)
            return Page("w", bytes(16), n, Proof.PROVEN, None, site.log, 0, b"".join(map(digest, numbers)),
                        bytes(8 * rows), numbers, bytes([DELIVERED]) * rows, b"", destinations)  # fmt: skip

        site.record(page(1, [0, 2], [12, 11]), page(2, [3], [13]))
        assert wrong(site.audit()) == {}
        site.record(page(3, [1], [14]))
        assert wrong(site.audit()) == {"reordered": 1}

    def test_a_table_without_sources_and_own_sql_say_what_they_cannot_tell(
        self, request: pytest.FixtureRequest, make_site: Callable[..., Site]
    ) -> None:
        by_id = self.make(
            request, make_site, 'to = {{ table = "ledger", resource = "shop", columns = {{ id = "ce:id" }} }}'
        )
        for source in ("/a", "/b"):
            by_id.site.write(by_id.site.log, 1, source=source)
            by_id.row(1)
        by_id.stand_at(2)

        report = by_id.site.audit()

        assert wrong(report) == {}
        assert any("map a column from ce:source" in note for note in report.findings.notes)

    def test_own_sql_is_held_against_the_inbox_alone(
        self, request: pytest.FixtureRequest, make_site: Callable[..., Site]
    ) -> None:
        own = self.make(
            request,
            make_site,
            'to = {{ resource = "shop", mode = "sql", sql = "insert into ledger (id) values (%(id)s)", '
            'columns = {{ id = "ce:id" }} }}',
        )
        own.site.write(own.site.log, 1)
        own.site.write(own.site.log, 2)
        own.inbox(1, 0)
        own.stand_at(2)

        report = own.site.audit()

        assert wrong(report) == {"lost": 1}
        assert any("not checkable" in note for note in report.findings.notes)


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

"""`relay verify` on tables: faults planted by hand in PostgreSQL and SQLite are found; no worker runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from relay.audit.tables import open_store
from relay.audit.verify import verify
from relay.config.model import ResourceConfig
from relay.monitor.entries import DEAD, DELIVERED, Page, Proof
from tests.integration.audit_site import TABLE_ROUTE, Site, digest, offender, wrong
from tests.routes import delete_below

OWN_SQL = (
    'to = {{ resource = "shop", mode = "sql", sql = "insert into ledger (id) values (%(id)s)", '
    'columns = {{ id = "ce:id" }} }}'
)


class Ledger:
    """The destination table and the relay's own tables, written by hand: each row in a transaction of its own."""

    def __init__(self, site: Site, execute: Callable[[str, Mapping[str, Any]], object]) -> None:
        self.site, self.execute = site, execute

    def row(self, number: int, source: str = "/a") -> None:
        values = {"id": f"m{number}", "source": source}
        self.execute("insert into ledger (id, source) values (:id, :source)", values)

    def inbox(self, number: int, offset: int, outcome: int = DELIVERED, *, route: str = "main") -> None:
        self.execute(
            "insert into relay_inbox (relay, route, digest, content, topic_id, partition, log_offset, outcome)"
            " values (:relay, :route, :digest, :content, :topic, 0, :offset, :outcome)",
            {"relay": self.site.config.relay.name, "route": route, "digest": digest(number), "content": b"",
             "topic": self.site.topic_id, "offset": offset, "outcome": outcome},
        )  # fmt: skip

    def stand_at(self, position: int, *, route: str = "main", topic: str = "") -> None:
        self.execute(
            "insert into relay_position (relay, route, topic_id, topic, partition, position, epoch, worker)"
            " values (:relay, :route, :topic, :name, 0, :position, 1, 'w')",
            {"relay": self.site.config.relay.name, "route": route, "topic": bytes(16) if topic else self.site.topic_id,
             "name": topic or self.site.log, "position": position},
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

    def test_a_death_whose_dead_letter_is_still_to_come_is_lag_not_loss(self, ledger: Ledger) -> None:
        site = ledger.site
        for number in range(2):
            site.write(site.log, number)
            ledger.inbox(number, number, DEAD)
        ledger.stand_at(2)
        # Its entry may be acknowledged before its dead letter is: they are appended together.
        site.record(Page("w", bytes(16), 1, Proof.PROVEN, None, site.log, 0, digest(0), bytes(8), [0], bytes([DEAD])))

        assert wrong(site.audit()) == {"unseen": 2}

        for number in range(2):
            site.dead(digest(number))
        assert wrong(site.audit()) == {}

    def test_a_row_beside_a_dead_letter_that_stands_is_a_second_outcome(self, ledger: Ledger) -> None:
        site = ledger.site
        site.write(site.log, 0)
        ledger.row(0)
        ledger.inbox(0, 0)
        ledger.stand_at(1)
        site.dead(digest(0))

        assert wrong(site.audit()) == {"duplicates": 1}

        site.dead(digest(0), code="redriven", replay=1)
        assert wrong(site.audit()) == {}

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

    @pytest.mark.parametrize("sourced", [True, False])
    def test_rows_of_a_topic_that_the_route_reads_no_more_are_no_faults(
        self, request: pytest.FixtureRequest, make_site: Callable[..., Site], *, sourced: bool
    ) -> None:
        to = TABLE_ROUTE if sourced else TABLE_ROUTE.replace(', source = "ce:source"', "")
        ledger = self.make(request, make_site, to)
        site = ledger.site
        site.write(site.log, 1)
        numbers = [1, 2, 3]
        for number in numbers:
            ledger.row(number)
        ledger.execute("insert into ledger (id, source) values (null, '/a')", {})
        ledger.execute("insert into ledger (id, source) values ('m99', '/a')", {})  # never sent
        former = b"".join([digest(2), digest(3), b"n" * 16])  # of a message without an id the position is the identity
        site.record(Page("w", bytes(16), 1, Proof.PROVEN, None, "returns", 0, former, bytes(24), [0, 1, 2], bytes([DELIVERED]) * 3))
        ledger.stand_at(1)

        report = site.audit()

        assert wrong(report) == {"phantoms": 1}
        assert report.findings.expired == 3

    @pytest.mark.parametrize("sourced", [True, False])
    def test_rows_of_another_route_into_the_same_table_are_no_phantoms(
        self, request: pytest.FixtureRequest, make_site: Callable[..., Site], *, sourced: bool
    ) -> None:
        to = TABLE_ROUTE if sourced else TABLE_ROUTE.replace(", source = \"ce:source\"", "")
        ledger = self.make(request, make_site, f'{to}\n[routes.other]\nfrom = ["{{output}}"]\n{to}')
        site = ledger.site
        site.write(site.log, 1)
        for number in (2, 3):
            site.write(site.output, number)
        for number in (1, 2, 3, 99):  # 99 never sent
            ledger.row(number)
        ledger.stand_at(1)
        ledger.inbox(2, 0, route="other")
        site.monitor = site.config.monitor_topic("other")
        site.record(
            Page("w", bytes(16), 1, Proof.PROVEN, None, site.output, 0, digest(3), bytes(8), [1], bytes([DELIVERED]))
        )

        (report,) = verify(site.config, ["main"])

        assert wrong(report) == {"phantoms": 1}
        assert any("other" in note for note in report.findings.notes)

    def test_rows_without_a_source_that_may_be_older_than_another_routes_log_are_said(
        self, request: pytest.FixtureRequest, make_site: Callable[..., Site], kafka_admin: AdminClient
    ) -> None:
        to = TABLE_ROUTE.replace(", source = \"ce:source\"", "")
        ledger = self.make(request, make_site, f'{to}\n[routes.other]\nfrom = ["{{output}}"]\n{to}')
        site = ledger.site
        for number in (1, 2):
            site.write(site.output, number)
            ledger.row(number)
        delete_below(kafka_admin, site.output, 1)

        (report,) = verify(site.config, ["main"])

        assert wrong(report) == {}
        assert any("2 ids in ledger are of no message of this route" in note for note in report.findings.notes)

    @pytest.mark.parametrize(("route", "topic"), [("before", ""), ("other", "a topic of before")])
    def test_rows_without_a_source_that_a_route_may_have_written_before_it_was_changed_are_said(
        self, request: pytest.FixtureRequest, make_site: Callable[..., Site], route: str, topic: str
    ) -> None:
        to = TABLE_ROUTE.replace(", source = \"ce:source\"", "")
        ledger = self.make(request, make_site, f'{to}\n[routes.other]\nfrom = ["{{output}}"]\n{to}')
        ledger.stand_at(0)
        ledger.row(1)
        assert wrong(verify(ledger.site.config, ["main"])[0]) == {"phantoms": 1}
        ledger.stand_at(7, route=route, topic=topic)

        (report,) = verify(ledger.site.config, ["main"])

        assert wrong(report) == {}
        assert any("1 ids in ledger are of no message of this route" in note for note in report.findings.notes)

    def test_own_sql_is_held_against_the_inbox_alone(
        self, request: pytest.FixtureRequest, make_site: Callable[..., Site]
    ) -> None:
        own = self.make(request, make_site, OWN_SQL)
        own.site.write(own.site.log, 1)
        own.site.write(own.site.log, 2)
        own.inbox(1, 0)
        own.stand_at(2)

        report = own.site.audit()

        assert wrong(report) == {"lost": 1}
        assert any("not checkable" in note for note in report.findings.notes)

    def test_what_a_restored_database_lacks_is_not_delivered_whatever_the_monitor_says(
        self, request: pytest.FixtureRequest, make_site: Callable[..., Site]
    ) -> None:
        own = self.make(request, make_site, OWN_SQL)
        site = own.site
        for number in range(3):
            site.write(site.log, number)
        numbers = [0, 1, 2]
        site.record(
            Page("w", bytes(16), 1, Proof.PROVEN, None, site.log, 0, b"".join(map(digest, numbers)), bytes(24), numbers,
                 bytes([DELIVERED]) * 3, b"", [1, 2, 3])
        )  # fmt: skip
        own.inbox(2, 2)  # delivered above the position, before the backup
        own.stand_at(1)

        report = site.audit()

        assert not report.ok
        assert report.findings.delivered == 2
        assert offender(report, "lost")[0] == f"{site.log}[0]@1"

    def test_rows_older_than_the_log_that_nothing_tells_are_said(
        self, request: pytest.FixtureRequest, make_site: Callable[..., Site], kafka_admin: AdminClient
    ) -> None:
        by_id = self.make(
            request, make_site, 'to = {{ table = "ledger", resource = "shop", columns = {{ id = "ce:id" }} }}'
        )
        for number in range(3):
            by_id.site.write(by_id.site.log, number)
            by_id.row(number)
        by_id.stand_at(3)
        delete_below(kafka_admin, by_id.site.log, 2)

        report = by_id.site.audit()

        assert wrong(report) == {"phantoms": 2}
        assert any(f"the log begins at {by_id.site.log}[0]@2" in note for note in report.findings.notes)


def test_postgresql_is_read_as_it_was_when_the_audit_opened_it_and_never_written(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute("create table ledger (id text)")
        store = open_store("shop", ResourceConfig(url=SecretStr(postgres)))
        database.execute("insert into ledger values ('1')")

        assert list(store.rows("ledger", ["id"])) == []
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            store._connection.execute("insert into ledger values ('2')")  # type: ignore[attr-defined]
        store.close()


class TestIdsThatTheColumnSpellsItsOwnWay:
    """A uuid in capitals, a number with zeros, blanks at an end: the message and its row are the same."""

    WRITTEN = "0E37DF36-F698-11E6-8DD4-CB9CED3DF976"

    def test_on_postgresql(self, make_site: Callable[..., Site], shop: str) -> None:
        spellings = {"uuid": self.WRITTEN, "bigint": "007", "character(40)": "m1  ", "text": self.WRITTEN}
        for kind, written in spellings.items():
            ledger = on_postgresql(make_site(TABLE_ROUTE, shop))
            ledger.execute(f"drop table ledger; create table ledger (id {kind}, source text)", {})
            self.check(ledger, written)

    def test_on_sqlite(self, make_site: Callable[..., Site], tmp_path: Path) -> None:
        for number, (kind, written) in enumerate({"integer": "007", "numeric": "+7", "varchar": "007", "": "007"}.items()):
            path = tmp_path / f"{number}.db"
            database = sqlite3.connect(path)
            database.execute(f"create table ledger (id {kind}, source text)")
            database.close()
            self.check(on_sqlite(make_site(TABLE_ROUTE, f'[resources.shop]\nurl = "sqlite:///{path}"\n')), written)

    @staticmethod
    def check(ledger: Ledger, written: str) -> None:
        site = ledger.site
        site.write(site.log, 0, ce_id=written)
        site.write(site.log, 1, ce_id="not a number")  # not delivered yet
        ledger.execute("insert into ledger (id, source) values (:id, '/a')", {"id": written})
        ledger.stand_at(1)

        assert wrong(site.audit()) == {"unseen": 1}

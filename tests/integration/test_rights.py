"""Each role does its work with what README's table "Rights" gives it; without one of these it says at once which is missing."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import KafkaException
from structlog.testing import capture_logs

from relay import Capture, CaptureError
from relay.config.loading import load
from relay.kafka import settings
from relay.kafka.appending import Appending
from relay.kafka.bulk import BulkAppender
from relay.kafka.clients import Producer
from relay.kafka.following import Following
from relay.kafka.groups import Groups
from relay.kafka.scan import Scan
from relay.message.errors import ConfigError, Stopped
from relay.message.record import LogPartition
from relay.resources import open_resource
from relay.run import status_record
from relay.run.following import control_topic
from relay.run.restarts import ExitCode, Past
from relay.work import past
from tests.integration.secured_site import (
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    READ,
    TOPIC,
    TRANSACTION,
    WRITE,
    Right,
    Secured,
    password,
    rights,
    secured_broker,
)
from tests.own_services import or_skipped
from tests.routes import Route, ce, publish, read_all, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    with or_skipped(), secured_broker() as broker:
        yield broker


class TopicSite:
    """A topic route whose worker has its role's rights."""

    def __init__(self, secured: Secured, directory: Path) -> None:
        self.secured = secured
        self.route = Route(directory, secured.kafka, "", '{ topic = "" }')
        name = self.name = self.route.name
        self.log, self.out, self.worker = f"log-{name}", f"out-{name}", f"worker-{name}"
        secured.topics(self.log, self.out)
        path = self.route.path
        text = path.read_text().replace('from = [""]', f'from = ["{self.log}"]').replace('topic = ""', f'topic = "{self.out}"')
        path.write_text(text)
        self.route.migrate()
        path.write_text(re.sub(r'"bootstrap.servers" = .*\n', secured.settings(self.worker), text))
        secured.user(self.worker, worker_rights(name, self.log, self.out))

    def publish(self, first: int, count: int) -> None:
        publish(self.secured.kafka, self.log, [(0, ce("/s", f"m-{n}"), b"v") for n in range(first, first + count)])

    def missing(self) -> str:
        """Return the worker's last word of a right; its client may have said something since."""
        return [line for line in self.route.said().splitlines() if "the right" in line][-1]

    def status(self) -> Any:
        """Return what the worker has said of itself last."""
        said = [one.value() for one in read_all(self.secured.kafka, f"{self.name}.control", 1) if one.key().startswith(b"status/main/")]
        return status_record.decode(said[-1])

    def delivered(self) -> int:
        return len(read_all(self.secured.kafka, self.out, 1))


def worker_rights(relay: str, log: str, out: str) -> list[Right]:
    """The first two rows "relay" of README's table: a relay with a topic route."""
    own = {name: f"{relay}.{name}" for name in ("main.monitor", "control", "decisions", "deadletter", "inquiries")}
    read = [log, out, *(topic for name, topic in own.items() if name != "inquiries")]
    written = [out, *(topic for name, topic in own.items() if name != "decisions")]
    return [
        *rights(TOPIC, read, READ, DESCRIBE),
        *rights(TOPIC, written, WRITE),
        *rights(TOPIC, out, DESCRIBE_CONFIGS),
        *rights(GROUP, f"{relay}.*", READ),
        *rights(TRANSACTION, f"{relay}.*", WRITE, DESCRIBE),
    ]


@pytest.fixture
def site(secured: Secured, tmp_path: Path) -> Iterator[TopicSite]:
    made = TopicSite(secured, tmp_path)
    yield made
    made.route.stop()
    for heard in tmp_path.glob("*.log"):
        assert password(made.worker) not in heard.read_text()


def test_a_worker_with_the_rights_of_its_role_delivers_and_recovers(site: TopicSite) -> None:
    site.publish(0, 10)
    site.route.kill_at("sealed.committed:2")
    site.publish(10, 10)

    assert site.route.finish() == 0, site.route.said()

    assert site.delivered() == 20


def test_without_the_right_to_write_what_a_transaction_holds_it_stops_and_says_so(site: TopicSite) -> None:
    """Taken for an unknown outcome, it would be tried for ever, some times a second."""
    site.publish(0, 10)
    for topic in (site.out, f"{site.name}.main.monitor"):
        with site.secured.without(site.worker, *rights(TOPIC, topic, WRITE)):
            assert site.route.finish() == ExitCode.PERSON, site.route.said()
            assert topic in site.missing()
            shown = site.status()
            assert (shown.state, topic in shown.last_error) == ("stopped", True), shown
    assert site.route.finish() == 0, site.route.said()
    assert site.delivered() == 10


def test_without_a_right_that_every_worker_needs_it_stops_and_names_it(site: TopicSite) -> None:
    """Of the control topic and of its group: taken for a broker that is away, it would be tried for ever, or name nothing."""
    control, groups = f"{site.name}.control", f"{site.name}.*"
    for denied, code, named in (
        (rights(TOPIC, control, WRITE), ExitCode.PERSON, f"{control} cannot be written"),
        (rights(TOPIC, control, READ), ExitCode.PERSON, f"{control}[0] cannot be read"),
        (rights(GROUP, groups, READ), ExitCode.PERSON, f"for group {site.name}.main;"),
    ):
        with site.secured.without(site.worker, *denied):
            assert site.route.finish() == code, site.route.said()
            assert named in site.missing()


def test_a_right_that_is_taken_away_while_it_runs_is_said_and_ends_nothing(site: TopicSite) -> None:
    """Of the control topic: only its status comes through no more, and what it has begun it finishes."""
    worker = site.route.start()
    wait_for(lambda: "running" in site.route.said(), told=site.route.said)
    with site.secured.without(site.worker, *rights(TOPIC, f"{site.name}.control", WRITE)):
        wait_for(lambda: "control cannot be written" in site.route.said(), told=site.route.said)
        site.publish(0, 10)
        wait_for(lambda: site.delivered() == 10, told=site.route.said)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0, site.route.said()
    assert "status not written" in site.route.said()


def test_who_may_read_a_topic_needs_no_right_to_a_group_and_who_may_not_is_told_so(site: TopicSite) -> None:
    site.publish(0, 3)
    config, place = load(site.route.path), LogPartition(site.log, 0)
    site.secured.revoke(site.worker, *rights(GROUP, f"{site.name}.*", READ))

    def follow() -> int:
        following = Following(settings.consumer(config.kafka, config.timing, f"{site.name}.r"), site.log, deadline_s=20)
        try:
            return len(following.records())
        finally:
            following.close()

    def scan() -> int:
        with Scan(config.kafka, config.timing, f"{site.name}.r", deadline_s=20) as scanned:
            return sum(map(len, scanned.read({place: (0, 3)})))

    assert (follow(), scan()) == (3, 3)
    groups = Groups(config.kafka, config.timing, 4.0)
    with Scan(config.kafka, config.timing, f"{site.name}.r", deadline_s=4) as scanned:
        for ask in (groups.committed, scanned.committed):
            with pytest.raises(ConfigError, match=f"group {site.name}.main.*GROUP_AUTH.*; grant|group {site.name}.main .*Group auth.*; grant"):
                ask(f"{site.name}.main", [place])
    groups.close()
    for operations in ([READ], [READ, DESCRIBE]):
        with site.secured.without(site.worker, *rights(TOPIC, site.log, *operations)):
            for read in (follow, scan) if operations == [READ] else (follow,):
                with pytest.raises(ConfigError, match=f"{site.log}.* cannot be read: .*; grant the right"):
                    read()


def test_who_may_not_write_outside_transactions_is_told_so(site: TopicSite) -> None:
    """Also without a right to write to anything, which the client takes for the end of that producer."""
    config = load(site.route.path)
    appending = Appending(settings.producer(config.kafka, config.timing))
    with site.secured.without(site.worker, *rights(TOPIC, site.out, WRITE)):
        appending.append(appending.bundle(1), LogPartition(site.out, 0), b"k", b"v")
        with pytest.raises(Stopped, match=f"{site.out}.* cannot be written: .*; grant the right"):
            appending.flush(20)
        with pytest.raises(Stopped):
            appending.acknowledged()
        bulk = BulkAppender(config.kafka, config.timing, 20)
        bulk.append([(site.out, 0, b"k", b"v", [])])
        with pytest.raises(ConfigError, match=f"{site.out} cannot be written: .*; grant the right"):
            bulk.flush()

    written = [right for right in worker_rights(site.name, site.log, site.out) if right.operation == WRITE]
    control = control_topic(config)
    with site.secured.without(site.worker, *written):
        for _ in range(2):
            with pytest.raises(ConfigError, match=f"{config.control_topic} cannot be written: .*; grant the right"):
                control.put(b"k", b"v", wait=True)
    control.put(b"k", b"v", wait=True)
    control.close()


def test_a_client_tells_why_it_ended_whatever_its_reports_lead_to(site: TopicSite) -> None:
    """The reports behind its end come while that is being raised, and whoever catches something there would catch it as well."""
    config = load(site.route.path)

    def told(_error: object, _record: object) -> None:
        with suppress(KeyError):
            raise KeyError

    written = [right for right in worker_rights(site.name, site.log, site.out) if right.operation == WRITE]
    with site.secured.without(site.worker, *written):
        client = Producer(settings.producer(config.kafka, config.timing))
        client.produce(config.control_topic, b"v", on_delivery=told)
        with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
            client.flush(20)


def test_handlers_that_may_not_say_that_earlier_processes_failed_go_on_and_tell_their_log(site: TopicSite) -> None:
    control = f"{site.name}.control"

    def told() -> dict[str, Any]:
        with capture_logs() as logs:
            past.tell(load(site.route.path), "orders", "ledger", 0, Past(1, 1, "exit code 1"))
            return dict(wait_for(lambda: logs or written())[0])

    def written() -> list[dict[str, bool]]:
        return [{"written": True}] * any(one.key() == b"status/orders/ledger/" + worker for one in read_all(site.secured.kafka, control, 1))

    worker = f"{site.name}.orders/ledger.test.0".encode()
    with site.secured.without(site.worker, *rights(TOPIC, control, WRITE)):
        reason = told()["reason"]
    assert f"{control} cannot be written" in reason
    assert "the right" in reason
    assert told() == {"written": True}


def test_a_publisher_whose_client_has_ended_for_want_of_a_right_goes_on_once_it_has_it(secured: Secured, tmp_path: Path) -> None:
    """That end is raised where the delivery reports come: the thread that serves all captures of the process died of it."""
    log = f"log-{uuid4().hex[:8]}"
    secured.topics(log)
    user, seen = f"publisher-of-{log}", rights(TOPIC, log, DESCRIBE, DESCRIBE_CONFIGS)
    secured.user(user, seen)
    database = tmp_path / "shop.db"
    open_resource("shop", f"sqlite:///{database}").create_tables()
    path = tmp_path / "relay.toml"
    path.write_text(
        f'[relay]\nname = "r"\ninstance = "i"\n[kafka]\n{secured.settings(user)}[resources.shop]\nurl = "sqlite:///{database}"\n'
    )
    with Capture.open(path, resource="shop", source="/s") as capture:
        for _ in range(2):
            with pytest.raises(CaptureError, match=f"topic {log}: .*authorization failed; grant the right"), capture.transaction() as tx:
                tx.publish(log, data={})
        secured.grant(user, *rights(TOPIC, log, WRITE))
        with capture.transaction() as tx:
            tx.publish(log, data={})
    assert len([one for one in read_all(secured.kafka, log, 1) if dict(one.headers()).get("ce_type") != b"relay.outcome"]) == 1


def test_a_publisher_says_what_it_leaves_undone_for_want_of_a_right(
    secured: Secured, postgres: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """None of that fails a capture: rows that are never trimmed, and relays that wait for an answer, were all that told."""
    open_resource("shop", postgres).create_tables()
    role = f"publisher_{uuid4().hex[:8]}"
    secured.user(role)
    path = tmp_path / "relay.toml"
    url = f"postgresql://{role}:canary@{postgres.rpartition('@')[2]}"
    path.write_text(f'[relay]\nname = "{role}"\ninstance = "i"\n[kafka]\n{secured.settings(role)}[resources.shop]\nurl = "{url}"\n')
    with psycopg.connect(postgres, autocommit=True) as owner:
        owner.execute(f"create role {role} login password 'canary'")
        owner.execute(f"grant select on relay_resource to {role}; grant select, insert, update on relay_capture to {role}")
        try:
            with Capture.open(path, resource="shop", source="/s"):
                wait_for(lambda: "upkeep of captures waits: resources.shop: the role has no right" in caplog.text, what="the row")
                owner.execute(f"grant delete on relay_capture to {role}")
                wait_for(lambda: f"not answered: {role}.inquiries cannot be read" in caplog.text, what="the topic")
        finally:
            owner.execute(f"drop owned by {role}; drop role {role}")


def test_a_publisher_needs_in_the_database_what_its_role_has_and_is_told_what_it_lacks(postgres: str) -> None:
    """Called unreachable, a right that is missing is waited for."""
    resource = open_resource("shop", postgres)
    resource.create_tables()
    role = f"publisher_{uuid4().hex[:8]}"
    with psycopg.connect(postgres, autocommit=True) as owner:
        try:
            owner.execute(f"create role {role} login password 'canary'")
            owner.execute(f"grant select on relay_resource to {role}; grant select, insert, update, delete on relay_capture to {role}")
            limited = open_resource("shop", f"postgresql://{role}:canary@{postgres.rpartition('@')[2]}")
            session = limited.session()
            capture, _ = session.begin()
            session.decide(capture, b"")
            owner.execute(f"revoke insert on relay_capture from {role}")
            with pytest.raises(ConfigError, match="permission denied for table relay_capture; grant"):
                session.begin()
            session.close()
        finally:
            owner.execute(f"drop owned by {role}; drop role {role}")

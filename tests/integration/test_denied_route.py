"""A right that one route lacks stops that route with the remedy; the routes beside it go on."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from relay.local.kafka import SMALL
from relay.run.restarts import ExitCode
from tests.cluster_changes import give_rights, make_topics
from tests.own_services import own_brokers
from tests.routes import Route, ce, publish, read_all, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]

RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
TOPICS = ("log", "out", "log-beside", "out-beside")


@pytest.fixture
def kafka() -> Iterator[str]:
    """A broker that can deny rights."""
    with own_brokers("denied", settings=replace(SMALL, properties=RIGHTS)) as local:
        yield local.kafka


def rule(admin: AdminClient, topic: str, operation: AclOperation, permission: AclPermissionType) -> None:
    """Say who may do what with a topic; what no rule allows is denied once there is one."""
    said = AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, permission)
    give_rights(admin, [said])


def test_the_routes_beside_a_denied_one_go_on(kafka: str, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    make_topics(admin, *(NewTopic(name, 1) for name in TOPICS))
    beside = '[routes.beside]\nfrom = ["log-beside"]\nto = { topic = "out-beside" }'
    route = Route(tmp_path, kafka, "log", '{ topic = "out" }', beside)
    route.migrate()
    rule(admin, "log", AclOperation.DESCRIBE, AclPermissionType.DENY)
    heard = tmp_path / "relay.log"
    command = [Path(sys.executable).with_name("relay"), "run", str(route.path)]
    with heard.open("wb") as log:
        supervisor = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(lambda: b"the broker does not allow it" in heard.read_bytes(), what="the route's word")
        publish(kafka, "log-beside", [(0, ce("/s", f"m-{n}"), b"v") for n in range(10)])
        wait_for(
            lambda: supervisor.poll() is not None or len(read_all(kafka, "out-beside", 1)) == 10, what="the other route"
        )
        assert supervisor.poll() is None, heard.read_text()
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 1, heard.read_text()
    finally:
        supervisor.kill()
        supervisor.wait(10)


def test_a_recovery_that_may_not_read_the_outputs_stops_with_the_right_that_is_missing(kafka: str, tmp_path: Path) -> None:
    """Taken for a broker that is away, it would be tried for ever."""
    admin = AdminClient({"bootstrap.servers": kafka})
    make_topics(admin, *(NewTopic(name, 1) for name in TOPICS[:2]))
    route = Route(tmp_path, kafka, "log", '{ topic = "out" }')
    route.migrate()
    publish(kafka, "log", [(0, ce("/s", f"m-{n}"), b"v") for n in range(10)])
    route.kill_at("sealed.committed:2")
    for allowed in (AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS):
        rule(admin, "out", allowed, AclPermissionType.ALLOW)

    assert route.finish() == ExitCode.PERSON, route.said()

    assert "out[0] cannot be read: TOPIC_AUTHORIZATION_FAILED" in route.said()
    assert "grant the right" in route.said()
    rule(admin, "out", AclOperation.READ, AclPermissionType.ALLOW)
    assert route.finish() == 0, route.said()
    assert len(read_all(kafka, "out", 1)) == 10

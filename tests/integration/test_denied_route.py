"""A right that one route lacks stops that route with the remedy; the routes beside it go on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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

from relay.local.kafka import BrokerSettings
from relay.local.services import LocalServices
from relay.message.errors import ConfigError, Unreachable
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
    directory = Path(tempfile.mkdtemp(prefix="relay-denied-"))
    try:
        try:
            local = LocalServices.up(directory, postgres=False, settings=BrokerSettings("256m", properties=RIGHTS))
        except (ConfigError, Unreachable) as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no local broker: {error}")
        yield local.kafka
    finally:
        started = LocalServices.find(directory)
        if started is not None:
            started.down()
        shutil.rmtree(directory, ignore_errors=True)


def test_the_routes_beside_a_denied_one_go_on(kafka: str, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    for created in admin.create_topics([NewTopic(name, 1) for name in TOPICS]).values():
        created.result(30)
    beside = '[routes.beside]\nfrom = ["log-beside"]\nto = { topic = "out-beside" }'
    route = Route(tmp_path, kafka, "log", '{ topic = "out" }', beside)
    route.migrate()
    denied = AclBinding(
        ResourceType.TOPIC, "log", ResourcePatternType.LITERAL, "User:ANONYMOUS", "*",
        AclOperation.DESCRIBE, AclPermissionType.DENY,
    )  # fmt: skip
    for done in admin.create_acls([denied]).values():
        done.result(30)
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

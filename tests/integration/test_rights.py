"""Each role does its work with what README's table "Rights" gives it; without one of these it says at once which is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.message.errors import ConfigError, Unreachable
from relay.run.restarts import ExitCode
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
from tests.routes import Route, ce, publish, read_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    try:
        with secured_broker() as broker:
            yield broker
    except (ConfigError, Unreachable) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no local broker: {error}")


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

    def delivered(self) -> int:
        return len(read_all(self.secured.kafka, self.out, 1))


def worker_rights(relay: str, log: str, out: str) -> list[Right]:
    """The row "relay" of README's table, for a topic route."""
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
    assert password(made.worker) not in made.route.said()


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
            assert topic in site.route.said().splitlines()[-1]
            assert "give the relay the right" in site.route.said().splitlines()[-1]
    assert site.route.finish() == 0, site.route.said()
    assert site.delivered() == 10

"""Each command does its work with what README's table "Rights" gives to whoever runs it, and nothing more."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from confluent_kafka.admin import ResourceType
from typer.testing import CliRunner

from relay.cli.main import app
from tests.integration.secured_site import (
    ALTER,
    ALTER_CONFIGS,
    CREATE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    READ,
    TOPIC,
    WRITE,
    Right,
    Secured,
    rights,
    secured_broker,
)
from tests.own_services import or_skipped
from tests.routes import Route, ce, publish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]
HEADERS_TOO_MANY: Final = [(f"h{n}", b"") for n in range(300)]
QUEUES: Final = """
[routes.queued]
from = ["LOG"]
to = { queue = "credit" }
[routes.never]
from = ["LOG"]
to = { queue = "mail" }
[queues.credit]
store = "sqlite:///queues.db"
subscribers = { approval = {} }
[queues.mail]
store = "sqlite:///queues.db"
subscribers = { sender = {} }
"""
"""The second route never runs."""
ROUTES: Final = ("--route", "main", "--route", "queued")


class Site:
    """A relay that has delivered ten messages to a topic and a queue, and put one aside; a configuration for each role."""

    def __init__(self, secured: Secured, directory: Path) -> None:
        self.secured, self.directory = secured, directory
        self.route = Route(directory, secured.kafka, "", '{ topic = "" }')
        self.name = self.route.name
        self.log, self.out = f"log-{self.name}", f"out-{self.name}"
        secured.topics(self.log, self.out)
        path = self.route.path
        text = path.read_text().replace('from = [""]', f'from = ["{self.log}"]').replace('topic = ""', f'topic = "{self.out}"')
        path.write_text(text + QUEUES.replace("LOG", self.log))
        self.route.migrate()
        publish(secured.kafka, self.log, [(0, ce("/s", f"m-{n}"), b"v") for n in range(10)])
        publish(secured.kafka, self.log, [(0, [*ce("/s", "dead"), *HEADERS_TOO_MANY], b"v")])
        assert self.route.finish() == 0, self.route.said()

    def topic(self, *names: str) -> list[str]:
        """Return names of the relay's own topics."""
        return [f"{self.name}.{name}" for name in names]

    def role(self, *allowed: Right) -> str:
        """Return the path of a configuration for somebody who has these rights."""
        user = f"role-{uuid4().hex[:8]}"
        self.secured.user(user, allowed)
        path = self.directory / f"{user}.toml"
        path.write_text(re.sub(r'"bootstrap.servers" = .*\n', self.secured.settings(user), self.route.path.read_text()))
        return str(path)

    def status(self) -> list[Right]:
        return [
            *rights(TOPIC, self.topic("control", "deadletter"), READ, DESCRIBE),
            *rights(TOPIC, self.log, DESCRIBE, DESCRIBE_CONFIGS),
            *rights(GROUP, f"{self.name}.*", DESCRIBE),
        ]


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    with or_skipped(), secured_broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def site(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(secured, tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def filled(site: Site) -> Site:
    """The same, with the queue's route run."""
    command = [sys.executable, "-m", "relay.cli.main", "run", str(site.route.path), "--until-idle", "1s", *ROUTES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site


def ask(*words: str) -> tuple[int, Any, str]:
    """Run a command; return its exit code, what it reports and what it says."""
    done = CliRunner().invoke(app, [*words, "--json"])
    return done.exit_code, json.loads(done.stdout or "null"), done.stderr


def test_status(site: Site) -> None:
    code, told, said = ask("status", site.role(*site.status()))

    assert (code, told["notes"]) == (1, []), f"{said}: its workers are stopped"
    route = told["routes"]["main"]
    assert (route["lag"], route["dead_letters"], route["causes"]) == (0, 1, {"headers": 1})
    assert [(place["position"], place["end"], place["nears_retention"]) for place in route["partitions"]] == [(11, 11, False)]


def test_verify(filled: Site) -> None:
    config = filled.role(*rights(TOPIC, [filled.log, filled.out, f"{filled.name}.*"], READ), *rights(GROUP, f"{filled.name}.*", DESCRIBE))

    code, told, said = ask("verify", config, *ROUTES)

    assert code == 0, said
    assert [(route["delivered"], route["dead_letters"]) for route in told["routes"].values()] == [(10, 1), (10, 1)]


def test_in_doubt(site: Site) -> None:
    config = site.role(*site.status(), *rights(TOPIC, [site.log, *site.topic("main.monitor")], READ), *rights(TOPIC, site.out, DESCRIBE_CONFIGS))

    code, told, said = ask("indoubt", "list", config)

    assert code == 0, said
    assert (told["items"], told["stuck"], told["notes"]) == ([], [], [])


def test_dead_letters(filled: Site) -> None:
    reading = rights(TOPIC, filled.topic("deadletter"), READ)
    code, told, said = ask("deadletter", "list", filled.role(*reading))
    assert (code, [letter["route"] for letter in told["dead_letters"]]) == (0, ["main", "queued"]), said
    ordering = filled.role(*reading, *rights(TOPIC, filled.log, DESCRIBE), *rights(TOPIC, filled.topic("control"), READ, WRITE))

    code, told, said = ask("deadletter", "redrive", ordering, "--all", "--wait", "0")

    assert (code, len(told["orders"])) == (1, 2), f"{said}: no worker was there to obey"


LOOKS: Final = (
    "queue list", "queue show credit", "publisher list", "subscriber list", "message list credit", "message show credit 1",
    "message trace credit 1", "journal list credit", "journal show",
)  # fmt: skip
WISHES: Final = (
    "queue pause credit", "queue resume credit", "publisher pause /s", "publisher resume /s", "subscriber pause approval",
    "subscriber resume approval", "message priority credit 1 --to 7", "message withdraw credit 2", "journal archive",
)  # fmt: skip


def test_queues(filled: Site) -> None:
    reading = rights(TOPIC, filled.topic("control"), READ)
    for words, config in (
        *zip(LOOKS, repeat(filled.role(*reading)), strict=False),
        *zip(WISHES, repeat(filled.role(*reading, *rights(TOPIC, filled.topic("control"), WRITE))), strict=False),
    ):
        noun, verb, *more = words.split()
        code, _, said = ask(noun, verb, config, *more)
        assert code == 0, f"{words}: {said}"


def test_check(site: Site) -> None:
    config = site.role(
        *rights(TOPIC, [site.log, site.out, f"{site.name}.*"], DESCRIBE, DESCRIBE_CONFIGS),
        *rights(ResourceType.BROKER, "kafka-cluster", DESCRIBE_CONFIGS),
        *rights(TOPIC, site.topic("control"), READ),
    )

    code, told, said = ask("check", config, "--connect")

    assert (code, told["faults"]) == (0, []), said


def test_migrate(site: Site) -> None:
    other = f"{site.name}-other"
    allowed = [
        *rights(TOPIC, f"{other}.*", CREATE, ALTER, DESCRIBE_CONFIGS, ALTER_CONFIGS),
        *rights(TOPIC, site.log, DESCRIBE, DESCRIBE_CONFIGS),
        *rights(TOPIC, f"{other}.control", READ, WRITE),
    ]
    config = Path(site.role(*allowed))
    config.write_text(config.read_text().replace(f'name = "{site.name}"', f'name = "{other}"').replace("queues.db", "other.db"))

    for _ in range(2):
        code, _, said = ask("migrate", str(config))
        assert code == 0, said

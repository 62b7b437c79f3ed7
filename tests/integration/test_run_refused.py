"""`relay run` on brokers or topics that cannot keep the promise of a route: it says so and starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from relay.cli.main import app
from relay.kafka.settings import DefaultTiming
from relay.kafka.topics import BrokerFacts, Topics
from relay.message.errors import ConfigError
from relay.run import supervisor
from relay.setup.check_topics import VERIFICATION
from tests.cluster_changes import set_brokers
from tests.routes import Route, TopicRoute


@pytest.fixture
def careless_broker(kafka_admin: AdminClient) -> Iterator[None]:
    set_brokers(kafka_admin, VERIFICATION, "false")
    yield
    set_brokers(kafka_admin, VERIFICATION, "true")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    found: list[object] = []

    def run(one: object) -> int:
        found.append(one)
        return 0

    monkeypatch.setattr(supervisor.Supervisor, "run", run)
    return found


def run(route: Route) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["run", str(route.path), "--json"])
    return result.exit_code, result.stderr


def test_a_broker_that_does_not_verify_partitions_is_refused(
    make_route: Callable[..., TopicRoute], careless_broker: None, started: list[object]
) -> None:
    code, said = run(make_route())

    assert (code, started) == (2, [])
    assert f"{VERIFICATION} = false" in said
    assert "set it to true on every broker" in said


@pytest.mark.usefixtures("careless_broker")
def test_it_is_taken_by_whoever_says_so(make_route: Callable[..., TopicRoute], started: list[object]) -> None:
    route = make_route()
    route.say('partition_verification = "absent"')

    assert run(route)[0] == 0
    assert len(started) == 1


@pytest.mark.usefixtures("careless_broker")
def test_a_table_does_not_rest_on_it(tmp_path: Path, kafka: str, started: list[object]) -> None:
    to = '{ table = "ledger", resource = "shop", columns = { id = "ce:id" } }'
    route = Route(tmp_path, kafka, "log", to, f'[resources.shop]\nurl = "sqlite:///{tmp_path}/shop.db"')

    assert run(route)[0] == 0
    assert len(started) == 1


@pytest.mark.parametrize("assured", [False, True])
def test_what_cannot_be_seen_is_warned_of_unless_somebody_vouches_for_it(
    make_route: Callable[..., TopicRoute], monkeypatch: pytest.MonkeyPatch, started: list[object], assured: bool
) -> None:
    route = make_route()
    if assured:
        route.say('partition_verification = "assured"')
    monkeypatch.setattr(Topics, "brokers", lambda _: [BrokerFacts(1, "here:9092", None)])

    code, said = run(route)

    assert (code, len(started)) == (0, 1)
    assert (VERIFICATION in said) is not assured


def test_a_monitor_that_forgets_before_its_log_is_refused(
    make_route: Callable[..., TopicRoute], kafka: str, started: list[object]
) -> None:
    """What the log still has could be read again, and would be delivered again as something new (design section 13)."""
    route = make_route()
    with Topics({"bootstrap.servers": kafka}, DefaultTiming()) as topics:
        topics.alter(route.log, {"retention.ms": str(30 * 86_400_000)})

    code, said = run(route)

    assert (code, started) == (2, [])
    assert f"{route.log} may keep messages for 37d" in said
    assert "set timing.monitor_retention to at least 37d and run `relay migrate`" in said


def test_retentions_that_may_not_be_seen_are_left_to_the_check(
    make_route: Callable[..., TopicRoute], monkeypatch: pytest.MonkeyPatch, started: list[object]
) -> None:
    route = make_route()

    def refused(*_: object) -> NoReturn:
        raise ConfigError("DescribeConfigs is not granted")

    monkeypatch.setattr(Topics, "describe", refused)

    code, said = run(route)

    assert (code, len(started)) == (0, 1)
    assert "how long evidence is kept is left to `relay check --connect`" in said


def test_brokers_that_are_away_are_left_to_the_workers(tmp_path: Path, started: list[object]) -> None:
    code, said = run(Route(tmp_path, "127.0.0.1:1", "log", '{ topic = "out" }'))

    assert (code, len(started)) == (0, 1)
    assert "brokers not asked for their settings" in said

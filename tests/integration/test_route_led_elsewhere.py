"""A route whose configuration is changed between two runs: what it can go on with, and what it says of the rest."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay.run.restarts import ExitCode
from tests.routes import TopicRoute, ce, ids, publish

PARTITIONS = 2
COUNT = 40


@pytest.fixture
def route(tmp_path: Path, kafka: str, make_topic: Callable[..., str]) -> Iterator[TopicRoute]:
    made = TopicRoute(tmp_path, kafka, make_topic(PARTITIONS), make_topic(PARTITIONS), PARTITIONS)
    made.path.write_text(made.path.read_text() + '\n[resources.shop]\nurl = "sqlite:///shop.db"\n')
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("create table ledger (id text)")
    made.migrate()
    yield made
    made.stop()


def publish_some(route: TopicRoute, first: int = 0) -> None:
    publish(route.kafka, route.log, [(n % PARTITIONS, ce("/s", f"m-{n}"), b"v") for n in range(first, first + COUNT)])


def rows(route: TopicRoute) -> list[str]:
    with sqlite3.connect(route.path.parent / "shop.db") as database:
        return [identifier for (identifier,) in database.execute("select id from ledger")]


def test_led_to_a_table_and_back_it_does_not_go_on_where_the_table_stood(route: TopicRoute) -> None:
    publish_some(route)
    assert route.finish() == 0, route.said()
    to_topic = route.path.read_text()
    to_table = to_topic.replace(f'{{ topic = "{route.out}" }}', '{ table = "ledger", resource = "shop", columns = { id = "ce:id" } }')

    route.path.write_text(to_table)
    assert route.finish() == 0, route.said()
    assert sorted(rows(route)) == sorted(f"m-{n}" for n in range(COUNT)), "another destination has all of them"
    route.path.write_text(to_topic)

    assert route.finish() == ExitCode.PERSON, route.said()
    assert "was stored by a table or queue route of this name" in route.said()
    assert len(ids(route.outputs())) == COUNT

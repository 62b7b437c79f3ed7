"""Dead letters that their topic refuses at first: nothing is lost by it, and nothing stays that was taken back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from relay.config.loading import load
from tests.cluster_changes import set_topic
from tests.integration.test_redrive import LARGE, TableRoute, dead, numbers, redrive
from tests.routes import ce, publish, wait_for


@pytest.mark.parametrize("at_recovery", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_dead_letter_that_was_refused_is_appended_once_it_is_taken(
    tmp_path: Path, kafka: str, kafka_admin: AdminClient, make_topic: Callable[..., str], *, at_recovery: bool
) -> None:
    route = TableRoute(
        tmp_path, kafka, make_topic(2), f"sqlite:///{tmp_path}/ledger.db", 'on_dead = "continue"\ndedup = "route"'
    )
    route.run("create table ledger (source text, id text, n integer not null)")
    route.migrate()
    letters = load(route.path).deadletter_topic
    set_topic(kafka_admin, letters, "max.message.bytes", 2000)
    publish(kafka, route.log, [(0, ce("/s/0", "m-0"), b'{"n": null, "pad": "%s"}' % LARGE.hex().encode())])
    if at_recovery:
        route.kill_at("table.committed:2")
    assert route.finish() not in (0, 137), route.said()
    assert "is refused" in route.said()

    set_topic(kafka_admin, letters, "max.message.bytes", 1_000_000)
    assert route.finish() == 0, route.said()

    assert [row["message_id"] for row in dead(route)] == ["m-0"], "start again: it is appended then"
    redrive(route)
    assert route.finish() == 0, route.said()
    assert [row["replay_count"] for row in dead(route)] == [1]


def test_a_record_that_takes_a_dead_letter_back_is_appended_once_it_is_taken(
    tmp_path: Path, kafka: str, kafka_admin: AdminClient, make_topic: Callable[..., str]
) -> None:
    route = TableRoute(tmp_path, kafka, make_topic(2), f"sqlite:///{tmp_path}/ledger.db", 'on_dead = "continue"')
    route.run("create table ledger (source text, id text, n integer check (n > 1))")
    route.migrate()
    letters = load(route.path).deadletter_topic
    publish(kafka, route.log, [(0, [*ce("/s/0", "m-0"), ("large", LARGE)], b'{"n": 1}')])
    worker = route.start()
    wait_for(lambda: dead(route), what="the dead letter")
    route.run("drop table ledger", "create table ledger (source text, id text, n integer)")
    set_topic(kafka_admin, letters, "max.message.bytes", 2000)
    redrive(route)
    assert worker.wait(30) != 0, route.said()
    assert "is refused" in route.said()
    assert numbers(route) == [1]

    set_topic(kafka_admin, letters, "max.message.bytes", 1_000_000)
    assert route.finish() == 0, route.said()

    assert numbers(route) == [1]
    assert dead(route) == [], "start again: it is appended then"

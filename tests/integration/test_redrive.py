"""Redriving a route's dead letters on real parts: once, by the owner, whoever dies on the way."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from relay.cli.main import app
from relay.config.loading import load
from tests.cluster_changes import set_topic
from tests.routes import Route, TopicRoute, ce, delete_below, ids, publish, read_all, wait_for

LARGE = Random(1).randbytes(3000)  # does not shrink when it is compressed


def slow(*points: str) -> list[Any]:
    return [pytest.param(point, marks=pytest.mark.slow) for point in points]


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def dead(route: Route) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(invoke("deadletter", "list", route.path, "--json").output)["dead_letters"]
    return found


def redrive(route: Route, *words: str, wait: str = "0") -> dict[str, Any]:
    result = invoke("deadletter", "redrive", route.path, "--json", "--wait", wait, *(words or ("--all",)))
    assert result.exit_code in (0, 1), result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def verified(route: Route, **wanted: int) -> None:
    result = invoke("verify", route.path, "--json")
    (report,) = json.loads(result.output)["routes"].values()
    assert result.exit_code == 0, result.output
    assert {name: report[name] for name in wanted} == wanted


@pytest.fixture
def topic_route(
    tmp_path: Path, kafka: str, kafka_admin: AdminClient, make_topic: Callable[..., str]
) -> Iterator[TopicRoute]:
    route = TopicRoute(tmp_path, kafka, make_topic(2), make_topic(2), 2)
    route.migrate()
    set_topic(kafka_admin, route.out, "max.message.bytes", 2000)
    publish(
        kafka, route.log, [(n % 2, ce(f"/s/{n % 2}", f"m-{n}"), LARGE if n in (4, 5, 8) else b"v") for n in range(20)]
    )
    assert route.finish() == 0, route.said()
    assert len(dead(route)) == 3
    yield route
    route.stop()


def test_a_redrive_delivers_what_the_destination_takes_by_now(topic_route: TopicRoute, kafka_admin: AdminClient) -> None:
    route = topic_route
    set_topic(kafka_admin, route.out, "max.message.bytes", 1_000_000)

    assert redrive(route)["waiting"] == 3
    assert route.finish() == 0, route.said()

    assert sorted(ids(route.outputs())) == sorted(f"m-{n}" for n in range(20))
    assert dead(route) == []
    verified(route, delivered=20, dead_letters=0, reordered=0, duplicates=0)


@pytest.mark.slow
def test_what_dies_again_is_a_dead_letter_again_and_may_be_redriven_again(
    topic_route: TopicRoute, kafka_admin: AdminClient
) -> None:
    route = topic_route
    worker = route.start()

    first = redrive(route, wait="30")
    assert (first["delivered"], first["died"], first["waiting"]) == (0, 3, 0)
    assert [row["replay_count"] for row in dead(route)] == [1] * 3
    set_topic(kafka_admin, route.out, "max.message.bytes", 1_000_000)
    second = redrive(route, dead(route)[0]["digest"], wait="30")
    assert (second["delivered"], second["died"]) == (1, 0)
    worker.terminate()
    assert worker.wait(30) == 0, route.said()

    assert len(dead(route)) == 2
    verified(route, delivered=18, dead_letters=2, reordered=0, duplicates=0)


def test_a_redrive_that_was_carried_out_is_not_carried_out_again(
    topic_route: TopicRoute, kafka_admin: AdminClient
) -> None:
    route = topic_route
    set_topic(kafka_admin, route.out, "max.message.bytes", 1_000_000)
    redrive(route)
    redrive(route)  # of the same dead letters, before a worker has read the first order

    assert route.finish() == 0, route.said()
    assert route.finish() == 0, route.said()

    assert len(ids(route.outputs())) == 20
    result = invoke("deadletter", "redrive", route.path, "--all")
    assert result.exit_code == 1
    assert "no such dead letter" in result.output


@pytest.mark.parametrize("point", slow("sealed.announced", "sealed.outputs", "sealed.flushed", "sealed.committing", "sealed.committed"))
def test_killed_at_each_step_of_a_redrive_a_topic_gets_every_message_once(
    topic_route: TopicRoute, kafka_admin: AdminClient, point: str
) -> None:
    route = topic_route
    set_topic(kafka_admin, route.out, "max.message.bytes", 1_000_000)
    redrive(route)

    route.kill_at(f"{point}:2")  # the first is the claim
    assert route.finish() == 0, route.said()

    assert sorted(ids(route.outputs())) == sorted(f"m-{n}" for n in range(20))
    verified(route, delivered=20, dead_letters=0, reordered=0, duplicates=0)


def test_what_has_left_the_log_is_refused_with_a_reason(topic_route: TopicRoute, kafka_admin: AdminClient) -> None:
    route = topic_route
    set_topic(kafka_admin, route.out, "max.message.bytes", 1_000_000)
    delete_below(kafka_admin, route.log, 4)  # partition 0: m-4 lies at 2, m-8 at 4
    worker = route.start()

    done = redrive(route, wait="30")
    worker.terminate()

    assert (done["delivered"], done["refused"]) == (2, {next(iter(done["refused"])): 1})
    assert "publish it again under a new id" in next(iter(done["refused"]))


def test_a_dry_run_orders_nothing_and_one_has_to_say_which(topic_route: TopicRoute) -> None:
    result = invoke("deadletter", "redrive", topic_route.path)
    assert result.exit_code == 2
    assert "--all" in result.output

    result = invoke("deadletter", "redrive", topic_route.path, "--route", "main", "--dry-run")
    assert result.exit_code == 0
    assert "3 would be redriven" in result.output
    control = load(topic_route.path).control_topic
    assert not [one for one in read_all(topic_route.kafka, control, 1) if (one.key() or b"").startswith(b"redrive/")]


COLUMNS = '{ source = "ce:source", id = "ce:id", n = "json:/n" }'


class TableRoute(Route):
    """A route into a table whose constraint can be let go."""

    def __init__(self, directory: Path, kafka: str, log: str, url: str, extra: str = "") -> None:
        super().__init__(directory, kafka, log, f'{{ resource = "db", table = "ledger", mode = "insert", columns = {COLUMNS} }}', extra)
        with self.path.open("a") as file:
            file.write(f'\n[resources.db]\nurl = "{url}"\n')
        self.url = url

    def run(self, *statements: str) -> list[Any]:
        """Run statements and return the last one's rows."""
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=10)) as connection, connection:
                return [connection.execute(one).fetchall() for one in statements][-1]
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursors = [connection.execute(one) for one in statements]
            return cursors[-1].fetchall() if cursors[-1].description else []


@pytest.fixture(params=["postgresql", "sqlite"])
def table_route(
    request: pytest.FixtureRequest, tmp_path: Path, kafka: str, make_topic: Callable[..., str]
) -> Iterator[TableRoute]:
    url = f"sqlite:///{tmp_path}/ledger.db" if request.param == "sqlite" else request.getfixturevalue("postgres")
    route = TableRoute(tmp_path, kafka, make_topic(2), url, 'on_dead = "continue"')
    route.run(
        "create table ledger (source text, id text, n integer not null)",
        "create table refused (n integer primary key)",
        "insert into refused values (4), (5), (8)",
    )
    if request.param == "sqlite":
        route.run(
            "create trigger refuse before insert on ledger when new.n in (select n from refused) "
            "begin select raise(abort, 'refused'); end"
        )
    else:
        route.run(
            "create function refuse() returns trigger language plpgsql as $$ begin if new.n in (select n from refused) "
            "then raise check_violation; end if; return new; end $$",
            "create trigger refuse before insert on ledger for each row execute function refuse()",
        )
    route.migrate()
    publish(kafka, route.log, [(n % 2, ce(f"/s/{n % 2}", f"m-{n}"), b'{"n": %d}' % n) for n in range(20)])
    assert route.finish() == 0, route.said()
    assert len(dead(route)) == 3, route.said()
    yield route
    route.stop()


def numbers(route: TableRoute) -> list[int]:
    return sorted(n for (n,) in route.run("select n from ledger"))


def test_a_redrive_into_a_table_takes_effect_once(table_route: TableRoute) -> None:
    route = table_route
    route.run("delete from refused")
    redrive(route)
    redrive(route)

    assert route.finish() == 0, route.said()
    assert route.finish() == 0, route.said()

    assert numbers(route) == list(range(20))
    assert dead(route) == []
    verified(route, delivered=20, dead_letters=0, reordered=0, duplicates=0)


def test_in_a_table_what_dies_again_may_be_redriven_again(table_route: TableRoute) -> None:
    route = table_route
    worker = route.start()
    route.run("delete from refused where n = 5")

    first = redrive(route, wait="30")
    assert (first["delivered"], first["died"], first["waiting"]) == (1, 2, 0)
    route.run("delete from refused")
    second = redrive(route, wait="30")
    assert (second["delivered"], second["died"], second["waiting"]) == (2, 0, 0)
    worker.terminate()
    assert worker.wait(30) == 0, route.said()

    assert numbers(route) == list(range(20))
    verified(route, delivered=20, dead_letters=0, reordered=0, duplicates=0)


@pytest.mark.parametrize("point", [*slow("table.inbox", "table.committing"), "table.committed", *slow("table.entered")])
def test_killed_at_each_step_of_a_redrive_a_table_has_every_effect_once(table_route: TableRoute, point: str) -> None:
    route = table_route
    route.run("delete from refused")
    redrive(route)

    route.kill_at(f"{point}:{1 if point == 'table.entered' else 2}")
    assert route.finish() == 0, route.said()
    wait_for(lambda: dead(route) == [], what="the end of the dead letters")

    assert numbers(route) == list(range(20))
    verified(route, delivered=20, dead_letters=0, reordered=0, duplicates=0)


@contextmanager
def inbox_locked(route: TableRoute) -> Iterator[None]:
    """The database lets nobody write: what is sent to it stays under way."""
    if route.url.startswith("sqlite"):
        with closing(sqlite3.connect(route.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("begin immediate")
            yield
            connection.execute("rollback")
        return
    with psycopg.connect(route.url) as connection:
        connection.execute("lock table relay_inbox in access exclusive mode")
        yield
        connection.rollback()


def test_a_redrive_beside_a_repeat_that_is_under_way_comes_to_its_end(table_route: TableRoute) -> None:
    route = table_route
    route.run("delete from refused")
    publish(route.kafka, route.log, [(1, ce("/s/1", "m-21"), b'{"n": 20}')])
    worker = route.start()
    wait_for(lambda: 20 in numbers(route), what="the worker")
    with inbox_locked(route):
        publish(route.kafka, route.log, [(1, ce("/s/0", "m-4"), b'{"n": 4}')])
        wait_for(lambda: "sending again" in route.said(), what="the repeat, under way")
        assert redrive(route, wait="3")["waiting"] == 3

    wait_for(lambda: dead(route) == [], what="the end of the dead letters")
    worker.terminate()
    assert worker.wait(30) == 0, route.said()

    assert numbers(route) == list(range(21))

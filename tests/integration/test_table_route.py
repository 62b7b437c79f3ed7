"""A table route on a real broker and a real PostgreSQL: effect, inbox and position together, across kills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from relay.run.restarts import ExitCode
from tests.cluster_changes import set_topic
from tests.routes import Route, ce, publish, read_all, wait_for

PARTITIONS = 3


class TableRoute(Route):
    """A route whose destination is the table ``ledger`` of a fresh database."""

    postgres: str

    def rows(self) -> list[tuple[str, int]]:
        with psycopg.connect(self.postgres) as connection:
            return connection.execute("select id, n from ledger order by seq").fetchall()


@pytest.fixture
def route(tmp_path: Path, kafka: str, postgres: str, make_topic: Callable[..., str]) -> Iterator[TableRoute]:
    with psycopg.connect(postgres) as connection:
        connection.execute("create table ledger (id text primary key, n int not null check (n >= 0), seq bigserial)")
    to = '{ table = "ledger", resource = "shop", columns = { id = "ce:id", n = "json:/n" } }'
    made = TableRoute(tmp_path, kafka, make_topic(PARTITIONS), to)
    made.path.write_text(made.path.read_text() + f'\n[resources.shop]\nurl = "{postgres}"\n')
    made.postgres = postgres
    made.migrate()
    yield made
    made.stop()


def messages(count: int, first: int = 0) -> list[tuple[int, list[tuple[str, bytes]], bytes]]:
    return [
        (n % PARTITIONS, ce(f"/source/{n % PARTITIONS}", f"m-{n}"), b'{"n": %d}' % n) for n in range(first, first + count)
    ]


def test_every_message_is_one_row_in_its_publishers_order(route: TableRoute) -> None:
    publish(route.kafka, route.log, [*messages(3000), *messages(50)])

    assert route.finish() == 0, route.said()

    rows = route.rows()
    assert sorted(n for _, n in rows) == list(range(3000))
    for source in range(PARTITIONS):
        numbers = [n for _, n in rows if n % PARTITIONS == source]
        assert numbers == sorted(numbers)


def test_a_row_that_breaks_a_constraint_is_a_dead_letter_and_the_rest_goes_on(route: TableRoute) -> None:
    publish(
        route.kafka, route.log, [*messages(100), (0, ce("/bad", "bad-1"), b'{"n": -1}'), (0, ce("/bad", "b2"), b"{"), *messages(100, 100)]
    )

    assert route.finish() == 0, route.said()

    assert sorted(n for _, n in route.rows()) == list(range(200))
    dead = read_all(route.kafka, f"{route.name}.deadletter", 1)
    assert {dict(m.headers())["__relay.errors.stage"] for m in dead} == {b"apply", b"decode"}


def test_a_dead_letter_that_is_refused_stops_the_route_until_there_is_room(
    route: TableRoute, kafka_admin: AdminClient
) -> None:
    dead_letters = f"{route.name}.deadletter"
    set_topic(kafka_admin, dead_letters, "max.message.bytes", 100_000)
    noise = b"".join(n.to_bytes(4, "big") for n in range(75_000))  # compression must not make it small
    publish(route.kafka, route.log, [*messages(5), (0, ce("/bad", "big"), noise), *messages(5, 5)])

    assert route.start(until_idle_s=1.0).wait(30) == ExitCode.PERSON, route.said()
    assert f"a record for '{dead_letters}' is refused (MSG_SIZE_TOO_LARGE); raise its max.message.bytes" in route.said()

    set_topic(kafka_admin, dead_letters, "max.message.bytes", 1_000_000)
    assert route.finish() == 0, route.said()
    assert [dict(m.headers())["ce_id"] for m in read_all(route.kafka, dead_letters, 1)] == [b"big"]
    assert sorted(n for _, n in route.rows()) == list(range(10))


# A few; every step has its test in test_crash_points_table.py.
@pytest.mark.parametrize("point", ["table.effect", "table.committing"])
def test_killed_at_each_step_it_goes_on_without_loss_or_repeat(route: TableRoute, point: str) -> None:
    publish(route.kafka, route.log, messages(600))

    route.kill_at(f"{point}:2")
    assert route.finish() == 0, route.said()

    assert sorted(n for _, n in route.rows()) == list(range(600))


def test_a_repeat_is_known_after_the_inbox_was_trimmed_and_the_state_is_lost(route: TableRoute, tmp_path: Path) -> None:
    publish(route.kafka, route.log, messages(300))
    assert route.finish() == 0, route.said()
    with psycopg.connect(route.postgres) as connection:
        connection.execute("delete from relay_inbox")
    publish(route.kafka, route.log, messages(300))

    assert route.finish() == 0, route.said()

    assert len(route.rows()) == 300


def test_two_workers_share_the_partitions_and_a_killed_one_is_replaced(route: TableRoute) -> None:
    publish(route.kafka, route.log, messages(20_000))
    first = route.start(0)
    second = route.start(1)
    wait_for(lambda: len(route.rows()) > 500, what="some rows")
    first.kill()
    first.wait()
    publish(route.kafka, route.log, messages(20_000, first=20_000))

    wait_for(lambda: len(route.rows()) >= 40_000, what="all rows")
    second.terminate()

    assert second.wait(30) == 0, route.said(1)
    assert sorted(n for _, n in route.rows()) == list(range(40_000))


def test_on_dead_stop_keeps_a_bad_row_from_becoming_a_dead_letter(route: TableRoute) -> None:
    route.path.write_text(route.path.read_text().replace("[routes.main]", '[routes.main]\non_dead = "stop"'))
    publish(route.kafka, route.log, [(0, ce("/bad", "bad-1"), b'{"n": -1}')])

    assert route.finish() == 10, route.said()

    assert 'on_dead = "stop"' in route.said()
    assert route.rows() == []
    with psycopg.connect(route.postgres) as connection:
        connection.execute("alter table ledger drop constraint ledger_n_check")
    assert route.finish() == 0, route.said()
    assert route.rows() == [("bad-1", -1)]


@pytest.mark.parametrize("dedup", ["partition", "route"])
def test_killed_between_the_commit_and_the_dead_letter_it_appends_the_dead_letter(route: TableRoute, dedup: str) -> None:
    route.path.write_text(route.path.read_text().replace("[routes.main]", f'[routes.main]\ndedup = "{dedup}"'))
    publish(route.kafka, route.log, [(0, ce("/bad", "bad-1"), b'{"n": -1}'), *messages(10)])

    route.kill_at("table.committed:2")
    assert route.finish() == 0, route.said()

    dead = read_all(route.kafka, f"{route.name}.deadletter", 1)
    assert [dict(m.headers())["ce_id"] for m in dead] == [b"bad-1"]
    assert [m.value() for m in dead] == [b'{"n": -1}']


def test_a_table_that_is_altered_under_a_running_worker_loses_and_refuses_nothing(route: TableRoute) -> None:
    text = route.path.read_text()
    route.path.write_text(text.replace('resource = "shop",', 'resource = "shop", mode = "upsert", key = ["id"],', 1))
    publish(route.kafka, route.log, messages(30))
    worker = route.start()
    wait_for(lambda: len(route.rows()) == 30, what="the first rows")

    with psycopg.connect(route.postgres) as connection:
        connection.execute("alter table ledger alter n type bigint")
    beyond = 1 << 40
    publish(route.kafka, route.log, messages(30, beyond))

    wait_for(lambda: len(route.rows()) == 60, what="rows that only the new type takes")
    assert sorted(n for _, n in route.rows())[30:] == list(range(beyond, beyond + 30))
    assert read_all(route.kafka, f"{route.name}.deadletter", 1) == []
    worker.terminate()
    assert worker.wait(30) == 0, route.said()

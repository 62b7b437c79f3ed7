"""A publisher, or the worker that resolves its captures, killed at each named step of a capture, with real services.

The publisher starts again and goes on with the first order that its database does not hold, under the same ids. In
the end the output holds exactly what the database holds: of an aborted attempt nothing, of a committed one everything.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.config.loading import load
from relay.resources import open_resource
from relay.world.crash import EXIT_STATUS, VARIABLE
from tests.capture_log import DECIDING_COMMIT, DatabaseProxy
from tests.integration.crash_site import PARTITIONS, assert_audited, in_order
from tests.routes import TopicRoute, wait_for

ORDERS = 8
PUBLISHER = """
import json, sys, time
from relay import Capture
from relay.resources import open_resource

kafka, url, topic, inquiries, attempt, total, twice, stay = json.loads(sys.argv[1])
resource = open_resource("shop", url, 1.0)
session = resource.session()
done = session.execute("select count(*) from orders").fetchone()[0]
session.close()
with Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/s", inquiries=inquiries) as capture:
    for n in range(done, total):
        with capture.transaction() as tx:
            tx.execute(f"insert into orders values ({n}, {attempt})")
            if n == twice:
                tx.execute(f"insert into orders values ({n}, {attempt})")
            for partition in (0, 1):
                tx.publish(topic, {"attempt": attempt}, id=f"m-{2 * n + partition}", partition=partition)
    time.sleep(stay)
"""


class Shop:
    """A database whose orders are captured, the publisher's processes, and the route that takes the messages on."""

    def __init__(self, route: TopicRoute, url: str) -> None:
        self.route = route
        self.url = url
        self.resource = open_resource("shop", url, 1.0)
        self.resource.create_tables()
        # A constraint that is checked at COMMIT, where the database has it.
        late = "" if url.startswith("sqlite") else "deferrable initially deferred"
        self.ask(f"create table orders (n integer, attempt integer, unique (n) {late})")
        self._attempts = 0

    def ask(self, query: str) -> list[Any]:
        session = self.resource.session()
        cursor = session.execute(query)
        found: list[Any] = cursor.fetchall() if query.startswith("select") else []
        session.close()
        return found

    def orders(self) -> list[tuple[int, int]]:
        """(number, attempt) of what is committed."""
        return [(n, attempt) for n, attempt in self.ask("select n, attempt from orders order by n")]

    def start(
        self, crash_at: str = "", *, total: int = ORDERS, twice: int = -1, url: str = "", inquiries: str | None = None, stay_s: int = 0
    ) -> subprocess.Popen[str]:
        self._attempts += 1
        told = [self.route.kafka, url or self.url, self.route.log, inquiries, self._attempts, total, twice, stay_s]
        return subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, json.dumps(told)],
            env={**os.environ, VARIABLE: crash_at}, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, crash_at: str = "", **how: Any) -> None:
        """Run the publisher to its end, which is the step named, if any."""
        publisher = self.start(crash_at, **how)
        _, said = publisher.communicate(timeout=60)
        assert publisher.returncode == (EXIT_STATUS if crash_at else 0), f"{crash_at}: {said}"

    def assert_output_is_what_was_committed(self) -> None:
        orders = self.orders()
        assert [n for n, _ in orders] == list(range(len(orders)))
        records = self.route.outputs()
        found = [(int(dict(r.headers())["ce_id"][2:]), json.loads(r.value())["attempt"]) for r in records]
        assert sorted(found) == [(2 * n + p, attempt) for n, attempt in orders for p in range(PARTITIONS)]
        assert all(in_order([("/s", n) for n, _ in found if n % PARTITIONS == p]) for p in range(PARTITIONS))
        assert_audited(self.route, PARTITIONS * len(orders))


Make = Callable[[str], Shop]


@pytest.fixture
def make_shop(make_route: Callable[..., TopicRoute]) -> Make:
    def make(url: str) -> Shop:
        return Shop(make_route(f'[resources.shop]\nurl = "{url}"\n', PARTITIONS), url)

    return make


@pytest.fixture
def shop(make_shop: Make, postgres: str) -> Shop:
    return make_shop(postgres)


def slow_unless(soon: tuple[str, ...], points: tuple[str, ...]) -> list[Any]:
    return [pytest.param(point, marks=[] if point in soon else pytest.mark.slow) for point in points]


STEPS = (
    "capture.begun:3", "capture.appending:3", "capture.appended:3", "capture.decided:3", "capture.noting",
    "capture.marked",
)  # fmt: skip


@pytest.mark.parametrize("step", slow_unless(("capture.appended:3", "capture.decided:3"), STEPS))
def test_a_publisher_killed_at_a_step_of_a_capture(shop: Shop, step: str) -> None:
    shop.run(step)
    shop.run()
    assert shop.route.finish() == 0, shop.route.said()

    shop.assert_output_is_what_was_committed()


@pytest.mark.slow
@pytest.mark.parametrize("step", ["capture.appended:3", "capture.decided:3", "capture.noting"])
def test_a_publisher_to_a_file_killed_at_a_step_of_a_capture(make_shop: Make, tmp_path: Path, step: str) -> None:
    shop = make_shop(f"sqlite:///{tmp_path}/shop.db")
    shop.run(step)
    shop.run()
    assert shop.route.finish() == 0, shop.route.said()

    shop.assert_output_is_what_was_committed()


@pytest.mark.slow
def test_a_publisher_killed_again_and_again_at_one_step_after_another(shop: Shop) -> None:
    for total, step in enumerate((*STEPS, *reversed(STEPS)), 3):
        shop.run(step.replace(":3", ":1"), total=total)
    shop.run(total=20)
    assert shop.route.finish() == 0, shop.route.said()

    shop.assert_output_is_what_was_committed()


@pytest.mark.slow
def test_a_publisher_killed_after_its_database_refused_to_commit(shop: Shop) -> None:
    shop.run("capture.aborted", twice=4)
    assert len(shop.orders()) == 4
    shop.run()
    assert shop.route.finish() == 0, shop.route.said()

    shop.assert_output_is_what_was_committed()


@pytest.mark.slow
def test_a_publisher_killed_while_the_answer_to_commit_is_under_way(shop: Shop) -> None:
    with DatabaseProxy(shop.url) as proxy:
        publisher = shop.start(total=100_000, url=proxy.url)
        wait_for(lambda: len(shop.orders()) > 3, what="some orders")
        proxy.silent, proxy.lose_answer_to = True, DECIDING_COMMIT
        wait_for(lambda: publisher_stands(shop), what="a commit without an answer")
        publisher.kill()
        _, said = publisher.communicate(timeout=10)
        assert publisher.returncode == -9, said
    shop.run(total=len(shop.orders()) + 3)
    assert shop.route.finish() == 0, shop.route.said()

    shop.assert_output_is_what_was_committed()


def publisher_stands(shop: Shop) -> bool:
    """Has nothing been committed for a while that is long for a capture and short for a deadline?"""
    before = len(shop.orders())
    return not any(len(shop.orders()) > before for _ in range(100))


# The other side: whoever finds the decision out is killed.


def test_a_worker_killed_after_it_decided_for_a_dead_publisher(shop: Shop) -> None:
    shop.run("capture.appended:3")
    shop.route.kill_at("capture.resolved")
    shop.run()
    assert shop.route.finish() == 0, shop.route.said()

    shop.assert_output_is_what_was_committed()


@pytest.mark.slow
def test_a_publisher_killed_while_it_answers_an_inquiry(make_route: Callable[..., TopicRoute], postgres: str) -> None:
    shop = Shop(make_route(partitions=PARTITIONS), postgres)  # this relay has no way to the database
    inquiries = load(shop.route.path).inquiries_topic
    shop.run("capture.appended:3", inquiries=inquiries)
    worker = shop.route.start(until_idle_s=1.0)
    for _ in range(2):
        shop.run("inquiry.answering", inquiries=inquiries, stay_s=50)
    publisher = shop.start(inquiries=inquiries, stay_s=50)

    assert worker.wait(60) == 0, shop.route.said()

    publisher.kill()
    publisher.communicate(timeout=10)
    shop.assert_output_is_what_was_committed()

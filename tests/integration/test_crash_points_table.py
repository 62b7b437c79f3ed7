"""A table route whose worker is killed at each named step of a delivery and of a takeover, with real services.

P1 to P6 of the list in DESIGN.md. Every kill is proven by the exit status, every stored position is held against the
rows before the restart, and the end is audited: each id once, in its source's order, each with its monitor entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.config.loading import load
from relay.monitor.entries import DIGEST_BYTES, Page, decode
from relay.resources import open_resource
from tests.capture_log import DatabaseProxy
from tests.integration.crash_site import (
    PARTITIONS,
    SMALL_BATCHES,
    assert_audited,
    assert_cursor_is_safe,
    assert_each_once,
    in_order,
    publish_range,
    stored,
)
from tests.routes import Route, read_all, wait_for

COUNT = 200
TO = '{ table = "ledger", resource = "shop", columns = { id = "ce:id", source = "ce:source", n = "json:/n" } }'
LEDGER = "create table ledger (seq {serial} primary key, id text not null, source text not null, n int not null)"


class TableRoute(Route):
    """A route into the table ``ledger`` of the database at ``url``."""

    url = ""

    def ask(self, query: str) -> list[Any]:
        session = open_resource("shop", self.url).session()
        found: list[Any] = session.execute(query).fetchall()
        session.close()
        return found

    def rows(self) -> list[tuple[str, int]]:
        """(source, number) in the order of insertion."""
        return [(source, n) for source, n in self.ask("select source, n from ledger order by seq")]


def make(directory: Path, kafka: str, log: str, url: str, seen_at: str = "") -> TableRoute:
    """A migrated route; its worker sees the database at ``seen_at``, if that is given."""
    resource = open_resource("shop", url)
    resource.create_tables()
    session = resource.session()
    session.execute(LEDGER.format(serial="integer" if url.startswith("sqlite") else "bigserial"))
    session.close()
    made = TableRoute(directory, kafka, log, TO, SMALL_BATCHES)
    made.path.write_text(made.path.read_text() + f'\n[resources.shop]\nurl = "{seen_at or url}"\n')
    made.url = url
    made.migrate()
    return made


@pytest.fixture
def route(tmp_path: Path, kafka: str, postgres: str, make_topic: Callable[..., str]) -> Iterator[TableRoute]:
    made = make(tmp_path, kafka, make_topic(PARTITIONS), postgres)
    yield made
    made.stop()


def assert_safe_now(route: TableRoute) -> None:
    """Positions first: what is stored after them only adds rows."""
    offsets = stored(route)
    own = {number: position or 0 for number, position in route.ask("select partition, position from relay_position")}
    effects = {n for _, n in route.rows()}
    assert_cursor_is_safe(offsets, effects)
    assert_cursor_is_safe(own, effects)


def assert_once_in_order(route: TableRoute, count: int) -> None:
    rows = route.rows()
    assert_each_once((n for _, n in rows), count)
    assert in_order(rows)
    assert_audited(route, count)
    assert len(entered(route)) == count


def entered(route: TableRoute) -> set[bytes]:
    """Digests that the monitor names."""
    found: set[bytes] = set()
    for record in read_all(route.kafka, load(route.path).monitor_topic("main"), PARTITIONS):
        page = decode(record.key(), record.value())
        if isinstance(page, Page):
            found |= {page.digests[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES] for i in range(page.rows)}
    return found


SOON = ("table.committing:3", "table.committed:3")
STEPS = (
    "worker.polled", "worker.polled:3", "table.begun:3", "table.position:3", "table.inbox:3", "table.effect:3", *SOON,
    "table.entered:2",
)  # fmt: skip
"""The first transaction of a worker stores where it starts."""


def slow_unless(soon: tuple[str, ...], points: tuple[str, ...]) -> list[Any]:
    return [pytest.param(point, marks=[] if point in soon else pytest.mark.slow) for point in points]


def assert_survives(route: TableRoute, step: str) -> None:
    """Killed at the step and started again, the route has delivered everything once and in order."""
    publish_range(route, 0, COUNT)

    route.kill_at(step)
    assert_safe_now(route)
    assert route.finish() == 0, route.said()

    assert_once_in_order(route, COUNT)


@pytest.mark.parametrize("step", slow_unless(SOON, STEPS))
def test_killed_at_a_step_of_a_delivery(route: TableRoute, step: str) -> None:
    assert_survives(route, step)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["table.effect:3", "table.committing:3", "table.committed:3"])
def test_killed_at_a_step_of_a_delivery_into_a_file(
    tmp_path: Path, kafka: str, make_topic: Callable[..., str], step: str
) -> None:
    route = make(tmp_path, kafka, make_topic(PARTITIONS), f"sqlite:///{tmp_path}/shop.db")
    assert_survives(route, step)


@pytest.mark.slow
def test_killed_while_the_answer_to_commit_is_under_way(
    tmp_path: Path, kafka: str, postgres: str, make_topic: Callable[..., str]
) -> None:
    with DatabaseProxy(postgres) as proxy:
        route = make(tmp_path, kafka, make_topic(PARTITIONS), postgres, proxy.url)
        publish_range(route, 0, 100)
        worker = route.start()
        wait_for(lambda: len(route.rows()) == 100, what="the first rows")
        proxy.silent, proxy.lose_answer_to = True, b"commit\0"
        publish_range(route, 100, 50)
        wait_for(lambda: len(route.rows()) > 100, what="a commit without an answer")
        publish_range(route, 150, COUNT - 150)  # later, as one batch may take all that there is
        worker.kill()
        assert worker.wait(10) == -9
        proxy.lose_answer_to = None
        route.dismiss()
        assert 100 < len(route.rows()) < COUNT
        assert_safe_now(route)

        assert route.finish() == 0, route.said()

        assert_once_in_order(route, COUNT)


TAKEOVER = ("recovery.raised", "recovery.reading", "recovery.compared", "table.committing", "recovery.entering", "recovery.entered")
"""``table.committing``: the transaction that stores where the new owner starts."""


@pytest.mark.parametrize("point", slow_unless(("recovery.entering",), TAKEOVER))
def test_a_takeover_killed_twice_at_one_step_ends_as_one_clean_run(route: TableRoute, point: str) -> None:
    publish_range(route, 0, COUNT // 2)
    assert route.finish() == 0, route.said()
    publish_range(route, COUNT // 2, COUNT // 2)
    route.kill_at("table.committed:3", 1)  # rows are there without their entries

    for number in (0, 1):
        route.kill_at(point, number)
        assert_safe_now(route)
    assert route.finish() == 0, route.said()

    assert_once_in_order(route, COUNT)


@pytest.mark.slow
def test_takeovers_killed_at_one_step_after_another_end_as_one_clean_run(route: TableRoute) -> None:
    publish_range(route, 0, COUNT)
    route.kill_at("table.committed:3", 1)

    for turn, point in enumerate((*reversed(TAKEOVER), "table.committed:2", *TAKEOVER)):
        route.kill_at(point, turn % 2)
    assert_safe_now(route)
    assert route.finish() == 0, route.said()

    assert_once_in_order(route, COUNT)

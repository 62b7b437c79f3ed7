"""Clocks decide nothing: a worker whose wall clock jumps by days delivers all once, and one that relied on it would not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relay.audit.verify import RouteReport, verify
from relay.chaos.skewed import jump
from relay.config.loading import load
from relay.control.status_reading import StatusReader
from relay.setup.migrate import migrate
from relay.world import clock
from relay.world.crash import EXIT_STATUS, VARIABLE
from tests.conftest import MakeRoute
from tests.routes import TopicRoute, ce, ids, publish, wait_for

pytestmark = [pytest.mark.slow]

DAYS_S = 2 * 86400.0
MARKER_WAIT_S = 5.0
LONGER_S = 2.5 * MARKER_WAIT_S
PUBLISHER = """
import sys
from relay import Capture
path, topic = sys.argv[1:]
with Capture.open(path, resource="shop", source="/captured") as capture:
    with capture.transaction() as tx:
        tx.publish(topic, 1, id="captured", key="0")
"""


@pytest.fixture
def route(make_route: MakeRoute, tmp_path: Path) -> TopicRoute:
    made = make_route(f'[resources.shop]\nurl = "sqlite:///{tmp_path}/shop.db"\n')
    made.module = "tests.integration.skewed_worker"
    made.path.write_text(made.path.read_text().replace('marker_wait = "500ms"', f'marker_wait = "{MARKER_WAIT_S:g}s"'))
    migrate(load(made.path))
    return made


def delivered(route: TopicRoute) -> list[str]:
    return sorted(ids(route.outputs()))


def publish_one(route: TopicRoute, identifier: str) -> None:
    publish(route.kafka, route.log, [(0, ce(f"/{identifier}", identifier), b"{}")])


def capture_without_a_marker(route: TopicRoute) -> None:
    """Only the database knows that this capture committed: whoever holds its message must ask in time."""
    done = subprocess.run(
        [sys.executable, "-c", PUBLISHER, str(route.path), route.log],
        env={**os.environ, VARIABLE: "capture.decided"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == EXIT_STATUS, done.stderr


def hold_and_jump_back(route: TopicRoute, clock_file: Path, durations: str = "monotonic") -> None:
    """While the worker holds the captured message its clock goes back by days."""
    jump(clock_file, DAYS_S)
    route.start(CLOCK=str(clock_file), DURATIONS=durations)
    publish_one(route, "first")
    wait_for(lambda: delivered(route) == ["first"], what="the first message")
    capture_without_a_marker(route)
    publish_one(route, "second")
    wait_for(lambda: "second" in delivered(route), what="what stands behind the held message")
    jump(clock_file, 0)


def audited(route: TopicRoute) -> RouteReport:
    route.stop()
    (report,) = verify(load(route.path), ("main",))
    return report


def worker_said_at_ms(route: TopicRoute) -> list[int]:
    with StatusReader(load(route.path), 10) as reader:
        reader.read()
        return [record.at for record in reader.records()]


def test_a_clock_that_jumps_by_days_changes_what_is_written_down_and_nothing_else(route: TopicRoute, tmp_path: Path) -> None:
    clock_file = tmp_path / "clock"
    hold_and_jump_back(route, clock_file)
    wait_for(lambda: delivered(route) == ["captured", "first", "second"], what="the held message")

    jump(clock_file, -DAYS_S)
    publish_one(route, "third")
    wait_for(lambda: len(delivered(route)) == 4, what="the last message")
    wait_for(
        lambda: any(abs(at - clock.wall_ms() + DAYS_S * 1000) < 60_000 for at in worker_said_at_ms(route)),
        what="a status from two days ago",
    )

    report = audited(route)
    assert report.ok, report.sentence
    assert (report.findings.captured, report.findings.delivered) == (4, 4)


def test_a_worker_that_measured_durations_on_the_wall_clock_would_wait_for_days(route: TopicRoute, tmp_path: Path) -> None:
    hold_and_jump_back(route, tmp_path / "clock", durations="wall")

    limit = clock.monotonic() + LONGER_S
    while clock.monotonic() < limit:
        assert delivered(route) == ["first", "second"]
        clock.sleep(1)

    report = audited(route)
    assert not report.ok
    assert (report.findings.captured, report.findings.delivered) == (3, 2)

"""A queue moves from one store to another while a route puts into it and a worker takes from it; killed anywhere, nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay.config.loading import load
from relay.queue.port import Filter, Holder, QueueStore, Retired
from relay.queue.states import PublisherState
from relay.run.following import follow
from relay.run.queues import open_queue
from relay.run.restarts import ExitCode
from relay.world import clock
from tests.routes import Route, ce, publish, wait_for

DEADLINE_S = 150.0
"""For the end of a process, which is waited for whatever the machine is busy with; it bounds a hang, it measures nothing."""


class MovingRoute(Route):
    """A route into a queue in SQLite, with a PostgreSQL beside it."""

    def __init__(self, directory: Path, kafka: str, log: str, postgres: str) -> None:
        super().__init__(directory, kafka, log, '{ queue = "credit" }')
        queue = f"""
[queues.credit]
store = "sqlite:///credit.db"
subscribers = {{ clerk = {{}} }}

[resources.shop]
url = "{postgres}"
"""
        self.path.write_text(self.path.read_text() + queue)

    def store(self) -> QueueStore:
        """Open the queue where it lies now."""
        config = load(self.path)
        follower = follow(config)
        store = open_queue(config, "credit", follower.now())
        follower.close()
        return store

    def move(self, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the command in a process of its own."""
        command = [sys.executable, "-m", "relay.cli.main", "queue", "migrate", str(self.path), "credit", "--to", "shop", "--json"]
        return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    def publish(self, first: int, count: int) -> None:
        publish(self.kafka, self.log, [(0, ce("/till", f"m-{n}"), b"%d" % n) for n in range(first, first + count)])


@pytest.fixture
def route(tmp_path: Path, kafka: str, postgres: str, make_topic: Callable[..., str]) -> Iterator[MovingRoute]:
    made = MovingRoute(tmp_path, kafka, make_topic(1), postgres)
    made.migrate()
    yield made
    made.stop()


def finish(store: QueueStore, count: int) -> list[str]:
    store.enter(Holder(b"h", "clerk", 0, None))
    taken = store.take("clerk", b"h", count, clock.wall_ms())
    assert all(store.finish("clerk", [one.ticket for one in taken], clock.wall_ms()))
    return [one.id for one in taken]


@pytest.mark.slow
@pytest.mark.parametrize("point", [None, "move.page", "move.retired", "move.cursors"])  # all steps: test_queue_moving.py
def test_a_moved_queue_has_lost_nothing_and_its_route_goes_on(route: MovingRoute, point: str | None) -> None:
    route.publish(0, 60)
    assert route.finish() == 0, route.said()
    old = route.store()
    assert finish(old, 25) == [f"m-{n}" for n in range(25)]
    before = {view.handle: view for view in old.find(Filter(), limit=1000)}
    route.publish(60, 40)

    if point is not None:
        killed = route.move(RELAY_CRASH_AT=point)
        assert killed.returncode == 137, killed.stdout + killed.stderr
    done = route.move()
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["to"] == "shop"

    with pytest.raises(Retired):
        finish(old, 1)
    old.close()
    new = route.store()
    assert {view.handle: view for view in new.find(Filter(), limit=1000)} == before
    assert new.counts()[0][PublisherState.JOURNALLED] == 25

    assert route.finish() == 0, route.said()
    assert finish(new, 1000) == [f"m-{n}" for n in range(25, 100)]
    new.close()


@pytest.mark.slow
def test_a_running_worker_goes_on_in_the_new_store(route: MovingRoute) -> None:
    route.publish(0, 20)
    first = route.start()
    old = route.store()
    wait_for(lambda: old.waiting() == 20, what="the first messages")
    old.close()

    assert route.move().returncode == 0
    assert first.wait(DEADLINE_S) == ExitCode.MOVED, "no failure, which status would show"
    route.publish(20, 20)

    assert route.finish() == 0, route.said()
    new = route.store()
    assert finish(new, 1000) == [f"m-{n}" for n in range(40)]
    new.close()


@pytest.mark.slow
def test_a_queue_does_not_move_where_it_lies_or_where_a_route_cannot_follow(route: MovingRoute) -> None:
    def refused(to: str) -> str:
        command = [sys.executable, "-m", "relay.cli.main", "queue", "migrate", str(route.path), "credit", "--to", to]
        found = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert found.returncode == 2, found.stdout + found.stderr
        return found.stderr

    assert "lies in that database already" in refused(f"sqlite:///{route.path.parent}/credit.db")
    assert "flat files take none" in refused(f"files:///{route.path.parent}/credit")
    assert "no such resource" in refused("elsewhere")

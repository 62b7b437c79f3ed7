"""A group that does not take a worker in: nothing is read, and the worker says why instead of waiting in silence."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer
from typer.testing import CliRunner

from relay.cli.main import app
from relay.config.loading import load
from tests.routes import TopicRoute, ce, publish, wait_for


def test_a_stranger_in_the_group_is_named(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route(partitions=1)
    publish(route.kafka, route.log, [(0, ce("/s", "m-0"), b"v")])
    stranger = Consumer(
        {
            "bootstrap.servers": route.kafka,
            "group.id": load(route.path).group_id("main"),
            "partition.assignment.strategy": "roundrobin",
        }
    )
    stranger.subscribe([route.log])
    wait_for(lambda: [stranger.poll(0.2), stranger.assignment()][1], what="the stranger's partition")

    worker = route.start(0)

    wait_for(lambda: "INCONSISTENT_GROUP_PROTOCOL" in route.said(), 20, what="the worker's word about the group")
    assert worker.poll() is None, "it waits for the stranger to leave"
    time.sleep(3)  # the client says it every second
    assert route.said().count("not in the group") <= 2, "nor is the log filled with it"
    shown = CliRunner().invoke(app, ["status", str(route.path), "--json"])
    assert "INCONSISTENT_GROUP_PROTOCOL" in shown.output, "who asks for the state is told as well"
    stranger.close()
    wait_for(lambda: len(route.outputs()) == 1, what="the output")

"""A worker that keeps its partitions for long drops what has left the monitor, on disk, and nothing that has not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from relay.config.loading import load
from tests.routes import TopicRoute, ce, delete_below, ids, publish, wait_for

ROUNDS = 10
EACH = 200
KEPT = 2
"""Rounds that the monitor keeps: retention, as a test can have it."""
LOOKED_S = 1.0
"""Twice as long as the worker waits between two looks."""


def some(round_: int) -> list[Any]:
    return [(0, ce("/source", f"m-{n}"), b"v") for n in range(EACH * round_, EACH * (round_ + 1))]


def high(admin: AdminClient, topic: str) -> int:
    place = TopicPartition(topic, 0)
    return int(admin.list_offsets({place: OffsetSpec.latest()})[place].result(30).offset)  # type: ignore[no-untyped-call]


def renewed(route: TopicRoute) -> list[int]:
    """How many entries there were after each time that some were dropped."""
    lines = [json.loads(line) for line in route.said().splitlines() if line.startswith("{")]
    return [line["entries"] for line in lines if line["event"] == "index renewed"]


@pytest.mark.slow
def test_an_index_on_disk_stays_small_and_repeats_within_the_retention_are_known_across_a_kill(
    make_route: Callable[..., TopicRoute], kafka_admin: AdminClient
) -> None:
    route = make_route()
    route.module = "tests.integration.renewing_worker"
    monitor = load(route.path).monitor_topic("main")
    ends: list[int] = []
    worker = route.start()
    for round_ in range(ROUNDS):
        again = [one for old in range(max(0, round_ - KEPT + 1), round_) for one in some(old)]
        publish(route.kafka, route.log, [*again, *some(round_), *some(round_)])
        wait_for(lambda: len(route.outputs()) >= EACH * (round_ + 1), what="the deliveries")  # noqa: B023
        ends.append(high(kafka_admin, monitor))
        if round_ >= KEPT:
            delete_below(kafka_admin, monitor, ends[round_ - KEPT])
            time.sleep(LOOKED_S)
        if round_ == ROUNDS // 2:
            worker.kill()
            worker.wait(10)
            route.dismiss()
            worker = route.start()

    assert ids(route.outputs()) == [f"m-{n}" for n in range(EACH * ROUNDS)]
    assert len(renewed(route)) >= 3
    assert max(renewed(route)) <= EACH * ROUNDS * 3 // 4

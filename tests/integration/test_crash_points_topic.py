"""A topic route whose worker is killed at each named step of a delivery, with a real broker.

K1 to K7 of the list in DESIGN.md. Every kill is proven by the exit status, every stored position is held against the
outputs before the restart, and the end is audited: each id once, in its source's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay.chaos.frame_proxy import Match, Request, end_txn
from relay.config.loading import load
from tests.frame_matches import produce_to
from tests.integration.conftest import Proxied
from tests.integration.crash_site import (
    PARTITIONS,
    SMALL_BATCHES,
    assert_audited,
    assert_each_once,
    assert_once_in_order,
    assert_safe_now,
    outputs,
    publish_range,
)
from tests.routes import TopicRoute, ce, publish, read_all, wait_for

COUNT = 200


@pytest.fixture
def route(make_route: Callable[..., TopicRoute]) -> TopicRoute:
    return make_route(SMALL_BATCHES, PARTITIONS)


QUICK = ("sealed.flushed:3", "sealed.committed:3")
"""The third transaction: the first one claims, the second one delivers a batch."""
STEPS = (
    *QUICK,
    *(
        pytest.param(step, marks=pytest.mark.slow)
        for step in (
            "start.recorded", "worker.polled", "worker.polled:3", "sealed.begun:3", "sealed.announced:3",
            "sealed.outputs:3", "sealed.entries:3", "sealed.offsets:3", "sealed.committing:3",
        )
    ),
)  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_of_a_delivery(route: TopicRoute, step: str) -> None:
    publish_range(route, 0, COUNT)

    route.kill_at(step)
    assert_safe_now(route)
    assert route.finish() == 0, route.said()

    assert_once_in_order(route, COUNT)


@pytest.mark.slow
def test_killed_between_the_dead_letters_and_the_outputs(route: TopicRoute) -> None:
    publish_range(route, 0, COUNT)
    publish(route.kafka, route.log, [(0, ce("/bad", "bad-1", ce_relaycapture="no hex"), b"v")])

    route.kill_at("sealed.dead")
    assert_safe_now(route)
    assert route.finish() == 0, route.said()

    assert_each_once((number for _, number in outputs(route)), COUNT)
    assert len(read_all(route.kafka, load(route.path).deadletter_topic, PARTITIONS)) == 1
    assert_audited(route, COUNT + 1, delivered=COUNT)


# The answer to EndTxn never comes: only the network can be stopped there.


@pytest.fixture
def far(proxied: Proxied, tmp_path: Path) -> Iterator[TopicRoute]:
    log, out = proxied.topic("log", PARTITIONS), proxied.topic("out", PARTITIONS)
    made = TopicRoute(tmp_path, proxied.kafka, log, out, PARTITIONS, SMALL_BATCHES)
    made.migrate()
    yield made
    made.stop()


def second_commit_of_outputs(out: str, transactional_id: str) -> Match:
    """Claims have none; there is a second one where a slow machine costs the worker its first assignment."""
    writes, commits = produce_to(out), end_txn(committed=True, transactional_id=transactional_id)
    left, has_written = [2], [False]

    def matches(request: Request) -> bool:
        has_written[0] |= writes(request)
        if not has_written[0] or not commits(request):
            return False
        has_written[0] = False
        left[0] -= 1
        return left[0] == 0

    return matches


@pytest.mark.slow
@pytest.mark.parametrize("arrives", [True, False], ids=["arrived", "lost"])
def test_killed_while_end_txn_is_under_way(far: TopicRoute, proxied: Proxied, arrives: bool) -> None:
    publish_range(far, 0, COUNT)
    commit = second_commit_of_outputs(far.out, far.name)
    killed: list[int] = []

    def kill(_: Request) -> None:
        worker.kill()
        killed.append(worker.wait(10))

    rule = proxied.proxy.before(commit, kill) if arrives else proxied.proxy.hold(commit)
    worker = far.start()
    rule.wait(30)
    if not arrives:
        worker.kill()
        killed.append(worker.wait(10))
    wait_for(lambda: killed == [-9], what="the kill")
    far.dismiss()
    if arrives:
        proxied.wait_for_markers(far.out, PARTITIONS)
    assert_safe_now(far)
    assert len(outputs(far)) == (80 if arrives else 40)

    assert far.finish() == 0, far.said()

    assert_once_in_order(far, COUNT)

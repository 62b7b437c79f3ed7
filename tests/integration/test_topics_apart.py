"""Workers of one route that read different topics: a partition of the monitor has one owner, or nobody delivers what belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeTopic
from tests.routes import TopicRoute, ce, ids, publish, wait_for


@pytest.fixture
def route(tmp_path: Path, kafka: str, make_topic: MakeTopic) -> Iterator[TopicRoute]:
    made = TopicRoute(tmp_path, kafka, make_topic(2), make_topic(2), 2)
    yield made
    made.stop()


def test_a_worker_that_reads_more_topics_than_the_others_waits_until_they_do_too(route: TopicRoute, make_topic: MakeTopic) -> None:
    more = make_topic(2)
    route.migrate()
    former = route.start(0)
    publish(route.kafka, route.log, [(n % 2, ce("/a", f"a-{n}"), b"v") for n in range(4)])
    wait_for(lambda: len(route.outputs()) == 4, what="what a worker with the former configuration delivers", told=route.said)
    route.path.write_text(route.path.read_text().replace(f'from = ["{route.log}"]', f'from = ["{route.log}", "{more}"]'))
    publish(route.kafka, more, [(n % 2, ce("/b", f"b-{n}"), b"v") for n in range(4)])

    route.start(1)
    wait_for(lambda: "start them with one configuration" in route.said(1), what="the sentence", told=lambda: route.said(1))
    publish(route.kafka, route.log, [(0, ce("/a", "a-4"), b"v")])
    assert "fencing" not in route.said(0) + route.said(1)
    former.terminate()
    former.wait(30)
    route.start(0)

    wait_for(lambda: len(route.outputs()) == 9, what="all of both topics", told=lambda: route.said(1))
    assert sorted(ids(route.outputs())) == sorted([f"a-{n}" for n in range(5)] + [f"b-{n}" for n in range(4)])

"""Topics of the relay's own that somebody has let take next to nothing: a worker says which, or goes on and says that its status is missed."""

from __future__ import annotations

import signal

import pytest
from confluent_kafka.admin import AdminClient

from relay.run.restarts import ExitCode
from tests.cluster_changes import set_topic
from tests.conftest import MakeRoute
from tests.routes import ce, publish, wait_for


@pytest.mark.parametrize("own", ["control", "main.monitor"])
def test_a_worker_whose_word_does_not_fit_stops_and_names_the_topic(kafka_admin: AdminClient, make_route: MakeRoute, own: str) -> None:
    """Taken for brokers that are away, it was tried for ever."""
    route = make_route()
    set_topic(kafka_admin, f"{route.name}.{own}", "max.message.bytes", "100")

    assert route.finish() == ExitCode.PERSON, route.said()

    sentence = route.said().strip().splitlines()[-1]
    assert f"{route.name}.{own}" in sentence
    assert "undo what was changed at" in sentence


def test_a_status_that_does_not_fit_is_said_and_holds_up_nothing(kafka: str, kafka_admin: AdminClient, make_route: MakeRoute) -> None:
    route = make_route()
    worker = route.start()
    wait_for(lambda: '"running"' in route.said(), told=route.said)
    set_topic(kafka_admin, f"{route.name}.control", "max.message.bytes", "100")

    wait_for(lambda: f"{route.name}.control cannot be written" in route.said(), told=route.said)
    publish(kafka, route.log, [(0, ce("/s", "m-0"), b"v")])
    wait_for(route.outputs, told=route.said)
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(20) == 0, route.said()
    assert "status not written" in route.said()

"""What is told by the brokers' clock rather than by a worker's own, which may be behind."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient

from relay.config.loading import load
from relay.delivery.topic.recovery import TopicRecovery
from relay.run import assembly
from relay.run.following import control_topic
from relay.world import clock
from tests.cluster_changes import set_topic
from tests.conftest import MakeRoute

HOUR_MS = 3_600_000


def true_ms() -> float:
    return time.time() * 1000


def test_an_acknowledged_record_tells_the_brokers_time(
    kafka_admin: AdminClient, make_route: MakeRoute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "wall_ms", lambda: round(true_ms()) - HOUR_MS)
    config = load(make_route().path)
    with closing(control_topic(config)) as control:
        assert control.brokers_ms() == 0
        control.put(b"k", b"v", wait=True)
        assert abs(control.brokers_ms() - true_ms()) < HOUR_MS / 60
    set_topic(kafka_admin, config.control_topic, "message.timestamp.type", "CreateTime")
    with closing(control_topic(config)) as control:
        control.put(b"k", b"v", wait=True)
        assert control.brokers_ms() == 0, "it has the time of whoever wrote it"


def test_a_worker_whose_clock_is_behind_recovers_by_the_brokers(make_route: MakeRoute, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has written that it is there before it recovers anything."""
    monkeypatch.setattr(clock, "wall_ms", lambda: round(true_ms()) - HOUR_MS)
    recoveries: list[float] = []

    def recover(one: TopicRecovery, *_: object) -> None:
        recoveries.append(one._now_ms())
        raise assembly.Stopped("seen")

    monkeypatch.setattr(TopicRecovery, "run", recover)
    with pytest.raises(assembly.Stopped, match="seen"):
        assembly.assemble(load(make_route().path), "main", 0).run(None)

    assert abs(recoveries[0] - true_ms()) < HOUR_MS / 60

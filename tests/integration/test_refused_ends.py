"""An output that refuses the brokers' own record of a transaction's end: the coordinator does not try again until it is started again."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from relay.local.kafka import SMALL, KafkaCluster
from relay.local.services import LocalServices
from tests.cluster_changes import make_topics, set_topic
from tests.own_services import own_brokers
from tests.routes import TopicRoute, ce, ids, publish, read_all, wait_for

OLDEST = "message.timestamp.before.max.ms"


@pytest.mark.slow
@pytest.mark.nightly  # a broker of its own, and until one of its markers is older than a millisecond
@pytest.mark.timeout(300)
def test_a_worker_whose_transaction_is_not_ended_says_what_helps_and_goes_on_then(tmp_path: Path) -> None:
    with own_brokers("ends") as local:
        admin = AdminClient({"bootstrap.servers": local.kafka})
        make_topics(admin, NewTopic("log", 1), NewTopic("out", 1))
        route = TopicRoute(tmp_path, local.kafka, "log", "out", 1)
        route.migrate()
        route.start()
        wait_for(lambda: '"running"' in route.said(), told=route.said)
        numbers = count()

        def is_said() -> bool:
            publish(local.kafka, "log", [(0, ce("/s", f"m-{next(numbers)}"), b"v")])
            return f"raise {OLDEST} there" in route.said()

        try:
            set_topic(admin, "out", OLDEST, 0)  # and some get through within their millisecond
            wait_for(is_said, 180, told=route.said)
            set_topic(admin, "out", OLDEST, 2**63 - 1)
            cluster = KafkaCluster.find(local.directory / "kafka", SMALL)
            assert cluster is not None
            cluster.kill()
            LocalServices.up(local.directory, postgres=False, settings=SMALL)
            publish(local.kafka, "log", [(0, ce("/s", f"m-{next(numbers)}"), b"v")])
            published = [f"m-{n}" for n in range(next(numbers))]
            wait_for(lambda: published[-1] in ids(route.outputs()), what="the last message", told=route.said)
            dead = ids(read_all(local.kafka, f"{route.name}.deadletter", 1))
            assert sorted([*ids(route.outputs()), *dead]) == sorted(published)
        finally:
            route.stop()

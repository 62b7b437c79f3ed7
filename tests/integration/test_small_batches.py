"""Topics that take less at once than a producer's batch holds: brokers refuse a batch as a whole."""

from __future__ import annotations

import random
from pathlib import Path

from relay import Capture
from relay.resources import open_resource
from tests.conftest import MakeRoute, MakeTopic
from tests.routes import ids, publish, read_all

MESSAGES = 60
SMALL = {"max.message.bytes": "20000"}


def payloads() -> list[bytes]:
    """Values that no compression makes smaller; all together they are three times what a topic takes at once."""
    chance = random.Random(1)
    return [chance.randbytes(1000) for _ in range(MESSAGES)]


def test_a_capture_larger_than_its_topic_takes_at_once_commits(kafka: str, tmp_path: Path, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1, config=SMALL)
    resource = open_resource("shop", f"sqlite:///{tmp_path}/shop.db", 0.2)
    resource.create_tables()
    with Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/s") as capture, capture.transaction() as tx:
        for number, value in enumerate(payloads()):
            tx.publish(topic, value, id=f"m-{number}")

    found = [record for record in read_all(kafka, topic, 1) if record.value() is not None and len(record.value()) == 1000]
    assert ids(found) == [f"m-{number}" for number in range(MESSAGES)]


def test_a_route_delivers_to_a_topic_that_takes_less_at_once_than_the_log(kafka: str, make_route: MakeRoute) -> None:
    route = make_route(out=SMALL)
    sources = [("ce_source", b"/s")]
    publish(kafka, route.log, [(0, [*sources, ("ce_id", b"m-%d" % n)], value) for n, value in enumerate(payloads())])

    assert route.finish() == 0, route.said()

    assert ids(route.outputs()) == [f"m-{number}" for number in range(MESSAGES)]
    assert "narrowing" not in route.said()

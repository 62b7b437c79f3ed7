"""Brokers that create topics by themselves, as they do by default: a topic that was deleted does not come back as another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from relay import Capture
from relay.local.kafka import SMALL
from relay.message.errors import CaptureError, ConfigError
from relay.resources import open_resource
from tests.cluster_changes import make_topics
from tests.own_services import own_brokers
from tests.routes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]


@pytest.fixture
def kafka() -> Iterator[str]:
    """A broker that creates what somebody asks for."""
    settings = replace(SMALL, properties={"auto.create.topics.enable": "true"})
    with own_brokers("creating", settings=settings) as local:
        yield local.kafka


def test_a_capture_does_not_bring_a_deleted_topic_back(kafka: str, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    make_topics(admin, NewTopic("orders", 3))
    resource = open_resource("shop", f"sqlite:///{tmp_path}/shop.db", 0.2)
    resource.create_tables()
    with Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/s") as capture:
        with capture.transaction() as tx:
            tx.publish("orders", 1)
        admin.delete_topics(["orders"])["orders"].result(30)
        wait_for(lambda: "orders" not in admin.list_topics(timeout=10).topics, what="the topic's end")

        with pytest.raises(CaptureError), capture.transaction() as tx:
            tx.publish("orders", 2)
        with pytest.raises(ConfigError, match="'orders' does not exist"), capture.transaction() as tx:
            tx.publish("orders", 3)

    assert "orders" not in admin.list_topics(timeout=10).topics

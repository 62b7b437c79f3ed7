"""Upkeep of decision rows against topics that changed since."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_log import until
from confluent_kafka.admin import AdminClient, NewTopic

from relay import Capture
from relay.capture.marking import Marking
from relay.resources import open_resource
from tests.cluster_changes import add_partitions, make_topics
from tests.conftest import MakeTopic


def test_a_capture_whose_partition_is_gone_is_not_marked_again_for_ever(
    kafka: str, tmp_path: Path, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = open_resource("shop", f"sqlite:///{tmp_path}/shop.db", 0.2)
    resource.create_tables()
    topic = make_topic(partitions=2)
    with monkeypatch.context() as patch:
        patch.setattr(Marking, "submit", lambda *_: None)
        with (
            Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/s") as capture,
            capture.transaction() as tx,
        ):
            tx.publish(topic, 1, partition=1)
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([topic])[topic].result(30)
    until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic's end")
    make_topics(admin, NewTopic(topic, 1))

    decisions = resource.decisions()
    with Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/s"):
        until(lambda: decisions.unmarked(0.0, 10) == [], "the row to be marked: else it is never trimmed")
    decisions.close()


def test_a_key_whose_partition_was_added_under_a_publisher_is_published_as_soon_as_the_capture_knows_of_it(
    kafka: str, tmp_path: Path, make_topic: MakeTopic
) -> None:
    resource = open_resource("shop", f"sqlite:///{tmp_path}/shop.db", 0.2)
    resource.create_tables()
    topic = make_topic(partitions=1)
    with Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/s") as capture:
        with capture.transaction() as tx:
            tx.publish(topic, 1)
        add_partitions(AdminClient({"bootstrap.servers": kafka}), topic, 4)
        capture._publisher._appender.refresh()  # as it does by itself every half minute, the client only every five

        for partition in range(4):
            with capture.transaction() as tx:
                tx.publish(topic, 2, partition=partition)

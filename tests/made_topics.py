"""Topics that a test makes: known to the broker, with a leader, before anything asks for them."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient, NewTopic

LED_S = 60.0


def make_topics(admin: AdminClient, *topics: NewTopic) -> None:
    """Create topics and wait until they show, which on a busy machine they do a while after the answer."""
    for made in admin.create_topics(list(topics)).values():
        made.result(30)
    deadline = time.monotonic() + LED_S
    for topic in topics:
        while not _is_led(admin, topic):
            assert time.monotonic() < deadline, f"topic {topic.topic} has no leaders after {LED_S:g} s"
            time.sleep(0.02)


def _is_led(admin: AdminClient, topic: NewTopic) -> bool:
    found = admin.list_topics(topic.topic, timeout=10).topics[topic.topic].partitions
    wanted = len(topic.replica_assignment or ()) or topic.num_partitions
    return len(found) == wanted and all(one.leader >= 0 for one in found.values())

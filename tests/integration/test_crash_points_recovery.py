"""Recovery killed at each of its steps, again and again, with a real broker: it ends as one clean run does.

K8 to K10 of the list in DESIGN.md. Two transactions wait for it: one that a killed worker left open, and one that a
stray COMMIT cut off after some outputs and some entries, which must be settled.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import pytest
from confluent_kafka import Producer

from relay.config.loading import load
from relay.kafka.topics import Topics
from relay.message.envelope import OUT_DIGEST, OUT_INSTANCE, OUT_N
from relay.message.identity import cloudevents, content_digest
from relay.message.record import LogMessage
from relay.monitor.entries import Begin, InputRange, OutputStart, encode, pages
from tests.integration.crash_site import (
    PARTITIONS,
    SMALL_BATCHES,
    assert_once_in_order,
    assert_safe_now,
    name,
    publish_range,
)
from tests.routes import IN_ORDER, TopicRoute, ce

COUNT = 200
KEY = b"k"
CUT, SHOWN, FIRST_ENTERED, ENTERED = 20, 10, 5, 15
"""Offsets of partition 0: of those below CUT the outputs below SHOWN are there, and the entries of FIRST_ENTERED up to
ENTERED."""
RECOVERY = (
    "recovery.started", "recovery.fencing", "recovery.fenced", "recovery.reading", "recovery.read", "recovery.settled",
    "recovery.claiming", "sealed.announced", "sealed.entries", "sealed.flushed", "sealed.offsets", "sealed.committing",
    "sealed.committed", "recovery.claimed", "sealed.flushed:2", "sealed.committed:2",
)  # fmt: skip
"""The last two: none or one of the batches of messages in doubt is delivered again."""
ONCE_ENDED = RECOVERY.index("sealed.committed")
"""From here on the settlement is committed."""


def message(offset: int) -> LogMessage:
    """Message of partition 0 as intake makes it."""
    n = offset * PARTITIONS
    headers = ce("/0", name(n))
    value = b'{"n": %d}' % n
    digest = cloudevents({"ce_id": name(n).encode(), "ce_source": b"/0"}, b"", None) or b""
    return LogMessage("", 0, offset, KEY, value, headers, digest, content_digest(KEY, value), b"", None, 0)


def cut_off(route: TopicRoute) -> None:
    """Leave what a stray COMMIT leaves of a transaction: begin, some outputs, some entries, no seal."""
    instance = b"x" * 16
    place = crc32(b"/0") % PARTITIONS
    config = load(route.path)
    monitor = config.monitor_topic("main")
    with Topics(config.kafka, config.timing) as topics:
        _, end = topics.watermarks(route.out, [place])[place]
    worker = f"{route.name}.main.test.9"
    outputs = [OutputStart(route.out, place, end)]
    begin = Begin(worker, worker, instance, 1, -1, [InputRange(route.log, 0, 0, CUT)], outputs)
    messages = [message(offset)._replace(topic=route.log) for offset in range(CUT)]
    (page,) = pages(messages[FIRST_ENTERED:ENTERED], worker=worker, instance=instance, n=1)
    producer = Producer({"bootstrap.servers": route.kafka, **IN_ORDER})
    for entry in (begin, page):
        key, value = encode(entry)
        producer.produce(monitor, value, key, 0)
    for one in messages[:SHOWN]:
        marks = [(OUT_INSTANCE, instance.hex().encode()), (OUT_N, b"1"), (OUT_DIGEST, one.digest.hex().encode())]
        producer.produce(route.out, one.value, one.key, place, headers=[*one.headers, *marks])
    assert producer.flush(30) == 0


@pytest.fixture
def torn(make_route: Callable[..., TopicRoute]) -> TopicRoute:
    """A route with messages in doubt, of a transaction left open and of one that was cut off."""
    route = make_route(SMALL_BATCHES, PARTITIONS)
    publish_range(route, 0, COUNT)
    route.kill_at("sealed.flushed:2", 1)
    cut_off(route)
    return route


@pytest.mark.parametrize(
    "point", [pytest.param(one, marks=[] if one == "recovery.settled" else pytest.mark.slow) for one in RECOVERY]
)
def test_a_recovery_killed_twice_at_one_step_ends_as_one_clean_run(torn: TopicRoute, point: str) -> None:
    for number in (1, 0):
        torn.kill_at(point, number)
        assert_safe_now(torn)

    assert torn.finish(1) == 0, torn.said(1)

    assert_once_in_order(torn, COUNT)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_recoveries_killed_at_one_step_after_another_end_as_one_clean_run(torn: TopicRoute) -> None:
    for turn, point in enumerate((*RECOVERY[:ONCE_ENDED], "recovery.settled", *RECOVERY[ONCE_ENDED:])):
        torn.kill_at(point, turn % 2)
    assert_safe_now(torn)

    assert torn.finish() == 0, torn.said()

    assert_once_in_order(torn, COUNT)

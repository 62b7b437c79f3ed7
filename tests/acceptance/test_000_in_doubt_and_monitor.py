"""US 7,480,918, claim 1: delivery by several threads, an in-doubt list, a monitor, and a recovery that compares them.

Step by step as claimed; the document's threads are worker processes here, its message store the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from relay.config.loading import load
from relay.kafka.topics import Topics
from relay.message.identity import cloudevents
from relay.monitor.entries import DIGEST_BYTES, Begin, Entry, Page, decode
from tests.routes import TopicRoute, ce, ids, publish, read_all, wait_for

PARTITIONS: Final = 2
COUNT: Final = 600


def name(n: int) -> str:
    return f"m-{n}"


def publish_range(route: TopicRoute, first: int, count: int) -> None:
    publish(
        route.kafka, route.log,
        [(n % PARTITIONS, ce(f"/{n % PARTITIONS}", name(n)), b"v") for n in range(first, first + count)],
    )  # fmt: skip


def monitor(route: TopicRoute, *, committed: bool = True) -> list[Entry]:
    """Return what the monitor holds; without ``committed`` also what no transaction has ended yet."""
    topic = load(route.path).monitor_topic("main")
    found = [decode(m.key(), m.value()) for m in read_all(route.kafka, topic, PARTITIONS, committed=committed)]
    return [entry for entry in found if entry is not None]


def entered(pages: list[Entry]) -> dict[bytes, Page]:
    """Return the page that names each message identifier."""
    return {
        page.digests[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]: page
        for page in pages
        if isinstance(page, Page)
        for i in range(page.rows)
    }


def digest_of(n: int) -> bytes:
    found = cloudevents({"ce_id": name(n).encode(), "ce_source": f"/{n % PARTITIONS}".encode()}, b"", None)
    assert found is not None
    return found


def assert_delivered_once(route: TopicRoute, count: int) -> None:
    assert sorted(ids(route.outputs())) == sorted(map(name, range(count)))


@pytest.fixture
def route(make_route: Callable[..., TopicRoute]) -> TopicRoute:
    return make_route(partitions=PARTITIONS)


def test_message_threads_deliver_from_the_store_each_message_by_one_of_them(route: TopicRoute) -> None:
    workers = [route.start(0), route.start(1)]
    for number in (0, 1):
        wait_for(lambda number=number: '[0]@' in route.said(number) or '[1]@' in route.said(number))
    publish_range(route, 0, COUNT)
    wait_for(lambda: len(route.outputs()) >= COUNT, what="all output")
    for worker in workers:
        worker.terminate()
        assert worker.wait(30) == 0, route.said(0) + route.said(1)

    assert_delivered_once(route, COUNT)
    by_worker = {page.worker for page in entered(monitor(route)).values()}
    assert len(by_worker) == 2, "both workers deliver"


def test_an_in_doubt_list_identifies_the_messages_in_progress_before_they_are_sent(route: TopicRoute) -> None:
    publish_range(route, 0, COUNT)

    route.kill_at("sealed.offsets:2")

    assert route.outputs() == []
    listed = {
        (one.partition, offset)
        for begin in monitor(route, committed=False)
        if isinstance(begin, Begin)
        for one in begin.inputs
        for offset in range(one.first, one.next)
    }
    sent = read_all(route.kafka, route.out, PARTITIONS, committed=False)
    assert len(sent) > 0, "the crash fell while messages were being sent"
    in_progress = {(int(identifier[2:]) % PARTITIONS, int(identifier[2:]) // PARTITIONS) for identifier in ids(sent)}
    assert in_progress <= listed


def test_each_thread_adds_an_entry_with_the_message_identifier_to_the_monitor(route: TopicRoute) -> None:
    publish_range(route, 0, COUNT)
    assert route.finish() == 0, route.said()

    entries = entered(monitor(route))
    assert set(entries) == {digest_of(n) for n in range(COUNT)}
    assert {page.worker for page in entries.values()} == {load(route.path).transactional_id("main", 0)}
    assert {page.recovery for page in entries.values()} == {None}


@pytest.mark.parametrize("point", ["sealed.begun:2", "sealed.outputs:2", "sealed.entries:2", "sealed.committing:2"])
def test_the_monitor_names_no_message_that_is_not_at_the_destination(route: TopicRoute, point: str) -> None:
    publish_range(route, 0, COUNT)

    route.kill_at(point)

    assert set(entered(monitor(route))) == set()
    assert route.outputs() == []


def test_a_failure_generates_a_recovery_that_fences_the_failed_thread(route: TopicRoute) -> None:
    publish_range(route, 0, COUNT)
    route.kill_at("sealed.outputs:2")

    assert route.finish(1) == 0, route.said(1)

    failed = load(route.path).transactional_id("main", 0)
    assert f'"transactional_id":"{failed}"' in route.said(1)
    assert '"event":"fencing"' in route.said(1)
    assert_delivered_once(route, COUNT)


def test_recovery_adds_entries_with_its_own_identifier_for_what_the_monitor_lacks(route: TopicRoute) -> None:
    publish_range(route, 0, COUNT)
    route.kill_at("sealed.offsets:2")
    publish_range(route, COUNT, 10)
    in_doubt = ids(read_all(route.kafka, route.out, PARTITIONS, committed=False))

    assert route.finish(1) == 0, route.said(1)

    entries = entered(monitor(route))
    recovery = load(route.path).transactional_id("main", 1)
    assert {entries[digest_of(int(one[2:]))].recovery for one in in_doubt} == {recovery}
    assert {entries[digest_of(n)].recovery for n in range(COUNT, COUNT + 10)} == {None}
    assert_delivered_once(route, COUNT + 10)


def test_recovery_compares_the_in_doubt_list_with_the_monitor_and_repeats_nothing(
    route: TopicRoute, kafka_admin: AdminClient
) -> None:
    """All messages are put in doubt again: the group's positions go back to the beginning, as if no answer had come."""
    publish_range(route, 0, COUNT)
    assert route.finish() == 0, route.said()
    config = load(route.path)
    with Topics(config.kafka, config.timing) as topics:
        note = topics.describe([route.log])[route.log].topic_id.hex()
    back = [TopicPartition(route.log, p, 0, note) for p in range(PARTITIONS)]
    asked = kafka_admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(config.group_id("main"), back)])
    for answer in asked.values():
        answer.result(30)

    assert route.finish(1) == 0, route.said(1)

    assert "[0]@0" in route.said(1), "it reads all of them again"
    assert_delivered_once(route, COUNT)


@pytest.mark.parametrize("point", ["recovery.fenced", "recovery.read", "recovery.claiming", "recovery.claimed"])
def test_a_recovery_that_fails_is_begun_again_without_repeating_a_delivery(route: TopicRoute, point: str) -> None:
    publish_range(route, 0, COUNT)
    assert route.finish() == 0, route.said()
    publish_range(route, COUNT, COUNT)
    route.kill_at("sealed.outputs:2")

    route.kill_at(point, 1)
    route.kill_at(point)
    assert route.finish(1) == 0, route.said(1)

    assert_delivered_once(route, 2 * COUNT)

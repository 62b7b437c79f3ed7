"""IPCOM 018747D: messages processed concurrently are acknowledged one by one, so that no crash loses one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from relay.audit.verify import verify
from relay.capture.outcomes import encode_marker, marker_headers
from relay.config.loading import load
from relay.message.envelope import ResourceName
from relay.message.identity import capture_id
from relay.monitor.entries import Page, Proof, decode
from tests.routes import TopicRoute, ce, delete_below, ids, publish, read_all, wait_for

NONCE = b"n" * 16
CAPTURE = capture_id(NONCE)
NOWHERE = ResourceName("elsewhere", "u-1")


def undecided(identifier: str) -> tuple[int, list[tuple[str, bytes]], bytes]:
    """A message that cannot be done with before its outcome is known: its processing takes as long as we like."""
    own = [("ce_relaycapture", CAPTURE.hex().encode()), ("ce_relayresource", NOWHERE.encode())]
    return 0, [*ce("/slow", identifier), *own], b"v"


def decide(route: TopicRoute) -> None:
    producer = Producer({"bootstrap.servers": route.kafka})
    headers: Any = marker_headers(CAPTURE, b"/slow", NOWHERE)
    producer.produce(route.log, encode_marker(CAPTURE, NONCE, None, []), CAPTURE, 0, headers=headers)
    assert producer.flush(30) == 0


def position(route: TopicRoute) -> int:
    """What the log's server believes to be done with; -1001 for nothing."""
    group = load(route.path).group_id("main")
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(route.log, 0)])
    admin = AdminClient({"bootstrap.servers": route.kafka})
    found = admin.list_consumer_group_offsets([asked])
    offset: int = found[group].result(30).topic_partitions[0].offset
    return offset


def fast(first: int, count: int) -> list[tuple[int, list[tuple[str, bytes]], bytes]]:
    return [(0, ce(f"/fast/{n % 7}", f"m-{n}"), b"v") for n in range(first, first + count)]


def test_a_later_message_is_done_while_an_earlier_one_is_still_in_progress(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route()
    publish(route.kafka, route.log, [undecided("slow"), *fast(0, 100)])
    worker = route.start()

    wait_for(lambda: len(route.outputs()) >= 100, what="the later messages")

    assert sorted(ids(route.outputs())) == sorted(f"m-{n}" for n in range(100))
    assert worker.poll() is None


def test_acknowledging_later_messages_does_not_acknowledge_the_earlier_one(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route()
    publish(route.kafka, route.log, [*fast(0, 10), undecided("slow"), *fast(10, 100)])
    route.start()
    wait_for(lambda: len(route.outputs()) >= 110, what="the later messages")

    assert position(route) == 10


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["crash", "leaving"])
def test_the_consumer_ends_and_the_message_in_progress_is_delivered_again_and_no_other_one(
    make_route: Callable[..., TopicRoute], end: signal.Signals
) -> None:
    route = make_route()
    publish(route.kafka, route.log, [undecided("slow"), *fast(0, 100)])
    worker = route.start()
    wait_for(lambda: len(route.outputs()) >= 100, what="the later messages")

    worker.send_signal(end)
    worker.wait(30)
    decide(route)
    assert route.finish(1) == 0, route.said(1)

    assert sorted(ids(route.outputs())) == sorted(["slow", *(f"m-{n}" for n in range(100))])


def test_a_lost_connection_is_like_a_crash_to_the_server_and_nothing_is_lost(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route()
    publish(route.kafka, route.log, [undecided("slow"), *fast(0, 100)])
    silent = route.start()
    wait_for(lambda: len(route.outputs()) >= 100, what="the later messages")

    silent.send_signal(signal.SIGSTOP)
    decide(route)
    assert route.finish(1) == 0, route.said(1)
    silent.send_signal(signal.SIGCONT)
    wait_for(lambda: position(route) == 102, what="the position behind all")

    assert sorted(ids(route.outputs())) == sorted(["slow", *(f"m-{n}" for n in range(100))])


def test_a_message_that_is_in_progress_for_longer_than_the_monitor_keeps_entries_costs_no_repeat(
    make_route: Callable[..., TopicRoute],
) -> None:
    route = make_route()
    # The shortest horizon there is: entries are looked at every three seconds.
    short = '[timing]\nin_doubt_alarm = "11s"\ndedup_horizon = "12s"\n'
    route.path.write_text(route.path.read_text().replace("[timing]\n", short))
    monitor = load(route.path).monitor_topic("main")
    publish(route.kafka, route.log, [undecided("slow"), *fast(0, 100)])
    worker = route.start()
    wait_for(lambda: len(route.outputs()) >= 100, what="the later messages")
    aged = read_all(route.kafka, monitor, 1)[-1].offset() + 1

    def carried() -> int:
        found = [decode(one.key(), one.value()) for one in read_all(route.kafka, monitor, 1) if one.offset() >= aged]
        return sum(one.rows for one in found if isinstance(one, Page) and one.proof is Proof.PROVEN)

    wait_for(lambda: carried() >= 100, what="their entries, written again")
    delete_below(AdminClient({"bootstrap.servers": route.kafka}), monitor, aged)
    worker.kill()
    worker.wait(30)
    decide(route)
    assert route.finish(1) == 0, route.said(1)

    assert sorted(ids(route.outputs())) == sorted(["slow", *(f"m-{n}" for n in range(100))])
    (report,) = verify(load(route.path), ())
    assert report.ok, (report.sentence, report.offences)


@pytest.mark.parametrize("point", ["sealed.outputs", "sealed.entries", "sealed.offsets", "sealed.committing"])
def test_a_message_is_removed_from_the_server_only_with_its_processing(
    make_route: Callable[..., TopicRoute], point: str
) -> None:
    route = make_route()
    assert route.finish() == 0, route.said()
    publish(route.kafka, route.log, fast(0, 100))

    route.kill_at(f"{point}:2")

    assert route.outputs() == []
    wait_for(lambda: position(route) == 0, what="the position, unmoved")
    assert route.finish() == 0, route.said()
    assert position(route) == 100
    assert len(ids(route.outputs())) == 100

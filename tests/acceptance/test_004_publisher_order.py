"""IPCOM 031305D: publications of different publishers go on concurrently, those of one publisher in their order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from relay.capture.outcomes import encode_marker, marker_headers
from relay.message.envelope import ResourceName
from relay.message.identity import capture_id
from tests.routes import TopicRoute, ce, ids, per_source, publish, wait_for

NOWHERE = ResourceName("elsewhere", "u-1")
PUBLISHERS = 12
PARTITIONS = 3
COUNT = 6000


def captured(source: str, identifier: str, nonce: bytes) -> tuple[int, list[tuple[str, bytes]], bytes]:
    """A publication that must wait until its capture's outcome is read."""
    own = [("ce_relaycapture", capture_id(nonce).hex().encode()), ("ce_relayresource", NOWHERE.encode())]
    return 0, [*ce(source, identifier), *own], b"v"


def plain(source: str, identifier: str) -> tuple[int, list[tuple[str, bytes]], bytes]:
    return 0, ce(source, identifier), b"v"


def decide(route: TopicRoute, nonce: bytes, *, committed: bool = True) -> None:
    producer = Producer({"bootstrap.servers": route.kafka})
    capture = capture_id(nonce)
    headers: Any = marker_headers(capture, b"/s", NOWHERE)
    producer.produce(
        route.log, encode_marker(capture, nonce if committed else None, None, []), capture, 0, headers=headers
    )
    assert producer.flush(30) == 0


def interleaved(seed: int) -> list[tuple[int, list[tuple[str, bytes]], bytes]]:
    """Publications of twelve publishers in a random order, each publisher's numbered upwards."""
    rng = random.Random(seed)
    return [
        (who % PARTITIONS, ce(f"/p/{who}", f"{who}-{n}"), b"v")
        for n in range(COUNT)
        for who in [rng.randrange(PUBLISHERS)]
    ]


def assert_all_in_order(route: TopicRoute, seed: int) -> None:
    found = per_source(route.outputs())
    wanted: dict[str, list[int]] = {}
    for _, headers, _ in interleaved(seed):
        fields = dict(headers)
        wanted.setdefault(fields["ce_source"].decode(), []).append(int(fields["ce_id"].decode().split("-")[1]))
    assert found == wanted


@pytest.mark.parametrize("batch", [1000, 37], ids=["long batches", "short batches"])
def test_each_publishers_sequence_reaches_the_subscriber_in_its_order(
    make_route: Callable[..., TopicRoute], batch: int
) -> None:
    route = make_route(f"\n[routes.main.batch]\nmessages = {batch}\n", partitions=PARTITIONS)
    publish(route.kafka, route.log, interleaved(1))

    assert route.finish() == 0, route.said()

    assert_all_in_order(route, 1)


def test_several_workers_at_once_keep_each_publishers_order(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route("\n[routes.main.batch]\nmessages = 50\n", partitions=PARTITIONS)
    workers = [route.start(n) for n in range(3)]
    publish(route.kafka, route.log, interleaved(2))
    wait_for(lambda: len(route.outputs()) >= COUNT, what="all output")
    for worker in workers:
        worker.terminate()
        assert worker.wait(30) == 0

    assert_all_in_order(route, 2)


def test_a_publisher_that_must_wait_does_not_stop_the_others(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route()
    waiting = b"w" * 16
    publish(route.kafka, route.log, [captured("/slow", "slow-0", waiting), *(plain(f"/{n % 9}", f"f-{n}") for n in range(900))])
    route.start()

    wait_for(lambda: len(route.outputs()) >= 900, what="the other publishers")

    assert "slow-0" not in ids(route.outputs())


def test_the_input_is_read_on_while_a_publisher_waits(make_route: Callable[..., TopicRoute]) -> None:
    """The document's warning: nobody may hold the input while waiting for a publisher. Its release lies behind
    more messages than the relay takes in at once."""
    route = make_route(
        "\n[routes.main.batch]\nmessages = 50\n[routes.main.inflight]\nmessages = 100\nhold_bytes = 2000\n"
    )
    waiting = b"w" * 16
    publish(route.kafka, route.log, [captured("/slow", "slow-0", waiting)])
    publish(route.kafka, route.log, [plain("/slow", f"slow-{n}") for n in range(1, 1000)])
    publish(route.kafka, route.log, [plain(f"/{n % 9}", f"f-{n}") for n in range(1000)])
    decide(route, waiting)

    assert route.finish() == 0, route.said()

    found = per_source(route.outputs())
    assert found["/slow"] == list(range(1000))
    assert sum(map(len, found.values())) == 2000


def test_what_waits_for_one_publisher_goes_on_first_in_first_out(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route()
    first, second = b"1" * 16, b"2" * 16
    publish(
        route.kafka,
        route.log,
        [
            captured("/s", "s-0", first), plain("/s", "s-1"), captured("/s", "s-2", second), plain("/s", "s-3"),
            captured("/s", "s-4", first), plain("/s", "s-5"), plain("/t", "t-0"),
        ],
    )  # fmt: skip
    route.start()
    wait_for(lambda: ids(route.outputs()) == ["t-0"], what="the other publisher")

    decide(route, second)
    publish(route.kafka, route.log, [plain("/t", "t-1")])
    wait_for(lambda: ids(route.outputs()) == ["t-0", "t-1"], what="the other publisher, again")
    decide(route, first)

    wait_for(lambda: len(route.outputs()) >= 8, what="the publisher that waited")
    assert per_source(route.outputs()) == {"/s": [0, 1, 2, 3, 4, 5], "/t": [0, 1]}


def test_the_next_publication_goes_on_when_the_one_before_it_is_taken_back(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route()
    first, second = b"1" * 16, b"2" * 16
    publish(
        route.kafka, route.log,
        [captured("/s", "s-0", first), plain("/s", "s-1"), captured("/s", "s-2", second), plain("/s", "s-3")],
    )  # fmt: skip
    decide(route, second)
    decide(route, first, committed=False)

    assert route.finish() == 0, route.said()

    assert per_source(route.outputs()) == {"/s": [1, 2, 3]}

"""A topic route on a real broker: once, in order, across kills, with poison and duplicates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from relay.run.worker import POSITIONS_REPEATED_AFTER_S
from tests.routes import DEADLINE_S, Route, ce, ids, per_source, publish, read_all, wait_for

PARTITIONS = 3


@pytest.fixture
def route(tmp_path: Path, kafka: str, make_topic: Callable[..., str]) -> Iterator[Route]:
    log, out = make_topic(PARTITIONS), make_topic(PARTITIONS)
    made = Route(tmp_path, kafka, log, f'{{ topic = "{out}" }}')
    made.out = out  # type: ignore[attr-defined]
    made.migrate()
    yield made
    made.stop()


def messages(count: int, first: int = 0) -> list[tuple[int, list[tuple[str, bytes]], bytes]]:
    return [
        (n % PARTITIONS, ce(f"/source/{n % PARTITIONS}", f"m-{n}"), b'{"n": %d}' % n) for n in range(first, first + count)
    ]


def test_every_message_arrives_once_in_its_publishers_order(route: Route) -> None:
    publish(route.kafka, route.log, messages(3000))

    assert route.finish() == 0, route.said()

    found = read_all(route.kafka, route.out, PARTITIONS)
    assert sorted(ids(found)) == sorted(f"m-{n}" for n in range(3000))
    assert all(numbers == sorted(numbers) for numbers in per_source(found).values())


def test_what_was_delivered_is_not_delivered_again_after_a_restart(route: Route) -> None:
    publish(route.kafka, route.log, messages(300))
    assert route.finish() == 0, route.said()
    publish(route.kafka, route.log, messages(300))
    publish(route.kafka, route.log, messages(10, first=300))

    assert route.finish() == 0, route.said()

    assert len(ids(read_all(route.kafka, route.out, PARTITIONS))) == 310


def test_a_route_that_says_its_positions_once_more_goes_on_without_a_recovery(route: Route) -> None:
    publish(route.kafka, route.log, messages(30))

    assert route.finish(until_idle_s=POSITIONS_REPEATED_AFTER_S + 3) == 0, route.said()

    assert len(read_all(route.kafka, route.out, PARTITIONS)) == 30
    assert "recovering" not in route.said(), route.said()


# A few; every step has its test in test_crash_points_topic.py and test_crash_points_recovery.py.
@pytest.mark.parametrize("point", ["sealed.outputs:2", "sealed.committing:2", "recovery.claiming"])
def test_killed_at_each_step_it_goes_on_without_loss_or_repeat(route: Route, point: str) -> None:
    publish(route.kafka, route.log, messages(600))

    assert route.finish(RELAY_CRASH_AT=point) == 137, route.said()
    assert route.finish() == 0, route.said()

    found = read_all(route.kafka, route.out, PARTITIONS)
    assert sorted(ids(found)) == sorted(f"m-{n}" for n in range(600))
    assert all(numbers == sorted(numbers) for numbers in per_source(found).values())


def test_aborted_records_of_a_foreign_transaction_never_show(route: Route) -> None:
    producer = Producer({"bootstrap.servers": route.kafka, "transactional.id": route.name})
    producer.init_transactions()
    for n, commit in enumerate([True, False, True]):
        producer.begin_transaction()
        producer.produce(route.log, value=b"v", partition=0, headers=ce("/tx", f"t-{n}"))
        producer.flush()
        (producer.commit_transaction if commit else producer.abort_transaction)()

    assert route.finish() == 0, route.said()

    assert ids(read_all(route.kafka, route.out, PARTITIONS)) == ["t-0", "t-2"]


def test_a_run_until_idle_waits_for_what_an_open_transaction_hides(route: Route) -> None:
    producer = Producer({"bootstrap.servers": route.kafka, "transactional.id": route.name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(route.log, value=b"v", partition=0, headers=ce("/tx", "t-0"))
    producer.flush()
    publish(route.kafka, route.log, messages(30))

    worker = route.start(until_idle_s=0.5)
    wait_for(lambda: "a Kafka transaction is open in the log" in route.said(), what="why it does not end")
    assert worker.poll() is None
    producer.commit_transaction()

    assert worker.wait(DEADLINE_S) == 0, route.said()
    assert sorted(ids(read_all(route.kafka, route.out, PARTITIONS))) == sorted(["t-0", *(f"m-{n}" for n in range(30))])


def test_two_workers_share_the_partitions_and_a_killed_one_is_replaced(route: Route) -> None:
    publish(route.kafka, route.log, messages(20_000))
    first = route.start(0)
    second = route.start(1)
    wait_for(lambda: len(read_all(route.kafka, route.out, PARTITIONS)) > 1000, what="some output")
    first.kill()
    first.wait()
    publish(route.kafka, route.log, messages(20_000, first=20_000))

    wait_for(lambda: len(read_all(route.kafka, route.out, PARTITIONS)) >= 40_000, what="all output")
    second.terminate()
    assert second.wait(30) == 0, route.said(1)

    found = read_all(route.kafka, route.out, PARTITIONS)
    assert sorted(ids(found)) == sorted(f"m-{n}" for n in range(40_000))
    assert all(numbers == sorted(numbers) for numbers in per_source(found).values())

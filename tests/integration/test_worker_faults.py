"""Faults around a worker: twins, frozen processes, lost offsets, recreated topics, captures that nobody decided."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from typer.testing import CliRunner

from relay import Capture
from relay.cli.main import app
from relay.config.loading import load
from relay.message.envelope import ResourceName
from relay.resources import open_resource
from relay.run.restarts import ExitCode
from tests.routes import TopicRoute, ce, delete_below, ids, per_source, publish, wait_for

PARTITIONS = 3


def messages(count: int, first: int = 0, partitions: int = PARTITIONS) -> list[Any]:
    return [
        (n % partitions, ce(f"/source/{n % partitions}", f"m-{n}"), b"v") for n in range(first, first + count)
    ]


def assert_once_in_order(route: TopicRoute, count: int) -> None:
    found = route.outputs()
    assert sorted(ids(found)) == sorted(f"m-{n}" for n in range(count))
    assert all(numbers == sorted(numbers) for numbers in per_source(found).values())


@pytest.mark.parametrize("partitions", [1, PARTITIONS])
def test_of_two_processes_with_one_name_the_older_stops(make_route: Callable[..., TopicRoute], partitions: int) -> None:
    route = make_route(partitions=partitions)
    publish(route.kafka, route.log, messages(20_000, partitions=partitions))
    older = route.start(0)
    wait_for(lambda: len(route.outputs()) > 0, what="the older worker's deliveries")

    newer = route.start(0)

    wait_for(lambda: older.poll() is not None, what="the older process's end")
    assert older.returncode == ExitCode.TWIN, route.said()
    assert "another process runs as" in route.said()
    assert newer.poll() is None
    publish(route.kafka, route.log, messages(1000, first=20_000, partitions=partitions))
    wait_for(lambda: len(route.outputs()) >= 21_000, what="all output")
    newer.terminate()
    assert newer.wait(30) == 0, route.said()
    assert_once_in_order(route, 21_000)


def test_a_worker_frozen_past_its_session_comes_back_without_repeat_or_inversion(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route(partitions=PARTITIONS)
    frozen, other = route.start(0), route.start(1)
    for number in (0, 1):
        wait_for(lambda number=number: '"event":"running"' in route.said(number), what="a worker's partitions")
    takeovers = route.said(0).count('"event":"running"')
    publish(route.kafka, route.log, messages(60_000))
    wait_for(lambda: len(route.outputs()) > 0, what="some output")
    frozen.send_signal(signal.SIGSTOP)
    publish(route.kafka, route.log, messages(3000, first=60_000))
    wait_for(lambda: len(route.outputs()) >= 63_000, what="the other worker's deliveries")

    frozen.send_signal(signal.SIGCONT)
    publish(route.kafka, route.log, messages(3000, first=63_000))

    wait_for(lambda: len(route.outputs()) >= 66_000, what="all output")
    wait_for(lambda: route.said(0).count('"event":"running"') > takeovers, what="the frozen worker's return")
    for worker in (frozen, other):
        worker.terminate()
        assert worker.wait(30) == 0, route.said(0) + route.said(1)
    assert_once_in_order(route, 66_000)


def delete_offsets(admin: AdminClient, group: str, log: str, partitions: int) -> None:
    from confluent_kafka import KafkaException  # noqa: PLC0415

    def gone() -> bool:
        try:
            for deleted in admin.delete_consumer_groups([group]).values():
                deleted.result(10)
        except KafkaException:
            return False  # the last member has not left yet
        return True

    wait_for(gone, what="the group's end")
    asked = admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, [TopicPartition(log, p) for p in range(partitions)])]
    )
    assert all(place.offset < 0 for place in asked[group].result(10).topic_partitions)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_expired_offsets_stop_the_route_with_the_remedy(
    make_route: Callable[..., TopicRoute], kafka_admin: AdminClient, start: str
) -> None:
    route = make_route(f'start = "{start}"', PARTITIONS)
    assert route.finish() == 0, route.said()
    publish(route.kafka, route.log, messages(300))
    assert route.finish() == 0, route.said()
    delete_offsets(kafka_admin, load(route.path).group_id("main"), route.log, PARTITIONS)
    publish(route.kafka, route.log, messages(30, first=300))

    assert route.finish() == ExitCode.PERSON, route.said()

    assert "has no stored position although the route has run before" in route.said()
    assert_once_in_order(route, 300)


def recreate(admin: AdminClient, topic: str, partitions: int, *, at_once: bool = False) -> None:
    admin.delete_topics([topic])[topic].result(30)
    if not at_once:
        wait_for(lambda: topic not in admin.list_topics(timeout=5).topics, what="the topic's end")

    def created() -> bool:
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)
        except KafkaException:
            return False
        return True

    wait_for(created, what="the topic's second life")
    wait_for(lambda: topic in admin.list_topics(timeout=5).topics, what="the broker's knowledge of it")


@pytest.mark.parametrize(
    ("second", "at_once"), [(3, False), (600, False), (600, True)], ids=["shorter", "longer", "longer at once"]
)
def test_a_topic_created_again_under_a_running_worker_stops_it(
    make_route: Callable[..., TopicRoute], kafka_admin: AdminClient, second: int, at_once: bool
) -> None:
    """Created again at once, nobody tells the consumer: it reads the second topic where it stood in the first."""
    route = make_route(partitions=PARTITIONS)
    publish(route.kafka, route.log, messages(300))
    worker = route.start()
    wait_for(lambda: len(route.outputs()) == 300, what="the deliveries")

    recreate(kafka_admin, route.log, PARTITIONS, at_once=at_once)
    publish(route.kafka, route.log, messages(second, first=300))

    wait_for(lambda: worker.poll() is not None, what="the worker's end")
    assert worker.returncode == ExitCode.PERSON, route.said()
    assert "created again" in route.said() or "do not exist" in route.said()
    assert_once_in_order(route, 300)


@pytest.mark.parametrize("second", [PARTITIONS, 1])
def test_an_output_created_again_under_a_running_worker_stops_it_and_the_next_start_goes_on(
    make_route: Callable[..., TopicRoute], kafka_admin: AdminClient, second: int
) -> None:
    route = make_route(partitions=PARTITIONS)
    publish(route.kafka, route.log, messages(300))
    worker = route.start()
    wait_for(lambda: len(route.outputs()) == 300, what="the deliveries")

    recreate(kafka_admin, route.out, second)
    route.partitions = second
    publish(route.kafka, route.log, messages(100, first=300))

    wait_for(lambda: worker.poll() is not None, what="the worker's end")
    assert worker.returncode == ExitCode.PERSON, route.said()
    assert "which the route delivers to, was deleted and created again" in route.said()
    assert route.outputs() == []
    assert route.finish() == 0, route.said()
    assert len(route.outputs()) == 100


def test_a_topic_created_again_while_nothing_ran_stops_the_next_start(
    make_route: Callable[..., TopicRoute], kafka_admin: AdminClient
) -> None:
    route = make_route(partitions=PARTITIONS)
    publish(route.kafka, route.log, messages(300))
    assert route.finish() == 0, route.said()

    recreate(kafka_admin, route.log, PARTITIONS)
    publish(route.kafka, route.log, messages(600, first=300))

    assert route.finish() == ExitCode.PERSON, route.said()
    assert "was deleted and created again" in route.said()
    assert_once_in_order(route, 300)


def test_partitions_added_later_begin_at_their_beginning_after_migrate(
    make_route: Callable[..., TopicRoute], kafka_admin: AdminClient
) -> None:
    route = make_route('start = "latest"', PARTITIONS)
    assert route.finish() == 0, route.said()
    kafka_admin.create_partitions([NewPartitions(route.log, 4)])[route.log].result(30)
    wait_for(lambda: len(kafka_admin.list_topics(route.log, 5).topics[route.log].partitions) == 4)
    publish(route.kafka, route.log, [(3, ce("/late", f"m-{n}"), b"v") for n in range(100)])
    assert route.finish() == ExitCode.PERSON, route.said()
    assert route.outputs() == []

    route.migrate()

    assert route.finish() == 0, route.said()
    assert_once_in_order(route, 100)


def test_what_stops_a_worker_before_it_is_made_is_told_by_the_status(
    make_route: Callable[..., TopicRoute], kafka_admin: AdminClient
) -> None:
    route = make_route("", PARTITIONS)
    kafka_admin.create_partitions([NewPartitions(route.log, 4)])[route.log].result(30)
    wait_for(lambda: len(kafka_admin.list_topics(route.log, 5).topics[route.log].partitions) == 4)

    assert route.finish() == ExitCode.PERSON, route.said()

    result = CliRunner().invoke(app, ["status", str(route.path), "--json"])
    (view,) = json.loads(result.stdout)["routes"].values()
    assert (result.exit_code, view["state"]) == (1, "stopped")
    assert "run `relay migrate`, which adds them before they are read" in view["why"]


def test_start_latest_holds_once(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route('start = "latest"', PARTITIONS)
    publish(route.kafka, route.log, [(0, ce("/old", "old-1"), b"v")])
    route.kill_at("recovery.claiming")
    publish(route.kafka, route.log, messages(30))

    assert route.finish() == 0, route.said()

    assert_once_in_order(route, 30)


# Captures: what is held, released, dropped and fenced, with a real database of one file.


class Shop:
    """A route whose relay can ask the publisher's database."""

    def __init__(self, make_route: Callable[..., TopicRoute], directory: Path, inflight: str = "") -> None:
        self.url = f"sqlite:///{directory}/shop.db"
        self.resource = open_resource("shop", self.url, 1.0)
        self.resource.create_tables()
        self.route = make_route(inflight + f'\n[resources.shop]\nurl = "{self.url}"\n', partitions=1)

    def capture(self) -> Capture:
        return Capture(kafka={"bootstrap.servers": self.route.kafka}, resource=self.resource, source="/shop")

    def captured(self, capture: bytes, identifier: str, source: str = "/shop", uuid: str | None = None) -> Any:
        """A message as a publisher's process leaves it that died before its decision."""
        name = ResourceName("shop", uuid or self.resource.identity().uuid)
        own = [("ce_relaycapture", capture.hex().encode()), ("ce_relayresource", name.encode())]
        return 0, [*ce(source, identifier), *own], b"v" * 100


@pytest.fixture
def shop(make_route: Callable[..., TopicRoute], tmp_path: Path) -> Shop:
    return Shop(make_route, tmp_path)


def write_blocks(capture: Capture, topic: str, first: int, count: int, *, fail: bool = False) -> None:
    for n in range(first, first + count):
        try:
            with capture.transaction() as tx:
                tx.publish(topic, {"n": n}, id=f"m-{n}", type="t", partition=0)
                if fail:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert fail


def test_committed_captures_pass_and_rolled_back_ones_do_not(shop: Shop) -> None:
    worker = shop.route.start()
    with shop.capture() as capture:
        write_blocks(capture, shop.route.log, 0, 20)
        write_blocks(capture, shop.route.log, 1000, 20, fail=True)
        write_blocks(capture, shop.route.log, 20, 20)

    wait_for(lambda: len(shop.route.outputs()) >= 40, what="the committed ones")
    worker.terminate()
    assert worker.wait(30) == 0, shop.route.said()
    assert_once_in_order(shop.route, 40)
    for message in shop.route.outputs():
        names = {name for name, _ in message.headers()}
        assert not names & {"ce_relaycapture", "ce_relayresource"}


def test_an_abandoned_capture_is_fenced_and_only_its_lane_waited(shop: Shop) -> None:
    abandoned = b"a" * 16
    publish(shop.route.kafka, shop.route.log, [shop.captured(abandoned, "lost-1"), (0, ce("/shop", "m-0"), b"v")])
    publish(shop.route.kafka, shop.route.log, [(0, ce("/other", "o-1"), b"v")])

    assert shop.route.finish() == 0, shop.route.said()

    assert ids(shop.route.outputs()) == ["o-1", "m-0"]
    decisions = shop.resource.decisions()
    assert decisions.read([abandoned])[abandoned].committed is False
    decisions.close()


def test_a_resource_with_another_uuid_keeps_the_lane_and_only_it(shop: Shop) -> None:
    stuck = shop.captured(b"b" * 16, "stuck-1", uuid="another")
    publish(shop.route.kafka, shop.route.log, [stuck, (0, ce("/shop", "behind-1"), b"v")])
    publish(shop.route.kafka, shop.route.log, [(0, ce("/other", f"m-{n}"), b"v") for n in range(100)])
    worker = shop.route.start()

    wait_for(lambda: len(shop.route.outputs()) >= 100, what="the other lane")
    worker.kill()
    worker.wait()
    # The position stands before the stuck message; what was delivered behind it must not come again.
    worker = shop.route.start()
    publish(shop.route.kafka, shop.route.log, [(0, ce("/other", "m-100"), b"v")])
    wait_for(lambda: len(shop.route.outputs()) >= 101, what="the other lane after a restart")
    worker.terminate()
    assert worker.wait(30) == 0, shop.route.said()
    assert_once_in_order(shop.route, 101)


def test_an_unreachable_resource_keeps_only_its_lane_waiting(
    make_route: Callable[..., TopicRoute], tmp_path: Path
) -> None:
    shop = Shop(make_route, tmp_path)
    route = shop.route
    route.path.write_text(route.path.read_text().replace(shop.url, "postgresql://nobody@127.0.0.1:1/none"))
    own = [("ce_relaycapture", (b"c" * 16).hex().encode()), ("ce_relayresource", ResourceName("shop", "u").encode())]
    publish(route.kafka, route.log, [(0, [*ce("/shop", "held-1"), *own], b"v"), (0, ce("/shop", "held-2"), b"v")])
    worker = route.start()
    publish(route.kafka, route.log, messages(50, partitions=1))
    wait_for(lambda: len(route.outputs()) == 50, what="the other lane")
    publish(route.kafka, route.log, messages(50, first=50, partitions=1))

    wait_for(lambda: len(route.outputs()) == 100, what="the other lane, later")

    assert worker.poll() is None, route.said()
    worker.terminate()
    assert worker.wait(30) == 0, route.said()
    assert_once_in_order(route, 100)


@pytest.mark.parametrize("hold_bytes", [0, 500, 20_000])
def test_holds_past_the_byte_budget_are_read_again_in_order(
    make_route: Callable[..., TopicRoute], tmp_path: Path, hold_bytes: int
) -> None:
    shop = Shop(make_route, tmp_path, f"\n[routes.main.inflight]\nhold_bytes = {hold_bytes}\n")
    abandoned = b"d" * 16
    # An abandoned capture blocks the lane while 600 committed ones and plain messages arrive behind it.
    publish(shop.route.kafka, shop.route.log, [shop.captured(abandoned, f"lost-{n}") for n in range(30)])
    with shop.capture() as capture:
        for n in range(0, 600, 30):
            with capture.transaction() as tx:
                for i in range(n, n + 25):
                    tx.publish(shop.route.log, {"pad": "x" * 100}, id=f"m-{i}", type="t", partition=0)
            publish(shop.route.kafka, shop.route.log, [(0, ce("/shop", f"m-{i}"), b"v") for i in range(n + 25, n + 30)])
            publish(shop.route.kafka, shop.route.log, [shop.captured(abandoned, f"lost-{n + 100}")])
    publish(shop.route.kafka, shop.route.log, [(0, ce("/other", "m-600"), b"v")])

    assert shop.route.finish() == 0, shop.route.said()

    assert_once_in_order(shop.route, 601)


def test_a_worker_that_retention_overtakes_names_what_is_lost_and_how_to_go_on(
    make_route: Callable[..., TopicRoute], kafka_admin: AdminClient
) -> None:
    route = make_route()
    worker = route.start()
    publish(route.kafka, route.log, messages(5, partitions=1))
    wait_for(lambda: len(route.outputs()) == 5, what="the first output", told=route.said)
    worker.send_signal(signal.SIGSTOP)
    publish(route.kafka, route.log, messages(1, first=5, partitions=1))  # it answers the request that is under way
    publish(route.kafka, route.log, messages(9, first=6, partitions=1))
    delete_below(kafka_admin, route.log, 12)
    worker.send_signal(signal.SIGCONT)

    assert worker.wait(30) == ExitCode.PERSON, route.said()
    assert re.search(rf"relay indoubt resolve CONFIG lost:main/{route.log}/0/[56]-11 --abort", route.said()), route.said()

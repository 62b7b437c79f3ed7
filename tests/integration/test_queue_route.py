"""A queue route on a real broker: message, inbox and position are one transaction of the queue's store, across kills."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import randbytes
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from relay.audit.checker import MUST_BE_ZERO
from relay.audit.verify import verify
from relay.capture.outcomes import encode_marker, marker_headers
from relay.cli.main import app
from relay.config.loading import load
from relay.kafka import settings
from relay.kafka.control import ControlTopic
from relay.message.envelope import ResourceName
from relay.queue.desired import Kind, Subject, Wanted, Wish
from relay.queue.message import MessageView, NewMessage, Parent
from relay.queue.port import Filter, Holder
from relay.queue.states import PublisherState
from relay.run.following import follow
from relay.run.queues import open_queue
from relay.setup.queue_tables import create_tables
from relay.world import clock
from tests.routes import Route, ce, delete_below, publish, read_all, wait_for

PARTITIONS = 2
STORES = ("sqlite", "postgresql")
ADDRESSES = {"sqlite": "sqlite:///credit.db", "postgresql": "shop", "log": "log+sqlite:///credit.db"}


class QueueRoute(Route):
    """A route into the queue ``credit``, which a clerk and a pool of two subscribe to."""

    def __init__(self, directory: Path, kafka: str, log: str, store: str, resources: str, extra: str = "") -> None:
        super().__init__(directory, kafka, log, '{ queue = "credit" }')
        queue = f"""
[queues.credit]
store = "{store}"
subscribers = {{ clerk = {{}}, pool = {{ pool = ["ann", "bob"] }} }}
publishers = ["/source/0", "/source/1", "/held"]
{extra}
{resources}
"""
        self.path.write_text(self.path.read_text() + queue)
        self.more = ""

    def found(self, **chosen: object) -> list[MessageView]:
        """Return what the queue holds, without values."""
        config = load(self.path)
        follower = follow(config)
        store = open_queue(config, "credit", follower.now())
        found = store.find(Filter(**chosen), limit=100_000)  # type: ignore[arg-type]
        store.close()
        follower.close()
        return found

    def wish(self, kind: Kind, wanted: Wanted, name: str = "") -> None:
        """Say what is wanted, as `relay queue` does."""
        config = load(self.path)
        control = ControlTopic(
            settings.consumer(config.kafka, config.timing, f"t-{uuid4().hex}"),
            settings.producer(config.kafka, config.timing),
            config.control_topic,
            clock.monotonic,
            10.0,
        )
        control.put(*Wish(Subject(kind, "credit", name), wanted, "eve", "test", clock.wall_ms()).encode(), wait=True)


MakeRoute = Callable[..., QueueRoute]


@pytest.fixture
def make(tmp_path: Path, kafka: str, postgres: str, make_topic: Callable[..., str]) -> Iterator[MakeRoute]:
    made: list[QueueRoute] = []

    def route(store: str, extra: str = "") -> QueueRoute:
        resources = f'[resources.shop]\nurl = "{postgres}"\n' if store == "postgresql" else ""
        found = QueueRoute(tmp_path, kafka, make_topic(PARTITIONS), ADDRESSES[store], resources, extra)
        found.migrate()
        found.more = make_topic(PARTITIONS)
        made.append(found)
        return found

    yield route
    for one in made:
        one.stop()


def messages(count: int, first: int = 0, **more: str) -> list[tuple[int, list[tuple[str, bytes]], bytes]]:
    return [
        (n % PARTITIONS, ce(f"/source/{n % PARTITIONS}", f"m-{n}", **more), b"%d" % n) for n in range(first, first + count)
    ]


@pytest.mark.parametrize("store", STORES)
def test_every_message_is_put_once_in_its_publishers_order(make: MakeRoute, store: str) -> None:
    route = make(store)
    publish(route.kafka, route.log, [*messages(500), *messages(50)])

    assert route.finish() == 0, route.said()

    views = route.found()
    assert sorted(int(view.id[2:]) for view in views) == list(range(500))
    assert {view.state for view in views} == {PublisherState.REVEALED}
    for source in range(PARTITIONS):
        numbers = [int(view.id[2:]) for view in views if view.publisher == f"/source/{source}"]
        assert numbers == sorted(numbers)
    assert [one.subscriber for one in views[0].subscribers] == ["clerk", "ann", "bob"]


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("point", ["table.effect:2", "table.committed:2"])
def test_killed_inside_the_delivery_it_goes_on_without_loss_or_repeat(make: MakeRoute, store: str, point: str) -> None:
    route = make(store)
    publish(route.kafka, route.log, messages(400))

    route.kill_at(point)
    assert route.finish() == 0, route.said()

    assert sorted(int(view.id[2:]) for view in route.found()) == list(range(400))


def test_a_name_too_long_for_an_index_of_postgresql_is_a_dead_letter_and_the_rest_goes_on(make: MakeRoute) -> None:
    """PostgreSQL calls that an operational error, as it does what passes: tried again, it would be tried for ever."""
    route = make("postgresql")
    long = [
        (0, ce("/source/0", randbytes(2000).hex()), b"a long id"),
        (1, ce("/source/1", randbytes(30_000).hex()), b"a longer one"),
        (0, ce("/source/0", "é" * 1000), b"long, and it fits"),
    ]
    publish(route.kafka, route.log, [*messages(40), *long, *messages(40, 40)])

    assert route.finish() == 0, route.said()

    assert len(route.found()) == 81
    dead = [dict(one.headers()) for one in read_all(route.kafka, f"{route.name}.deadletter", PARTITIONS)]
    assert [one["__relay.errors.code"] for one in dead] == [b"refused"] * 2
    assert all(b"shorten" in one["__relay.errors.message"] for one in dead)


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_what_the_queue_refuses_is_a_dead_letter_and_the_rest_goes_on(make: MakeRoute, store: str) -> None:
    route = make(store, 'message_bytes = "1KiB"')
    bad = [
        (0, ce("/stranger", "s-1"), b"not on the list of publishers"),
        (0, ce("/source/0", "large-1"), b"x" * 2048),
        (1, ce("/source/1", "p-1", ce_relaypriority="12"), b"no such priority"),
    ]
    publish(route.kafka, route.log, [*messages(40), *bad, *messages(40, 40)])

    assert route.finish() == 0, route.said()

    assert sorted(int(view.id[2:]) for view in route.found()) == list(range(80))
    dead = [dict(one.headers()) for one in read_all(route.kafka, f"{route.name}.deadletter", PARTITIONS)]
    assert sorted(one["__relay.errors.code"] for one in dead) == [b"bad_header", b"refused", b"refused"]
    told = json.loads(CliRunner().invoke(app, ["deadletter", "list", str(route.path), "--json"]).output)
    assert told["causes"] == {"bad_header": 1, "refused": 2}
    digest = next(row["digest"] for row in told["dead_letters"] if row["message_id"] == "p-1")
    shown = CliRunner().invoke(app, ["deadletter", "show", str(route.path), digest, "--value"])
    assert "bm8gc3VjaCBwcmlvcml0eQ==" in shown.output
    assert CliRunner().invoke(app, ["deadletter", "show", str(route.path), "no such"]).exit_code == 1

    route.path.write_text(route.path.read_text().replace('"1KiB"', '"1MiB"'))
    words = ["deadletter", "redrive", str(route.path), "--code", "refused", "--wait", "0", "--json"]
    for _ in range(2):  # the second order is of the same dead letters, and delivers nothing
        assert json.loads(CliRunner().invoke(app, words).output)["waiting"] == 2
    assert route.finish() == 0, route.said()
    assert [view.id for view in route.found() if not view.id.startswith("m-")] == ["large-1"]
    told = json.loads(CliRunner().invoke(app, ["deadletter", "list", str(route.path), "--json"]).output)
    assert [(row["message_id"], row["replay_count"]) for row in told["dead_letters"]] == [("s-1", 1), ("p-1", 0)]


@pytest.mark.slow
def test_headers_choose_priority_delay_expiry_and_audience_for_each_message(make: MakeRoute) -> None:
    route = make("sqlite")
    asked = [
        (0, ce("/source/0", "m-1", ce_relaypriority="9", ce_relayaudience="bob"), b"1"),
        (0, ce("/source/0", "m-2", ce_relaydelay="60000"), b"2"),
        (0, ce("/source/0", "m-3", ce_expirytime="2001-01-01T00:00:00Z"), b"3"),
        (0, ce("/source/0", "m-4", ce_relaymode="balance"), b"4"),
    ]
    publish(route.kafka, route.log, asked)

    assert route.finish() == 0, route.said()

    first, second, third, fourth = route.found()
    assert (first.priority, [one.subscriber for one in first.subscribers]) == (9, ["bob"])
    assert second.state is PublisherState.PUT
    assert second.reveal_at is not None
    assert third.expires_at is not None
    assert third.expires_at <= clock.wall_ms()
    assert {one.group for one in fourth.subscribers} == {"all"}


@pytest.mark.slow
def test_a_drained_queue_makes_the_log_wait_also_after_a_restart_and_goes_on_within_a_second(make: MakeRoute) -> None:
    route = make("sqlite")
    route.wish(Kind.QUEUE, Wanted.DRAIN)
    publish(route.kafka, route.log, messages(10))
    route.start()
    wait_for(lambda: "running" in route.said(), what="the worker")

    assert route.found() == []

    before = clock.monotonic()
    route.wish(Kind.QUEUE, Wanted.RUN)
    wait_for(lambda: len(route.found()) == 10, what="the messages")
    assert clock.monotonic() - before < 5.0, "a second on an idle machine; the reading of the test itself takes one more"


@pytest.mark.slow
def test_a_held_publishers_messages_are_put_and_revealed_before_its_next_ones(make: MakeRoute) -> None:
    route = make("sqlite")
    route.wish(Kind.PUBLISHER, Wanted.PAUSE, "/held")
    publish(route.kafka, route.log, [(0, ce("/held", f"h-{n}"), b"") for n in range(5)] + messages(4))
    route.start()
    wait_for(lambda: len(route.found()) == 9, what="the messages")

    assert [view.id for view in route.found(state=PublisherState.PUT)] == [f"h-{n}" for n in range(5)]
    assert len(route.found(state=PublisherState.REVEALED)) == 4

    route.wish(Kind.PUBLISHER, Wanted.RUN, "/held")
    publish(route.kafka, route.log, [(0, ce("/held", "h-5"), b"")])
    wait_for(lambda: len(route.found(state=PublisherState.REVEALED)) == 10, what="the held messages")

    config = load(route.path)
    store = open_queue(config, "credit", follow(config).now())
    store.enter(Holder(b"h", "clerk", 0, None))
    taken = [one.id for one in store.take("clerk", b"h", 20, clock.wall_ms()) if one.publisher == "/held"]
    store.close()
    assert taken == [f"h-{n}" for n in range(6)]


@pytest.mark.slow
def test_a_queue_whose_values_stay_in_the_log_gives_each_message_with_its_value(make: MakeRoute) -> None:
    route = make("log")
    publish(route.kafka, route.log, messages(50))

    assert route.finish() == 0, route.said()

    config = load(route.path)
    follower = follow(config)
    store = open_queue(config, "credit", follower.now())
    store.enter(Holder(b"h", "clerk", 0, None))
    taken = store.take("clerk", b"h", 100, clock.wall_ms())
    store.close()
    follower.close()
    assert sorted((one.id, one.value) for one in taken) == sorted((f"m-{n}", b"%d" % n) for n in range(50))


@pytest.mark.slow
def test_a_store_that_was_made_anew_is_refused(make: MakeRoute, tmp_path: Path) -> None:
    route = make("sqlite")
    for path in tmp_path.glob("credit.db*"):
        path.unlink()
    config = load(route.path)
    create_tables(config, config.queues["credit"], config.queues["credit"].store)

    assert route.finish() == 10, route.said()
    assert "was made elsewhere" in route.said()


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_verify_finds_each_message_once_and_what_was_lost_or_doubled(make: MakeRoute, store: str) -> None:
    route = make(store, "retain = { count = 1 }" if store == "postgresql" else "")
    publish(route.kafka, route.log, messages(30))
    assert route.finish() == 0, route.said()
    assert wrong(route) == {}
    told = CliRunner().invoke(app, ["status", str(route.path), "--json"])
    assert json.loads(told.output)["routes"]["main"]["lag"] == 0, told.output

    config = load(route.path)
    follower = follow(config)
    opened = open_queue(config, "credit", follower.now())
    opened.withdraw([view.handle for view in route.found()[:3]], 1)
    if store == "postgresql":
        assert opened.trim([view.handle for view in opened.journalled(clock.wall_ms(), 10)]) == 2
        assert wrong(route) == {}, "what has left the queue is known by inbox and monitor"
    else:
        assert opened.trim([opened.find(Filter(), limit=1)[0].handle]) == 1
        assert wrong(route) == {"lost": 1}, "this queue lets nothing go"
    opened.withdraw([view.handle for view in route.found(publisher="/source/1")[-1:]], 1)
    opened.put([NewMessage("/source/1", "m-29", b"")], 1)
    opened.put([NewMessage("/source/0", "somebody else's", b"")], 1)
    opened.close()
    follower.close()
    assert wrong(route).get("duplicates") == 1


def test_verify_finds_a_message_of_an_aborted_capture_in_the_queue(make: MakeRoute) -> None:
    route = make("sqlite")
    elsewhere, capture = ResourceName("elsewhere", "1"), bytes(16)
    headers = ce("/held", "taken back", ce_relaycapture=capture.hex(), ce_relayresource=elsewhere.encode().decode())
    publish(route.kafka, route.log, [(0, headers, b"0")])
    marker = Producer({"bootstrap.servers": route.kafka})
    marker.produce(
        route.log, encode_marker(capture, None, None, []), capture, 0, headers=marker_headers(capture, b"/held", elsewhere)
    )
    assert marker.flush(30) == 0
    assert route.finish() == 0, route.said()
    assert wrong(route) == {}

    config = load(route.path)
    follower = follow(config)
    opened = open_queue(config, "credit", follower.now())
    opened.put([NewMessage("/held", "taken back", b"0")], 1)
    opened.close()
    follower.close()

    assert wrong(route) == {"phantoms": 1}


@pytest.fixture
def delivered(make: MakeRoute) -> QueueRoute:
    """A queue with ten messages of its log, each there once."""
    route = make("sqlite")
    publish(route.kafka, route.log, messages(10))
    assert route.finish() == 0, route.said()
    return route


def put(route: QueueRoute, publisher: str, identifier: str, *parents: Parent) -> None:
    """Put a message as no route does, or as a handler does; one of that name that is there is taken away first."""
    config = load(route.path)
    follower = follow(config)
    opened = open_queue(config, "credit", follower.now())
    there = [view.handle for view in opened.find(Filter(), limit=100) if (view.publisher, view.id) == (publisher, identifier)]
    opened.withdraw(there, 1)
    assert opened.trim(there) == len(there)
    opened.put([NewMessage(publisher, identifier, b"", parents=parents, attempt="a" if parents else None)], 1)
    opened.close()
    follower.close()


def test_verify_finds_a_message_in_the_queue_that_no_route_has_put(delivered: QueueRoute, kafka_admin: AdminClient) -> None:
    put(delivered, "/source/0", "nobody's")
    put(delivered, "/source/0", "a child of another queue's", Parent("other", 1, "clerk"))

    assert wrong(delivered) == {"phantoms": 1}

    for partition in range(PARTITIONS):
        delete_below(kafka_admin, delivered.log, 2, partition=partition)
    assert wrong(delivered) == {"phantoms": 1}, "what has left the log is known by the monitor, which is whole"
    delete_below(kafka_admin, load(delivered.path).monitor_topic("main"), 1)
    (report,) = verify(load(delivered.path), ())
    assert report.ok, "it may be older than log and monitor"
    assert any("messages in queue credit are of nothing" in note for note in report.findings.notes)


def test_verify_takes_no_child_for_the_message_whose_name_it_has(delivered: QueueRoute) -> None:
    put(delivered, "/source/0", "m-4", Parent("other", 1, "clerk"))

    assert wrong(delivered) == {"lost": 1}


def test_verify_leaves_a_message_in_the_queue_to_the_route_that_has_put_it(delivered: QueueRoute) -> None:
    config = delivered.path.read_text()
    other = config.replace("[routes.main]", "[routes.other]").replace(f'from = ["{delivered.log}"]', f'from = ["{delivered.more}"]')
    delivered.path.write_text(config + other[other.index("[routes.other]") : other.index("[queues.credit]")])
    delivered.migrate()
    publish(delivered.kafka, delivered.more, messages(10, 100))
    command = [sys.executable, "-m", "relay.run.process", str(delivered.path), "--route", "other", "--worker", "0", "--until-idle", "2"]
    subprocess.run(command, check=True, timeout=60, capture_output=True)

    reports = verify(load(delivered.path), ())

    assert [report.ok for report in reports] == [True, True]
    assert len(delivered.found()) == 20


def wrong(route: QueueRoute) -> dict[str, int]:
    """Return what the auditor counts that must be zero."""
    (report,) = verify(load(route.path), ())
    names = (*MUST_BE_ZERO, "unseen")
    return {name: getattr(report.findings, name) for name in names if getattr(report.findings, name)}


def instead(route: QueueRoute) -> None:
    """Have another route put into the queue instead, from another log; what the first one has put stays there."""
    config = route.path.read_text()
    route.path.write_text(config.replace("[routes.main]", "[routes.next]").replace(route.log, route.more))
    route.migrate()


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_verify_takes_nothing_for_a_phantom_that_a_former_route_has_put(
    make: MakeRoute, kafka_admin: AdminClient, *, is_forgotten: bool
) -> None:
    route = make("sqlite")
    publish(route.kafka, route.log, [*messages(3), (0, [("ce_source", b"/source/0")], b"without an id")])
    assert route.finish() == 0, route.said()
    former = load(route.path).monitor_topic("main")
    instead(route)
    if is_forgotten:
        kafka_admin.delete_topics([former])[former].result(30)
        wait_for(lambda: former not in kafka_admin.list_topics(timeout=10).topics)

    assert wrong(route) == {}


def test_verify_takes_nothing_for_a_phantom_that_a_route_has_put_before_it_was_led_elsewhere(make: MakeRoute) -> None:
    route = make("sqlite")
    publish(route.kafka, route.log, messages(3))
    assert route.finish() == 0, route.said()
    config = route.path.read_text()
    routes = config[config.index("[routes.main]") : config.index("[queues.credit]")]
    queue = config[config.index("[queues.credit]") :]
    route.path.write_text(
        config.replace("[routes.main]", "[routes.next]").replace(route.log, route.more)
        + routes.replace('"credit"', '"debit"') + queue.replace("credit", "debit")
    )  # fmt: skip
    route.migrate()

    (report,) = verify(load(route.path), ["next"])

    assert report.findings.phantoms == 0

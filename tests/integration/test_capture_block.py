"""A message is shown if and only if its block committed: PostgreSQL and SQLite, every way a block can end."""

# ruff: noqa: PT012 - a block that raises on leaving is the subject

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from capture_log import messages, read_log, shown, until
from confluent_kafka.admin import AdminClient, NewTopic

from relay import Capture
from relay.capture import marking
from relay.kafka.settings import DefaultTiming
from relay.message.errors import CaptureError, CaptureInDoubt, ConfigError
from relay.resources import open_resource
from relay.resources.port import Resource
from tests.cluster_changes import make_topics
from tests.unit.interrupting import Interrupting


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        request.getfixturevalue("postgres") if request.param == "postgresql" else f"sqlite:///{tmp_path}/s.db"
    )


@pytest.fixture
def resource(url: str) -> Resource:
    found = open_resource("shop", url)
    found.create_tables()
    session = found.session()
    session.execute("create table orders (id integer primary key, what text)")
    session.close()
    return found


@pytest.fixture
def capture(kafka: str, resource: Resource) -> Iterator[Capture]:
    with Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/checkout") as opened:
        yield opened


@pytest.fixture
def topic(make_topic) -> str:
    return make_topic(partitions=2)


def orders(resource: Resource) -> list[int]:
    session = resource.session()
    found = [row[0] for row in session.execute("select id from orders order by id").fetchall()]
    session.close()
    return found


def test_a_committed_block_is_in_both(capture: Capture, resource: Resource, kafka: str, topic: str) -> None:
    with capture.transaction() as tx:
        tx.execute("insert into orders values (42, 'tea')")
        identifier = tx.publish(
            topic,
            key="42",
            data={"id": 42},
            type="order.placed",
            subject="42",
            headers={"traceparent": "00-1"},
        )
    until(lambda: shown(kafka, topic), "the marker")

    (found,) = shown(kafka, topic)
    assert orders(resource) == [42]
    assert (found.key, json.loads(found.value or b"")) == (b"42", {"id": 42})
    headers = found.headers
    assert headers.pop("ce_time").endswith(b"Z")
    assert headers == {
        "ce_specversion": b"1.0",
        "ce_id": identifier.encode(),
        "ce_source": b"/checkout",
        "ce_type": b"order.placed",
        "ce_subject": b"42",
        "content-type": b"application/json",
        "traceparent": b"00-1",
        "ce_sequence": b"1",
        "ce_relaycapture": tx.id.hex().encode(),
        "ce_relayresource": resource.identity().encode(),
        "ce_relayincarnation": capture._publisher.incarnation.encode(),
    }


def test_an_exception_in_the_block_leaves_nothing(
    capture: Capture, resource: Resource, kafka: str, topic: str
) -> None:
    with pytest.raises(ZeroDivisionError), capture.transaction() as tx:
        tx.execute("insert into orders values (1, 'tea')")
        tx.publish(topic, {"id": 1})
        _ = 1 / 0
    assert orders(resource) == []
    assert read_log(kafka, topic) == []


def test_a_failed_statement_ends_the_block_even_if_its_error_is_swallowed(
    capture: Capture, resource: Resource, kafka: str, topic: str
) -> None:
    with pytest.raises(CaptureError, match="a statement of the block failed"), capture.transaction() as tx:
        tx.execute("insert into orders values (1, 'tea')")
        tx.publish(topic, {"id": 1})
        with pytest.raises(Exception, match=r"(?i)unique"):
            tx.execute("insert into orders values (1, 'tea')")
        with pytest.raises(CaptureError, match="failed"):
            tx.publish(topic, {"id": 2})
    assert orders(resource) == []
    assert read_log(kafka, topic) == []


def test_a_savepoint_drops_its_own_messages_only(
    capture: Capture, resource: Resource, kafka: str, topic: str
) -> None:
    with capture.transaction() as tx:
        tx.execute("insert into orders values (1, 'tea')")
        tx.publish(topic, 1, partition=0)
        with pytest.raises(Exception, match=r"(?i)unique"), tx.savepoint():
            tx.execute("insert into orders values (2, 'tea')")
            tx.publish(topic, 2, partition=0)
            tx.execute("insert into orders values (1, 'again')")
        with pytest.raises(KeyError), tx.savepoint():
            tx.publish(topic, 3, partition=0)
            with tx.savepoint():
                tx.publish(topic, 4, partition=0)
            raise KeyError
        with tx.savepoint():
            tx.execute("insert into orders values (5, 'tea')")
            tx.publish(topic, 5, partition=0)
    until(lambda: shown(kafka, topic), "the marker")
    assert orders(resource) == [1, 5]
    assert [read.value for read in messages(kafka, topic)] == [b"1", b"5"]
    assert [read.headers["ce_sequence"] for read in messages(kafka, topic)] == [b"1", b"2"]


def test_a_commit_that_the_database_refuses_publishes_nothing(
    capture: Capture, resource: Resource, kafka: str, topic: str
) -> None:
    session = resource.session()
    session.execute("create table lines (id integer references orders (id) deferrable initially deferred)")
    session.close()
    with pytest.raises(CaptureError, match="refused"), capture.transaction() as tx:
        tx.execute("insert into lines values (7)")
        tx.publish(topic, 7)
    until(lambda: [r for r in read_log(kafka, topic) if r.marker], "the aborted marker")
    assert shown(kafka, topic) == []
    (marker,) = [read.marker for read in read_log(kafka, topic) if read.marker]
    assert not marker.committed


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_commit_or_rollback_past_the_block_is_in_doubt(
    capture: Capture, resource: Resource, kafka: str, topic: str, ending: str
) -> None:
    with pytest.raises(CaptureInDoubt, match="ended the database transaction"), capture.transaction() as tx:
        tx.execute("insert into orders values (1, 'tea')")
        tx.publish(topic, {"id": 1})
        tx.execute("select 1").connection.execute(ending)
    assert read_log(kafka, topic) == []
    with capture.transaction() as tx:
        tx.publish(topic, {"id": 2})
    until(lambda: shown(kafka, topic), "the next capture")


@pytest.mark.parametrize("statement", ["savepoint item", "rollback", "commit", "begin"])
def test_a_statement_that_controls_transactions_is_not_run(
    capture: Capture, resource: Resource, kafka: str, topic: str, statement: str
) -> None:
    """What it undid would be undone, and the messages about it shown."""
    with pytest.raises(CaptureError, match=r"in tx\.execute"), capture.transaction() as tx:
        tx.execute("insert into orders values (1, 'tea')")
        tx.publish(topic, {"id": 1})
        tx.execute(statement)
    assert (orders(resource), read_log(kafka, topic)) == ([], [])


def test_blocks_do_not_nest_and_are_used_once(capture: Capture, topic: str) -> None:
    with capture.transaction() as tx:
        with pytest.raises(CaptureError, match="nested"), capture.transaction():
            pass
        tx.publish(topic, 1)
    with pytest.raises(CaptureError, match="over"):
        tx.publish(topic, 2)
    with pytest.raises(CaptureError, match="over"), tx:
        pass
    with capture.transaction():
        pass


def test_a_block_that_another_thread_leaves_does_not_shut_out_the_one_that_entered(
    capture: Capture, kafka: str, topic: str
) -> None:
    tx = capture.transaction()
    tx.__enter__()
    tx.publish(topic, 1)
    other = threading.Thread(target=tx.__exit__, args=(None, None, None))
    other.start()
    other.join()

    with capture.transaction() as tx:
        tx.publish(topic, 2)

    until(lambda: len(shown(kafka, topic)) == 2, "both messages")


def test_a_thread_that_entered_a_block_for_another_one_may_enter_the_next(
    kafka: str, postgres: str, topic: str
) -> None:
    """As a framework does that runs each step of a request in whatever thread of its pool is free."""
    resource = open_resource("shop", postgres)
    resource.create_tables()

    async def request(capture: Capture, number: int, both: asyncio.Barrier) -> None:
        tx = capture.transaction()
        await asyncio.to_thread(tx.__enter__)
        await both.wait()
        await asyncio.to_thread(tx.publish, topic, number)
        await both.wait()
        await asyncio.to_thread(tx.__exit__, None, None, None)

    async def serve(capture: Capture) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        both = asyncio.Barrier(2)
        await asyncio.gather(request(capture, 1, both), request(capture, 2, both))

    with Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/checkout") as capture:
        asyncio.run(serve(capture))
        until(lambda: len(shown(kafka, topic)) == 2, "both messages")


def test_what_is_above_a_bound_is_refused_before_anything_is_appended(
    kafka: str, resource: Resource, topic: str
) -> None:
    with Capture(
        kafka={"bootstrap.servers": kafka},
        resource=resource,
        source="/s",
        max_messages=3,
        max_bytes=900_000,
    ) as capture:
        with pytest.raises(CaptureError, match="max_messages = 3"), capture.transaction() as tx:
            for number in range(4):
                tx.publish(topic, number)
        with pytest.raises(CaptureError, match="max_bytes = 900000"), capture.transaction() as tx:
            for _ in range(2):
                tx.publish(topic, b"x" * 500_000)
        with pytest.raises(CaptureError, match="above the limit"), capture.transaction() as tx:
            tx.publish(topic, b"x" * 1_100_000)
        with pytest.raises(CaptureError, match="partition = 9"), capture.transaction() as tx:
            tx.publish(topic, 1, partition=9)
        with pytest.raises(ConfigError, match="does not exist"), capture.transaction() as tx:
            tx.publish("no-such-topic", 1)
    assert read_log(kafka, topic) == []


@pytest.mark.parametrize("name", ["long-enough", "größer-als-gezählt" * 9])
def test_the_largest_message_that_is_not_refused_is_one_that_the_log_takes(capture: Capture, make_topic, kafka: str, name: str) -> None:
    """However many headers it has: a block that the log refuses at its end is told to run again, and would for ever."""
    topic = make_topic(1, {"max.message.bytes": "100000"})
    headers = [(f"{name}-{number}", b"v" * 100) for number in range(245)]
    with pytest.raises(CaptureError, match="above the limit") as refused, capture.transaction() as tx:
        tx.publish(topic, bytes(100_000), headers=headers)
    said = re.search(r"a message of about (\d+) bytes", str(refused.value))
    assert said is not None
    largest = 200_000 - int(said[1])
    with pytest.raises(CaptureError, match="above the limit"), capture.transaction() as tx:
        tx.publish(topic, bytes(largest + 1), headers=headers)
    with capture.transaction() as tx:
        tx.publish(topic, bytes(largest), headers=headers)
    until(lambda: [len(one.value or b"") for one in shown(kafka, topic)] == [largest], "the message")


def test_a_compacted_topic_is_refused(capture: Capture, make_topic) -> None:
    compacted = make_topic(config={"cleanup.policy": "compact"})
    with pytest.raises(ConfigError, match=r"cleanup\.policy"), capture.transaction() as tx:
        tx.publish(compacted, 1, key="a")


def test_a_capture_larger_than_the_producers_queue_still_works(
    kafka: str, resource: Resource, topic: str
) -> None:
    settings = {"bootstrap.servers": kafka, "queue.buffering.max.messages": "1000"}
    with Capture(kafka=settings, resource=resource, source="/s") as capture:
        with capture.transaction() as tx:
            for number in range(5000):
                tx.publish(topic, number, partition=0)
        until(lambda: shown(kafka, topic), "the marker")
    assert [int(read.value or b"") for read in shown(kafka, topic)] == list(range(5000))


def took(capture: Capture, topic: str) -> bool:
    """Did the log take a message in time? A busy broker may not."""
    try:
        with capture.transaction() as tx:
            tx.publish(topic, 1)
    except CaptureError:
        return False
    return True


def test_a_log_that_takes_nothing_rolls_the_block_back(
    kafka: str, resource: Resource, kafka_admin: AdminClient, make_topic
) -> None:
    timing = DefaultTiming(append_timeout=1.0)
    kept = make_topic(partitions=1)
    topic = f"gone-{kept}"
    make_topics(kafka_admin, NewTopic(topic, 1))
    with Capture(
        kafka={"bootstrap.servers": kafka}, resource=resource, source="/s", timing=timing
    ) as capture:
        until(lambda: took(capture, topic), "the log's answer within the second that it has")
        kafka_admin.delete_topics([topic])[topic].result(10)
        with pytest.raises(CaptureError, match="the log did not take"), capture.transaction() as tx:
            tx.execute("insert into orders values (1, 'tea')")
            tx.publish(kept, 1)
            tx.publish(topic, 2)
        assert orders(resource) == []
        until(lambda: [r for r in read_log(kafka, kept) if r.marker], "the aborted marker")
        assert shown(kafka, kept) == []
        with pytest.raises(ConfigError, match="does not exist"), capture.transaction() as tx:
            tx.publish(topic, 3)


def test_eight_threads_append_in_the_order_of_their_conflicting_commits(
    capture: Capture, resource: Resource, kafka: str, topic: str
) -> None:
    session = resource.session()
    session.execute("insert into orders values (1, '0')")
    session.close()

    def work() -> None:
        for _ in range(10):
            with capture.transaction() as tx:
                tx.execute("update orders set what = cast(cast(what as integer) + 1 as text) where id = 1")
                (count,) = tx.execute("select what from orders where id = 1").fetchone()
                tx.publish(topic, int(count), key="1")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: len(shown(kafka, topic)) == 80, "every marker")
    found = shown(kafka, topic)
    assert [int(read.value or b"") for read in found] == list(range(1, 81))
    assert [int(read.headers["ce_sequence"]) for read in found] == list(range(1, 81))


def test_opening_by_a_configuration_file(
    kafka: str, resource: Resource, url: str, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(
        f'[relay]\nname = "shop"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "{kafka}"\n'
        f'[resources.shop]\nurl = "{url}"\n[routes.r]\nfrom = ["{topic}"]\nto = {{ topic = "out" }}\n'
    )
    with Capture.open(path, resource="shop", source="/checkout") as capture, capture.transaction() as tx:
        tx.publish(topic, 1)
        for own in ("shop.decisions", "shop.r.monitor"):
            with pytest.raises(ConfigError, match="of the relay's own is not a log"), tx.savepoint():
                tx.publish(own, 1)
    assert len(shown(kafka, topic)) == 1
    with pytest.raises(ConfigError, match="stock"):
        Capture.open(path, resource="stock", source="/checkout")


def test_a_marker_lies_before_the_messages_that_it_travelled_with(
    kafka: str, resource: Resource, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marking, "GATHER_S", 0.2)
    with Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/checkout") as capture:
        ids = []
        for number in range(3):
            with capture.transaction() as tx:
                tx.publish(topic, number, partition=0)
            ids.append(tx.id)
    expected = [(ids[0], False), (ids[0], True), (ids[1], False), (ids[1], True), (ids[2], False), (ids[2], True)]
    assert [(read.capture, read.marker is not None) for read in read_log(kafka, topic)] == expected


def test_closing_writes_the_markers_and_notes_them(
    kafka: str, resource: Resource, topic: str, url: str
) -> None:
    with Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/s") as capture:
        for number in range(20):
            with capture.transaction() as tx:
                tx.publish(topic, number)
    assert len(shown(kafka, topic)) == 20
    decisions = resource.decisions()
    assert decisions.unmarked(0.0, 10) == []
    decisions.close()
    with pytest.raises(CaptureError, match="closed"), capture.transaction():
        pass


def test_a_connection_that_died_while_idle_is_replaced(kafka: str, postgres: str, topic: str) -> None:
    resource = open_resource("shop", postgres)
    resource.create_tables()
    with Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/s") as capture:
        with capture.transaction() as tx:
            tx.publish(topic, 1)
        with psycopg.connect(postgres, autocommit=True) as admin:
            admin.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        with capture.transaction() as tx:
            tx.publish(topic, 2)
    assert len(shown(kafka, topic)) == 2


def test_a_fork_is_refused_at_once_and_does_not_touch_what_its_parent_uses(
    capture: Capture, kafka: str, topic: str
) -> None:
    with capture.transaction() as tx:
        tx.publish(topic, 1)
        session = tx._session
    fork = os.fork()
    if fork == 0:
        status = 1
        try:
            with capture.transaction():
                pass
        except CaptureError as refused:
            status = 0 if "after the fork" in str(refused) else 2
        finally:
            capture.close()
            for _, session in capture._publisher._idle:
                session.close()  # as whatever else there may let go of it
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    with capture.transaction() as tx:
        assert tx._session is session, "the connection is the one from before the fork"
        tx.publish(topic, 2)
    assert len(shown(kafka, topic)) == 2


def test_interrupted_at_any_moment_it_holds_up_no_later_one(capture: Capture, resource: Resource, topic: str) -> None:
    numbers = iter(range(1_000_000))
    done = []

    def block() -> None:
        number = next(numbers)
        with capture.transaction() as tx:
            tx.execute(f"insert into orders values ({number}, 'tea')")
            tx.publish(topic, number)
        done.append(number)

    at = 1
    while Interrupting(at).run(block):
        block()
        at += 1

    assert len(done) >= at > 60
    assert set(done) <= set(orders(resource))

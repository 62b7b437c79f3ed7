"""A publisher that dies at any step leaves a log of which everyone says the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from capture_log import messages, shown, until

from relay import Capture
from relay.capture.resolver import Resolver, State
from relay.resources import open_resource
from relay.resources.port import Resource
from relay.world.crash import EXIT_STATUS, VARIABLE

PUBLISHER = """
import sys, time
from relay import Capture
from relay.resources import open_resource
kafka, url, topic = sys.argv[1:]
with Capture(kafka={"bootstrap.servers": kafka}, resource=open_resource("shop", url), source="/s") as capture:
    with capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
        tx.publish(topic, 1)
print("survived")
"""


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        request.getfixturevalue("postgres") if request.param == "postgresql" else f"sqlite:///{tmp_path}/s.db"
    )


@pytest.fixture
def resource(url: str) -> Resource:
    found = open_resource("shop", url, 1.0)
    found.create_tables()
    session = found.session()
    session.execute("create table orders (id integer primary key)")
    session.close()
    return found


@pytest.fixture
def topic(make_topic) -> str:
    return make_topic(partitions=2)


def die_at(step: str, kafka: str, url: str, topic: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PUBLISHER, kafka, url, topic],
        env={**os.environ, VARIABLE: step},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (EXIT_STATUS, ""), done.stderr


def count_orders(resource: Resource) -> int:
    session = resource.session()
    found = session.execute("select count(*) from orders").fetchone()[0]
    session.close()
    return found


def resolve_only(resource: Resource, kafka: str, topic: str) -> State:
    (read,) = messages(kafka, topic)
    resolver = Resolver({"shop": resource})
    asked = [(read.capture, resource.identity())]
    found: State = until(
        lambda: (
            state if (state := resolver.resolve(asked)[read.capture].state) is not State.UNDECIDED else None
        ),
        "the decision",
    )
    resolver.close()
    return found


def publish_again(kafka: str, resource: Resource, topic: str) -> None:
    """Start the publisher again: its start writes what the crash left out."""
    with Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/s") as capture:
        with capture.transaction() as tx:
            tx.publish(topic, 2)
        until(lambda: read_values(kafka, topic)[-1:] == [b"2"], "the second message")


def read_values(kafka: str, topic: str) -> list[bytes | None]:
    return sorted((read.value for read in shown(kafka, topic)), key=lambda value: value or b"")


def test_after_begin_nothing_exists(kafka: str, url: str, resource: Resource, topic: str) -> None:
    die_at("capture.begun", kafka, url, topic)
    assert messages(kafka, topic) == []
    assert count_orders(resource) == 0


def test_after_append_the_message_is_there_and_resolved_to_aborted(
    kafka: str, url: str, resource: Resource, topic: str
) -> None:
    die_at("capture.appended", kafka, url, topic)
    assert resolve_only(resource, kafka, topic) is State.ABORTED
    assert count_orders(resource) == 0
    publish_again(kafka, resource, topic)
    assert read_values(kafka, topic) == [b"2"]


def test_after_commit_without_marker_it_is_committed_for_all_and_marked_at_the_next_start(
    kafka: str, url: str, resource: Resource, topic: str
) -> None:
    die_at("capture.decided", kafka, url, topic)
    assert shown(kafka, topic) == []
    assert count_orders(resource) == 1
    assert resolve_only(resource, kafka, topic) is State.COMMITTED
    publish_again(kafka, resource, topic)
    until(lambda: read_values(kafka, topic) == [b"1", b"2"], "the marker written at the start")


def test_after_marking_everything_is_there(kafka: str, url: str, resource: Resource, topic: str) -> None:
    die_at("capture.marked", kafka, url, topic)
    assert read_values(kafka, topic) == [b"1"]
    assert count_orders(resource) == 1
    decisions = resource.decisions()
    assert decisions.unmarked(0.0, 10) == []
    decisions.close()

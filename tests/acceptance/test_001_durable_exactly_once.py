"""US 8,200,836: what its capture side claims, one test per claim."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from capture_log import read_log, shown, until

from relay import Capture
from relay.resources import open_resource


class CustomerLeft(Exception):
    """The application's own reason to roll back."""


@pytest.fixture
def capture(kafka: str, postgres: str) -> Iterator[Capture]:
    resource = open_resource("shop", postgres)
    resource.create_tables()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create table orders (id integer primary key)")
    with Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/checkout") as opened:
        yield opened


def orders(url: str) -> list[int]:
    with psycopg.connect(url, autocommit=True) as connection:
        return [row[0] for row in connection.execute("select id from orders order by id").fetchall()]


def test_capture_names_its_transaction_to_the_log_before_it_is_decided(
    make_topic, capture: Capture, kafka: str, postgres: str
) -> None:
    """ "Synchronously sending a capture transaction ID to the message log"; it stores the message durably."""
    topic = make_topic()
    with capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
        tx.publish(topic, {"id": 1}, key="1")
        # What leaving the block does first: append, and wait for the log's own acknowledgement.
        capture._publisher.append(tx._messages, tx._placed)
        tx._messages.clear()
        (stored,) = read_log(kafka, topic)
        assert stored.capture == tx.id
        assert orders(postgres) == []
    assert orders(postgres) == [1]
    until(lambda: shown(kafka, topic), "the outcome")


def test_capture_coordinates_the_database_and_the_log_in_one_transaction(
    make_topic, capture: Capture, kafka: str, postgres: str
) -> None:
    """ "A transaction for coordinating the updates in the resource manager and capture of the message"."""
    topic = make_topic()
    for number in range(20):
        try:
            with capture.transaction() as tx:
                tx.execute("insert into orders values (%s)", (number,))
                tx.publish(topic, number, key=number)
                if number % 3 == 0:
                    raise CustomerLeft
        except CustomerLeft:
            continue
    kept = [number for number in range(20) if number % 3]
    until(lambda: len(shown(kafka, topic)) >= len(kept), "the outcomes")
    assert sorted(int(read.value or b"") for read in shown(kafka, topic)) == kept
    assert orders(postgres) == kept


@pytest.mark.parametrize("commits", [True, False])
def test_capture_indicates_commit_or_rollback_to_the_log_afterwards(
    make_topic, capture: Capture, kafka: str, commits: bool
) -> None:
    """ "Receiving a subsequent indication ... as to whether to commit or rollback the storing of the message"."""
    topic = make_topic()
    try:
        with capture.transaction() as tx:
            tx.publish(topic, 1)
            capture._publisher.append(tx._messages, tx._placed)
            tx._messages.clear()
            if not commits:
                raise CustomerLeft
    except CustomerLeft:
        pass
    marker = until(
        lambda: next((read.marker for read in read_log(kafka, topic) if read.marker), None), "the indication"
    )
    assert (marker.capture, marker.committed, marker.proved) == (tx.id, commits, commits)

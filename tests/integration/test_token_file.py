"""OAUTHBEARER on a real broker: captures and workers go on for longer than any token lives that somebody renews in a file."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relay import Capture
from relay.message.errors import Unreachable
from relay.resources import open_resource
from tests.integration.secured_site import DESCRIBE, TOPIC, WRITE, Secured, rights, secured_broker, token
from tests.integration.test_rights import worker_rights
from tests.own_services import or_skipped
from tests.routes import Route, ce, publish, read_all, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]

LIFE_S = 12.0
"""A client reads again after four fifths of it, and no sooner than after eight seconds."""


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    with or_skipped(), secured_broker() as broker:
        yield broker


@contextmanager
def renewed(tokens: Path, user: str) -> Iterator[None]:
    """Write a new token every second, each in the place of the one before, as platforms do."""
    done = threading.Event()

    def write() -> None:
        tokens.with_suffix(".new").write_text(token(user, LIFE_S) + "\n")
        tokens.with_suffix(".new").replace(tokens)

    def renew() -> None:
        while not done.wait(1.0):
            write()

    write()
    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_captures_outlive_their_first_token(secured: Secured, tmp_path: Path) -> None:
    secured.topics("orders")
    secured.grant("ann", *rights(TOPIC, "orders", WRITE, DESCRIBE))
    resource = open_resource("shop", f"sqlite:///{tmp_path}/shop.db")
    resource.create_tables()
    tokens = tmp_path / "token"

    with renewed(tokens, "ann"):
        capture = Capture(kafka=secured.bearer(tokens), resource=resource, source="/ann")
        published, until = 0, time.monotonic() + 1.7 * LIFE_S
        while time.monotonic() < until:
            with capture.transaction() as tx:
                tx.publish("orders", b"x")
            published += 1
            time.sleep(0.2)
    wait_for(lambda: capture.backlog == 0, what="all markers")
    assert len(read_all(secured.kafka, "orders", 1)) >= published
    capture.close()


def test_a_route_delivers_by_a_token_and_waits_for_one(secured: Secured, tmp_path: Path) -> None:
    route = Route(tmp_path, secured.kafka, "log", '{ topic = "out" }')
    secured.topics("log", "out")
    route.migrate()
    tokens = tmp_path / "token"
    lines = "".join(f'"{key}" = "{value}"\n' for key, value in secured.bearer(tokens).items())
    route.path.write_text(re.sub(r'"bootstrap.servers" = .*\n', lambda _: lines, route.path.read_text()))
    user = f"worker-{route.name}"
    secured.grant(user, *worker_rights(route.name, "log", "out"))
    publish(secured.kafka, "log", [(0, ce("/s", f"m-{n}"), b"v") for n in range(10)])

    with renewed(tokens, user):
        assert route.finish() == 0, route.said()
    assert len(read_all(secured.kafka, "out", 1)) == 10
    tokens.write_text("two words")
    assert route.finish() == Unreachable.exit_code
    assert "the file holds no bearer token" in route.said()
    assert "two words" not in route.said()

"""Inquiries on a real broker: a relay without access to the publisher's database learns the outcome from its process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relay import Capture
from relay.capture.marking import Ended, Marking
from relay.capture.outcomes import decode_marker
from relay.cli.main import app
from relay.config.loading import load
from relay.kafka.inquiries import InquiryReader
from relay.resources import open_resource
from relay.resources.port import Resource
from tests.routes import Route, TopicRoute, ids, read_all, wait_for


class Undone(Exception):
    """The block fails after its messages are in the log."""


@pytest.fixture
def shop(tmp_path: Path) -> Resource:
    resource = open_resource("shop", f"sqlite:///{tmp_path}/shop.db", 0.2)
    resource.create_tables()
    return resource


def open_capture(route: TopicRoute, resource: Resource, source: str) -> Capture:
    return Capture(
        kafka={"bootstrap.servers": route.kafka}, resource=resource, source=source,
        inquiries=load(route.path).inquiries_topic,
    )  # fmt: skip


def undo(capture: Capture, log: str) -> None:
    with capture.transaction() as tx:
        tx.publish(log, "no")
        tx._publisher.append(tx._messages, tx._placed)
        raise Undone


def leave_without_markers(route: TopicRoute, shop: Resource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture two messages, commit one and roll one back; the process ends before it writes any marker."""
    given_up: list[Ended] = []
    with monkeypatch.context() as patch:
        patch.setattr(Marking, "submit", lambda _, ended: given_up.append(ended))
        with open_capture(route, shop, "/a") as capture, capture.transaction() as tx:
            tx.publish(route.log, "yes")
        with open_capture(route, shop, "/b") as capture, pytest.raises(Undone):
            undo(capture, route.log)
    decisions = shop.decisions()
    # As if acknowledged: else the next process would mark it unasked.
    decisions.mark([ended.capture for ended in given_up if ended.nonce is not None])
    decisions.close()


def test_a_publishers_process_answers_also_after_its_own_restart(
    make_route: Callable[..., TopicRoute], shop: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = make_route()
    leave_without_markers(route, shop, monkeypatch)
    worker = route.start()
    wait_for(lambda: "the resource is unknown" in status(route), what="both captures undecided")
    assert route.outputs() == []

    with open_capture(route, shop, "/a") as capture:
        wait_for(lambda: len(route.outputs()) == 1, what="the committed message")
        wait_for(lambda: not held(route), what="the aborted one's end")
        assert capture.backlog == 0

    worker.terminate()
    assert worker.wait(30) == 0, route.said()
    assert len(ids(route.outputs())) == 1


def test_a_relay_with_the_database_ends_captures_in_the_log_for_those_without(
    make_route: Callable[..., TopicRoute], shop: Resource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = make_route()
    leave_without_markers(without, shop, monkeypatch)
    worker = without.start()
    wait_for(lambda: "the resource is unknown" in status(without), what="both captures undecided")
    knowing = Route(
        tmp_path, without.kafka, without.log, f'{{ topic = "{without.out}" }}',
        extra=f'start = "earliest"\n[resources.shop]\nurl = "sqlite:///{tmp_path}/shop.db"',
    )  # fmt: skip
    knowing.migrate()
    try:
        assert knowing.finish() == 0, knowing.said()
    finally:
        knowing.stop()

    wait_for(lambda: not held(without), what="the end of both captures")
    wait_for(lambda: len(without.outputs()) == 2, what="the committed message, once by each relay")
    records = read_all(without.kafka, without.log, 1)
    markers = [one for one in records if decode_marker(one.key(), one.value(), one.headers())]
    assert len(markers) == 2
    worker.terminate()
    assert worker.wait(30) == 0, without.said()


def test_a_copy_of_the_database_does_not_answer(
    make_route: Callable[..., TopicRoute], shop: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = make_route()
    leave_without_markers(route, shop, monkeypatch)
    shop.renew_identity()
    worker = route.start()
    wait_for(lambda: "the resource is unknown" in status(route), what="both captures undecided")

    polled: list[set[bytes | None]] = []
    poll = InquiryReader.poll

    def noting(reader: InquiryReader) -> list[tuple[bytes | None, bytes | None]]:
        found = poll(reader)
        polled.append({key for key, _ in found})
        return found

    monkeypatch.setattr(InquiryReader, "poll", noting)
    with open_capture(route, shop, "/a"):
        wait_for(lambda: len(set().union(*polled)) == 2, what="both inquiries")
        turns = len(polled)
        wait_for(lambda: len(polled) > turns, what="the end of the turn that could have answered")

    records = read_all(route.kafka, route.log, 1)
    assert [one for one in records if decode_marker(one.key(), one.value(), one.headers())] == []
    assert held(route) == 2
    worker.terminate()
    assert worker.wait(30) == 0, route.said()


def status(route: TopicRoute) -> str:
    return CliRunner().invoke(app, ["status", str(route.path), "--json"]).stdout


def held(route: TopicRoute) -> int:
    return int(json.loads(status(route))["routes"]["main"]["held"])

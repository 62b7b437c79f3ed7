"""US 6,970,945, [81] to [94]: the message object, its receipt, update and outside view; one test for each claim.

Recovery, [65] to [80], is in test_003_65_to_80_recovery.py; tests/README.md has the whole table.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from relay.control.queue_views import timeline
from relay.queue.alerts import open_alerts
from relay.queue.message import Audience, Group
from relay.queue.port import Filter, Refused
from relay.queue.redriving import chosen, redrive
from relay.queue.states import PublisherState, SubscriberState
from tests.acceptance.queue_in_use import NOW, Open, Queue, X, clock

P, S = PublisherState, SubscriberState


def test_81_to_85_the_example_message_object(on: Open) -> None:
    queue = on("sqlite", "0", "1", "2")
    (handle,) = queue.put("a", now=clock("12:14:03"), reveal=False)
    queue.store.reveal([handle], clock("12:14:12"))
    zeroth = queue.take("0", clock("12:14:26"))
    queue.finish("0", zeroth, clock("12:15:02"))
    first = queue.take("1", clock("12:15:26"))
    second = queue.take("2", clock("12:15:32"))
    queue.store.start("1", [first[0].ticket], clock("12:15:51"))
    queue.refuse("2", second, now=clock("12:15:59"))
    queue.finish("1", first, clock("12:16:09"))

    told = [(datetime.fromtimestamp(at / 1000, UTC).strftime("%H:%M:%S"), who, state) for at, who, state in timeline(queue.view(handle))]
    assert [(at, state) for at, who, state in told if who == "publisher"] == [
        ("12:14:03", "PUT"), ("12:14:12", "REVEALED"), ("12:16:09", "JOURNALLED"),
    ]  # fmt: skip
    assert [(at, state) for at, who, state in told if who == "2"] == [
        ("12:15:32", "GET"), ("12:15:32", "FETCHED"), ("12:15:59", "UNUSABLE"), ("12:15:59", "JOURNALLED"),
    ]  # fmt: skip
    assert [state for _, who, state in told if who == "1"] == ["GET", "FETCHED", "IN_PROCESS", "DONE", "JOURNALLED"]
    assert told[-3:] == [("12:16:09", "1", "DONE"), ("12:16:09", "1", "JOURNALLED"), ("12:16:09", "publisher", "JOURNALLED")], "finally, [82]"


def test_86_the_publisher_is_told_and_makes_it_available_again_for_that_subscriber(queue: Queue) -> None:
    (handle,) = queue.put("a")
    queue.refuse("2", queue.take("2"), "no JSON")
    for subscriber in ("0", "1"):
        queue.cycle(subscriber)

    (told,) = redrive(
        queue.store, chosen(queue.store, Filter(unusable=True, publisher=X)), None,
        dry_run=False, pace=lambda: None, now=lambda: NOW + 1,
    )  # fmt: skip

    assert (told.subscriber, told.cause, told.done) == ("2", "no JSON", True)
    assert queue.view(handle).state is P.REVEALED
    assert [queue.cycle(name, NOW + 2) for name in "012"] == [[], [], ["a"]]


def test_87_after_a_failure_it_is_known_who_still_needs_a_message(queue: Queue) -> None:
    (handle,) = queue.put("a")
    queue.cycle("0")
    queue.cycle("1")
    queue.refuse("2", queue.take("2"))

    (view,) = queue.store.find(Filter(unusable=True))
    assert view.handle == handle
    assert [one.subscriber for one in view.subscribers if one.times.done is None] == ["2"]


def test_90_what_a_publisher_sends_is_checked_before_it_is_stored(on: Open) -> None:
    queue = on("sqlite", publishers=frozenset({X}), message_bytes=10)

    with pytest.raises(Refused, match="stranger"):
        queue.put("a", publisher="stranger")
    with pytest.raises(Refused, match="takes 10"):
        queue.put("a", value=b"x" * 11)
    with pytest.raises(Refused, match="nobody"):
        queue.put("a", audience=Audience((Group("nobody", ("nobody",)),)))

    assert queue.store.waiting() == 0


def test_90_a_repeat_is_recognised(queue: Queue) -> None:
    assert queue.put("a") == queue.put("a")
    assert queue.cycle("0") == ["a"]


def test_90_the_queue_decides_who_is_to_retrieve_a_message(queue: Queue) -> None:
    (handle,) = queue.put("a")
    (other,) = queue.put("b", audience=Audience((Group("2", ("2",)),)))

    assert list(queue.states(handle)) == ["0", "1", "2"]
    assert list(queue.states(other)) == ["2"]


def test_90_a_waiting_subscriber_is_alerted(on: Open) -> None:
    for medium in ("sqlite", "postgresql"):
        queue = on(medium)
        alerts = open_alerts("iq", queue.url)
        try:
            assert not alerts.wait("clerk", 0.0)
            queue.put("a")
            assert alerts.wait("clerk", 5.0)
        finally:
            alerts.close()


def test_92_an_update_finds_its_message_adds_the_time_and_sets_the_state(queue: Queue) -> None:
    handle, other = queue.put("a", "b")
    untouched = queue.view(other)

    (taken,) = queue.take("0", NOW + 5, limit=1)
    assert queue.store.start("0", [taken.ticket], NOW + 6) == [True]

    one = queue.of(handle, "0")
    assert (one.state, one.times.in_process) == (S.IN_PROCESS, NOW + 6)
    assert queue.view(other) == untouched


def test_93_the_time_of_a_retrieval_is_recorded_by_itself(queue: Queue) -> None:
    (handle,) = queue.put("a")
    queue.take("0", NOW + 7)

    assert (queue.of(handle, "0").times.get, queue.of(handle, "0").times.fetched) == (NOW + 7, NOW + 7)


def test_94_an_outside_party_views_without_altering(queue: Queue) -> None:
    (handle,) = queue.put("a")
    before = queue.view(handle)

    queue.store.find(Filter())
    queue.store.counts()
    queue.view(handle)

    assert queue.view(handle) == before
    assert [one.id for one in queue.take("0")] == ["a"]


def test_94_a_messages_priority_is_set_and_goes_first(queue: Queue) -> None:
    handles = queue.put("a", lane=b"1") + queue.put("b", lane=b"2")

    assert queue.store.prioritise(handles[1:], 9) == [True]
    assert [one.id for one in queue.take("0")] == ["b", "a"]


def test_94_subject_handle_header_and_state_are_told(queue: Queue) -> None:
    (handle,) = queue.put("a", subject="order 42", headers=(("ce_type", b"sale"),))

    (view,) = queue.store.find(Filter())
    assert (view.handle, view.subject, view.headers, view.state) == (handle, "order 42", (("ce_type", b"sale"),), P.REVEALED)
    assert queue.view(handle).value == b"a"

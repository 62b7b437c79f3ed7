"""What commands of queues say to people: words and times of the configuration, not of the code."""

from __future__ import annotations

import os
import re
import socket
from types import SimpleNamespace
from typing import Any, Self

import pytest

from relay.cli import message, queue
from relay.cli.choosing import filter_of, me, retained
from relay.cli.report import when
from relay.control.pacing import Pace
from relay.control.queue_views import timeline
from relay.message.envelope import EXPIRY_TIME
from relay.message.errors import ConfigError
from relay.message.queue_headers import expires_at
from relay.queue.message import Audience, Group
from relay.queue.port import Holder
from relay.queue.settings import Balancing, QueueSettings, Retention
from relay.queue.states import PublisherState, SubscriberState
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import NOW, child, settings
from tests.contracts.queue_media import message as new_message

AUDIENCE = Audience((Group("approval", ("approval",)), Group("clerks", ("ann", "bob"))), in_order=True)
ROW: dict[str, Any] = {
    "queue": "credit", "store": "shop", "wanted": "RUN", "waiting": 0, "subscribers": [], "uuid": "u", "messages": {}, "wishes": [],
    "audit": [], "settings": {"ttl_ms": 60_000},
}  # fmt: skip


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Retention(), "for ever"),
        (Retention(age_ms=604_800_000), "for 7d"),
        (Retention(age_ms=1500, count=10, bytes=2048), "for 1500ms, at most 10 messages, at most 2048 bytes"),
        (Retention(count=10), "10 messages"),
    ],
)
def test_what_is_retained(bounds: Retention, words: str) -> None:
    assert retained(bounds) == words


def test_a_queues_settings_are_told_as_they_are_configured(capsys: pytest.CaptureFixture[str]) -> None:
    configured = QueueSettings(
        "credit", AUDIENCE, ttl_ms=60_000, publishers=frozenset({"/till", "/web"}), retain=Retention(count=3), balancing=Balancing(9, 2)
    )

    queue._print(ROW, configured)

    out = capsys.readouterr().out
    for line in (
        "subscribers: approval, clerks (ann, bob), in this order",
        "ttl: 1min",
        "publishers: /till, /web",
        "bounds: 1048576 bytes a message, 10000000 waiting, 5 tries",
        "retained: 3 messages",
        "balancing: on above 9 waiting, off below 2",
    ):
        assert f"{line}\n" in out
    assert not re.search(r"None|False|\{|_ms", out)


def test_a_user_without_a_name_as_in_many_containers_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1_000_654_321)

    assert me() == f"1000654321@{socket.gethostname()}"


def test_a_time_is_one_for_people() -> None:
    assert when(1_795_422_992_025) == "2026-11-23T08:36:32.025+00:00"
    assert (when(None), when("-")) == (None, "-")


@pytest.mark.parametrize("stated", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_an_expiry_beyond_all_years_is_shown_as_it_is_kept(stated: str) -> None:
    """RFC 3339 can say both of a zone's time, and a message may be put with either."""
    at = expires_at(stated.encode(), EXPIRY_TIME)

    assert when(at) == at


def test_a_message_is_shown_with_times_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Desk:
        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

    seen = {"queue": "credit", "handle": 1, "put_at": 1_795_422_992_025, "revealed_at": None, "subscribers": []}
    monkeypatch.setattr(message, "load", lambda path: path)
    monkeypatch.setattr(message, "QueueDesk", Desk)
    monkeypatch.setattr(message, "_view", lambda *_, **__: None)
    monkeypatch.setattr(message, "message_row", lambda *_, **__: seen)
    monkeypatch.setattr(message, "timeline", lambda _: [(1_795_422_992_025, "publisher", PublisherState.PUT.name)])

    message.show_command("relay.toml", "credit", 1)

    assert capsys.readouterr().out == (
        "queue: credit\nhandle: 1\nput_at: 2026-11-23T08:36:32.025+00:00\n  2026-11-23T08:36:32.025+00:00  publisher: PUT\n"
    )


@pytest.mark.parametrize("name", ["DONE", "unusable", "EXPIRED"])
def test_a_state_in_which_no_message_stays_is_refused_and_what_finds_it_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"--is {name}: .* JOURNALLED .*`relay message show`.*--unusable"):
        filter_of(subscriber="ann", subscriber_state=name)

    assert filter_of(subscriber="ann", subscriber_state="journalled").subscriber_state is SubscriberState.JOURNALLED


def test_states_that_were_entered_in_one_moment_are_told_in_the_order_of_the_tables() -> None:
    store = QueueBook(settings("ann"))
    store.enter(Holder(b"w", "ann", 0, None))
    store.put([new_message("done"), new_message("withdrawn"), child("discarded")], NOW)
    (taken,) = store.take("ann", b"w", 1, NOW)
    store.start("ann", [taken.ticket], NOW)
    store.finish("ann", [taken.ticket], NOW)
    store.withdraw([2], NOW)
    store.discard([3], NOW)

    told = [[(who, state) for _, who, state in timeline(view)] for view in store.views([1, 2, 3])]

    taken_states = [("ann", state) for state in ("GET", "FETCHED", "IN_PROCESS", "DONE", "JOURNALLED")]
    assert told[0] == [("publisher", "PUT"), ("publisher", "REVEALED"), *taken_states, ("publisher", "JOURNALLED")]
    passed = [("ann", "EXPIRED"), ("ann", "JOURNALLED")]
    assert told[1] == [("publisher", "PUT"), ("publisher", "REVEALED"), ("publisher", "UNAVAILABLE"), *passed]
    assert told[2] == [("publisher", "PUT"), ("publisher", "DELETED"), *passed]


def test_what_may_not_be_given_again_is_refused_also_by_a_dry_run() -> None:
    store = QueueBook(settings("ann"))
    store.enter(Holder(b"w", "ann", 0, None))
    store.put([new_message("done"), new_message("waits"), new_message("withdrawn")], NOW)
    store.finish("ann", [one.ticket for one in store.take("ann", b"w", 1, NOW)], NOW)
    store.withdraw([3], NOW)
    desk: Any = SimpleNamespace(store=lambda _: store)

    wanted = [one.handle for one in message._again(desk, "credit", [1, 2, 3], "ann", dry_run=True, pace=Pace(0))]
    given = [one.handle for one in message._again(desk, "credit", [1, 2, 3], "ann", dry_run=False, pace=Pace(0)) if one.done]

    assert wanted == given == [1]

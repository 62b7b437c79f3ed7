"""What only a queue with its values in the log can suffer: values that are gone, changed, or away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from relay.message.errors import ConfigError, Stopped
from relay.queue.moving import cut_over
from relay.queue.port import Filter, Refused, StoreAway
from relay.queue.receipt import PLACE
from relay.queue.states import PublisherState as P
from relay.queue.states import SubscriberState as S
from relay.queue.stores import open_store
from relay.queue.values import digest_of
from tests.contracts.queue_media import (
    NOW,
    Medium,
    child,
    ids,
    medium_of,
    message,
    opened,
    put,
    settings,
    state,
    states,
    take,
    tickets,
)


@pytest.fixture
def medium(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Medium]:
    medium = medium_of("log", tmp_path, request)
    yield medium
    medium.close()


def lose(medium: Medium, *values: bytes) -> None:
    """Let values leave the log, as its retention does."""
    medium.log.values = {place: value for place, value in medium.log.values.items() if value not in values}


def test_the_index_has_places_and_the_log_has_the_values(medium: Medium) -> None:
    store = opened(medium, "ann")
    put(store, "a", value=b"canary-of-the-value")

    raw = b"".join(path.read_bytes() for path in medium.state.glob("queues.db*"))
    assert b"canary" not in raw
    (one,) = take(store)
    assert (one.value, one.headers) == (b"canary-of-the-value", ())


def test_a_value_that_left_the_log_ends_its_message_with_a_cause_and_the_others_go_on(medium: Medium) -> None:
    store = opened(medium, "ann", "bob")
    put(store, "a", "gone", "c", lane=b"l")
    gone = 2
    lose(medium, b"gone")

    taken = take(store, "ann")
    assert ids(taken) == ["a", "c"]
    assert state(store, gone) is P.UNAVAILABLE
    assert states(store, gone) == {"ann": S.JOURNALLED, "bob": S.JOURNALLED}
    view = store.view(gone)
    assert view is not None
    assert view.value is None
    ann, bob = view.subscribers
    assert (ann.times.unusable, bob.times.unusable, bob.times.expired) == (NOW, None, NOW)
    assert "orders[1] offset 1" in (ann.cause or "")
    assert store.finish("ann", tickets(taken), NOW) == [True, True]
    assert ids(take(store, "bob")) == ["a", "c"]
    assert store.trim([gone]) == 1


def test_what_has_lost_its_value_does_not_move_without_it(
    medium: Medium, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    store = opened(medium, "ann")
    put(store, "a", "gone", "c")
    lose(medium, b"gone")
    other = medium_of("sqlite", tmp_path_factory.mktemp("other"), request)
    target = other.open(store.settings)

    for _ in range(2):
        cut_over(store, target, lambda _: None)
    assert state(target, 2) is P.UNAVAILABLE
    assert [(one.id, one.value) for one in take(target)] == [("a", b"a"), ("c", b"c")]
    other.close()


def test_another_value_in_the_same_place_is_not_given(medium: Medium) -> None:
    store = opened(medium, "ann")
    (handle,) = put(store, "a")
    medium.log.values = dict.fromkeys(medium.log.values, b"of the topic that was made anew")

    assert take(store) == []
    assert state(store, handle) is P.UNAVAILABLE


def test_where_the_address_does_not_say_any_more_that_values_stay_in_the_log_none_is_given_as_null(medium: Medium) -> None:
    """A handler would be given nothing, do nothing with it, and the message be DONE."""
    store = opened(medium, "ann")
    put(store, "null", value=None, headers=((PLACE, b"a stranger's"),))
    put(store, "a")
    plain = open_store(store.settings, medium.url.removeprefix("log+"), state=medium.state)
    medium.opened.append(plain)

    for ask in (lambda: take(plain), lambda: plain.view(2)):
        with pytest.raises(Stopped, match=r'stay in the log, and its store does not say so: write "log\+" before it'):
            ask()
    assert [(view.id, view.value) for view in plain.find(Filter(publisher="shop"))] == [("null", None), ("a", None)]
    assert [one.value for one in take(store)] == [None, b"a"]
    plain.put([message("later", headers=((PLACE, b"a stranger's"),), value=None)], NOW)
    assert [(one.value, one.headers) for one in take(store)] == [(None, ())]


def test_while_the_log_is_away_nothing_stays_taken(medium: Medium) -> None:
    store = opened(medium, "ann")
    (handle,) = put(store, "a")
    medium.log.away = True

    with pytest.raises(StoreAway):
        take(store)
    assert store.held(b"ann") == []
    with pytest.raises(StoreAway):
        store.view(handle)
    view = store.view(handle, value=False)
    assert view is not None
    assert view.subscribers[0].state is S.AVAILABLE
    assert view.subscribers[0].attempt == 0, "an attempt that was not made does not count"
    medium.log.away = False
    assert [one.value for one in take(store)] == [b"a"]


def test_what_has_no_place_keeps_its_value_in_the_index(medium: Medium) -> None:
    store = opened(medium, "ann")
    (edited,) = put(store, "edited")
    store.put([message("null", value=None)], NOW)
    assert store.edit(edited, b"new", "ops", "why", NOW) is True
    medium.log.values.clear()

    bare = open_store(store.settings, medium.url, state=medium.state, values=medium.log)
    (made,) = (answer.handle for answer in bare.put([child("made")], NOW))
    bare.accept([made], NOW)
    bare.close()
    assert [(one.id, one.value) for one in take(store)] == [
        ("edited", b"new"),
        ("null", None),
        ("made", b"made"),
    ]


def test_a_publisher_does_not_choose_what_is_read(medium: Medium) -> None:
    store = opened(medium, "ann", message_bytes=100)
    put(store, "secret")
    forged = orjson.dumps([*next(iter(medium.log.values)), digest_of(b"secret"), 6])

    put(store, "forged", value=None, headers=(("h", b"1"), (PLACE, forged)))
    with pytest.raises(Refused):
        put(store, "large", value=b"x" * 101)
    other = opened(Medium("book", "", medium.state), "ann")
    put(other, "moved", value=None, headers=((PLACE, forged),))
    view = other.view(1)
    assert view is not None
    store.adopt([replace(view, handle=7)], uuid=store.uuid)
    assert [(one.value, one.headers) for one in take(store)] == [
        (b"secret", ()),
        (None, (("h", b"1"),)),
        (None, ()),
    ]


def test_files_cannot_be_the_index(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log\+sqlite"):
        open_store(settings("ann"), "log+files:///q", state=tmp_path)

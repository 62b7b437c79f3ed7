"""What `relay queue list` and its like tell of a queue: numbers that people go by."""

from __future__ import annotations

from relay.control.queue_views import (
    TRACE_MAX,
    message_row,
    publishers,
    queue_row,
    scan,
    settings_row,
    trace,
    with_workers,
)
from relay.queue.desired import Desired, Kind, Move, Step, Subject, Wanted, Wish
from relay.queue.message import Audience, Group, MessageView, NewMessage, Parent
from relay.queue.port import Filter, Holder
from relay.queue.settings import Balancing, QueueSettings
from tests.contracts.queue_book import QueueBook

SETTINGS = QueueSettings("credit", Audience((Group("clerk", ("clerk",)), Group("auditor", ("auditor",)))))
TILL = Subject(Kind.PUBLISHER, "credit", "/till/9")


def busy() -> QueueBook:
    """Two clerks, of whom one has two messages, one of them begun; the auditor has nobody."""
    store = QueueBook(SETTINGS)
    for holder in (b"one", b"two"):
        store.enter(Holder(holder, "clerk", 0, None))
    store.put([NewMessage(f"/till/{n % 2}", f"m-{n}", b"v") for n in range(5)], 1)
    first, _ = store.take("clerk", b"one", 2, 1)
    store.start("clerk", [first.ticket], 1)
    return store


def told(*wishes: Wish) -> Desired:
    found = Desired()
    for wish in wishes:
        assert found.add(*wish.encode())
    return found


def test_a_row_counts_messages_and_workers_of_each_subscriber() -> None:
    desired = told(Wish(Subject(Kind.SUBSCRIBER, "credit", "clerk"), Wanted.PAUSE, "eve", "stocktaking", 1))

    row = queue_row(busy(), "sqlite:///a.db", desired)

    assert (row["queue"], row["store"], row["wanted"], row["move"]) == ("credit", "sqlite:///a.db", "RUN", None)
    assert row["messages"]["REVEALED"] == 5
    found = {one["subscriber"]: (one["wanted"], one["workers"], with_workers(one)) for one in row["subscribers"]}
    assert found == {"clerk": ("PAUSE", 2, 2), "auditor": ("RUN", 0, 0)}

    assert desired.add(*Move("credit", "u", "a", "b", Step.COPYING, "eve", 1).encode())
    assert queue_row(busy(), "", desired)["move"] == {"to": "b", "step": "COPYING", "by": "eve"}


def test_a_row_asks_for_the_workers_once_however_many_subscribers_there_are() -> None:
    store, asked = busy(), []
    holders = store.holders
    store.holders = lambda: (asked.append(1), holders())[1]  # type: ignore[method-assign]

    queue_row(store, "", Desired())

    assert len(asked) == 1


def test_a_row_counts_what_each_subscriber_found_unusable_until_it_is_given_again() -> None:
    store = busy()
    (taken,) = store.take("clerk", b"two", 1, 1)
    assert store.refuse("clerk", [(taken.ticket, "cannot be read")], 1) == [True]

    def unusable() -> dict[str, object]:
        return {one["subscriber"]: one["unusable"] for one in queue_row(store, "", told())["subscribers"]}

    assert unusable() == {"clerk": 1, "auditor": 0}
    assert store.republish(taken.ticket.handle, "clerk", 2)
    assert unusable() == {"clerk": 0, "auditor": 0}


def test_publishers_are_counted_over_as_many_messages_as_was_asked_for_and_whether_those_were_all_is_said() -> None:
    store, desired = busy(), told(Wish(TILL, Wanted.PAUSE, "eve", "stocktaking", 1))

    rows, whole = publishers(store, desired, 5)
    assert whole
    assert [(row["publisher"], row["wanted"], row["messages"]) for row in rows] == [
        ("/till/0", "RUN", {"REVEALED": 3}), ("/till/1", "RUN", {"REVEALED": 2}), ("/till/9", "PAUSE", {}),
    ]  # fmt: skip

    rows, whole = publishers(store, desired, 4)
    assert not whole
    assert [row["messages"] for row in rows] == [{"REVEALED": 2}, {"REVEALED": 2}, {}]


def test_a_scan_ends_after_as_many_as_it_may() -> None:
    assert [view.handle for view in scan(busy(), Filter(), 3)] == [1, 2, 3]
    assert list(scan(busy(), Filter(), 0)) == []


def test_settings_are_shown_where_there_are_any() -> None:
    row = settings_row(SETTINGS)
    assert (row["publishers"], row["balancing"]) == (None, None)
    row = settings_row(
        QueueSettings("credit", SETTINGS.audience, publishers=frozenset({"b", "a", "c"}), balancing=Balancing(9, 4))
    )
    assert (row["publishers"], row["balancing"]) == (["a", "b", "c"], {"on_above": 9, "off_below": 4})


def test_a_message_is_shown_without_its_payload_unless_somebody_asked_for_it() -> None:
    store = QueueBook(SETTINGS)
    store.put([NewMessage("p", "1", b"secret", key=b"k", headers=(("h", b"hidden"), ("n", None)), subject="s")], 1)
    (found,) = store.views([1])

    plain = message_row("credit", found)
    assert plain["subject"] == "s"
    assert not {"key", "value", "headers"} & plain.keys()
    shown = message_row("credit", found, value=True)
    assert (shown["key"], shown["value"]) == ("aw==", "c2VjcmV0")
    assert shown["headers"] == [{"name": "h", "value": "aGlkZGVu"}, {"name": "n", "value": None}]
    assert {name: shown[name] for name in plain} == plain


def view(store: QueueBook, handle: int) -> MessageView | None:
    return store.view(handle) if handle else None


def test_a_trace_has_ancestors_and_descendants_once_and_no_one_elses() -> None:
    """1 and 2 are the parents of 3, which has the children 4 and 5; 6 is another child of 1, and 0 is gone."""
    store = QueueBook(SETTINGS)
    parents = {1: (0,), 2: (), 3: (1, 2), 4: (3,), 5: (3,), 6: (1,), 7: (4, 5)}
    for number, above in parents.items():
        named = tuple(Parent("credit", one, "clerk") for one in above)
        store.put([NewMessage("p", str(number), b"", parents=named, attempt=f"a/{number}" if named else None)], 1)

    def children(_: str, number: int) -> list[tuple[str, int]]:
        return [("credit", one) for one, above in parents.items() if number in above]

    found = trace("credit", 3, lambda _, number: view(store, number), children)

    assert [(number, generation) for _, _, number, generation in found] == [(0, -2), (1, -1), (2, -1), (3, 0), (4, 1), (5, 1), (7, 2)]
    assert [one is None for _, one, _, _ in found] == [True, *[False] * 6]


def test_a_wide_trace_ends() -> None:
    found = trace("credit", 1, lambda *_: None, lambda _, number: [("credit", number * 10 + one) for one in range(10)])
    assert len(found) == TRACE_MAX

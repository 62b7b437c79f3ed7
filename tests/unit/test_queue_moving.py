"""A queue that moves loses nothing and keeps what it is: handles, states, times, attempts, holders, outcomes, its uuid."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from relay.queue import moving
from relay.queue.message import Audience, Group, NewMessage, Parent
from relay.queue.port import Filter, Holder, QueueStore, Retired
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores import open_store
from relay.queue.stores.sql_queue import SqlQueue
from tests.contracts.queue_book import QueueBook

NOW = 1_700_000_000_000
SETTINGS = QueueSettings("credit", Audience((Group("clerk", ("clerk",)), Group("pool", ("ann", "bob")))))


def busy() -> QueueBook:
    """A queue with a message in every kind of state."""
    store = QueueBook(SETTINGS)
    store.enter(Holder(b"h", "clerk", 0, None))
    store.enter(Holder(b"a", "ann", 0, None))
    store.put([NewMessage("/till", f"m-{n}", b"v%d" % n, lane=b"%d" % n) for n in range(12)], NOW)
    clerk = store.take("clerk", b"h", 5, NOW + 1)
    ann = store.take("ann", b"a", 3, NOW + 2)
    store.finish("clerk", [one.ticket for one in clerk[:3]], NOW + 3)
    store.finish("ann", [one.ticket for one in ann[:1]], NOW + 3)
    store.refuse("ann", [(ann[1].ticket, "unreadable")], NOW + 4)
    store.start("clerk", [clerk[3].ticket], NOW + 5)
    store.free("clerk", [clerk[4].ticket], NOW + 5, again_at=NOW + 9_000, failed=True)
    store.put([NewMessage("/till", "later", b"x", delay_ms=60_000), NewMessage("/till", "child", b"y", attempt="a/1", parents=(Parent("in", 1, "x"),))], NOW)
    store.withdraw([12], NOW + 6)
    store.settle("a/0", committed=True, now=NOW)
    return store


def move(source: QueueBook, target: QueueBook) -> None:
    moving.copy_ended(source, target, lambda _: None)
    moving.cut_over(source, target, lambda _: None)


def test_after_a_move_both_stores_say_the_same() -> None:
    source, target = busy(), QueueBook(SETTINGS)

    move(source, target)

    assert list(moving.differences(source, target)) == []
    assert target.uuid == source.uuid
    assert target.outcome("a/0") is True
    assert {holder.id for holder in target.holders()} == {b"h", b"a"}
    assert target.held(b"h") == source.held(b"h") != []


def test_what_changes_while_it_is_copied_is_copied_again() -> None:
    source, target = busy(), QueueBook(SETTINGS)
    moving.copy_ended(source, target, lambda _: None)
    held = source.held(b"h")
    source.finish("clerk", held, NOW + 100)
    source.put([NewMessage("/till", "new", b"z")], NOW + 100)
    source.republish(1, "clerk", NOW + 101, even_done=True)

    moving.cut_over(source, target, lambda _: None)

    assert list(moving.differences(source, target)) == []
    assert [view.id for view in target.find(Filter(subscriber="clerk", subscriber_state=SubscriberState.AVAILABLE), limit=1)] == ["m-0"]


def test_each_write_of_a_run_is_preceded_by_a_look_whether_another_one_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one that stood still would write over what was done since."""
    source, target = busy(), QueueBook(SETTINGS)
    target.put([NewMessage("/till", "gone", b"v")], NOW)
    steps: list[str] = []

    def noted(name: str, write: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            steps.append(name)
            return write(*given, **named)

        return call

    for store, name in ((source, "retire"), *((target, name) for name in ("reinstate", "adopt", "enter"))):
        monkeypatch.setattr(store, name, noted(name, getattr(store, name)))
    moving.copy_ended(source, target, lambda _: None, lambda: steps.append("look"))
    moving.cut_over(source, target, lambda _: None, lambda: steps.append("look"))

    assert {"retire", "reinstate", "adopt", "enter"} <= set(steps)
    assert [pair for pair in pairwise(steps) if "look" not in pair] == []


def test_after_the_cut_the_old_store_refuses_and_the_new_one_goes_on() -> None:
    source, target = busy(), QueueBook(SETTINGS)
    move(source, target)

    with pytest.raises(Retired):
        source.put([NewMessage("/till", "late", b"z")], NOW + 200)
    with pytest.raises(Retired):
        source.finish("clerk", source.held(b"h"), NOW + 200)

    assert target.finish("clerk", target.held(b"h"), NOW + 200) == [True]
    (answer,) = target.put([NewMessage("/till", "late", b"z")], NOW + 200)
    assert answer.handle > max(view.handle for view in source.find(Filter(), limit=1000))


@pytest.mark.parametrize("step", ["move.page", "move.retired", "move.copied"])
def test_killed_at_each_step_it_is_begun_again_and_ends_the_same(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = busy(), QueueBook(SETTINGS)

    def killed(name: str) -> None:
        if name == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(moving, "crash_point", killed)
        with pytest.raises(KeyboardInterrupt):
            move(source, target)

    move(source, target)

    assert list(moving.differences(source, target)) == []


def test_what_was_trimmed_meanwhile_is_trimmed_there_too() -> None:
    source, target = busy(), QueueBook(SETTINGS)
    moving.copy_ended(source, target, lambda _: None)
    assert source.trim([12]) == 1

    done = moving.cut_over(source, target, lambda _: None)

    assert done.removed == 1
    assert target.view(12) is None


def test_what_is_not_the_same_in_both_stores_is_said() -> None:
    """It is what a move goes by before it says that the new store is the queue."""
    source, target = busy(), QueueBook(SETTINGS)
    move(source, target)
    source.retired = False
    source.edit(6, b"another value", "eve", "wrong amount", NOW + 9)
    assert list(moving.differences(source, target)) == ["message 6 differs between the stores"]

    target.put([NewMessage("/till", "more", b"v")], NOW)
    found = list(moving.differences(source, target))
    live = source.counts()[0][PublisherState.REVEALED]
    assert found[1:] == [f"{live} messages are REVEALED in the old store, {live + 1} in the new one"]


@pytest.mark.parametrize("medium", ["book", "sqlite"])
def test_a_queue_that_lay_there_before_leaves_nothing_of_then_and_goes_on_there(medium: str, tmp_path: Path) -> None:
    """What waited there when it left has its old state: it would be given to the subscribers once more."""

    def made(name: str) -> QueueBook:
        url = f"sqlite:///{name}.db"
        return QueueBook(SETTINGS) if medium == "book" else cast("QueueBook", open_store(SETTINGS, url, state=tmp_path))

    first, second = made("first"), made("second")
    first.enter(Holder(b"h", "clerk", 0, None))
    first.put([NewMessage("/till", name, b"v") for name in ("over", "gone", "waits", "later")], NOW)
    move(first, second)
    for number in (1, 2):
        second.withdraw([number], NOW + 1)
    assert second.trim([2]) == 1
    second.put([NewMessage("/till", name, b"another") for name in ("gone", "over")], NOW + 2)

    done = moving.cut_over(second, first, lambda _: None)

    assert list(moving.differences(second, first)) == []
    assert [(view.id, view.handle) for view in first.find(Filter(), limit=10)] == [
        ("over", 1), ("waits", 3), ("later", 4), ("gone", 5), ("over", 6),
    ]  # fmt: skip
    assert done.removed == 1
    assert [one.id for one in first.take("clerk", b"h", 10, NOW + 3)] == ["waits", "later", "gone", "over"]
    assert first.put([NewMessage("/till", "new", b"v")], NOW + 3)[0].handle == 7
    first.close()
    second.close()


@pytest.mark.parametrize("medium", ["book", "sqlite", "files"])
def test_what_a_worker_had_when_the_queue_left_holds_no_lane_where_it_comes_back_to(medium: str, tmp_path: Path) -> None:
    def made(name: str) -> QueueBook:
        url = {"sqlite": f"sqlite:///{name}.db", "files": f"files:///{name}"}.get(medium, "")
        return QueueBook(SETTINGS) if medium == "book" else cast("QueueBook", open_store(SETTINGS, url, state=tmp_path))

    first, second = made("first"), made("second")
    first.enter(Holder(b"h", "clerk", 0, None))
    first.put([NewMessage("/till", name, b"v", lane=b"l") for name in ("withdrawn", "next")], NOW)
    (taken,) = first.take("clerk", b"h", 1, NOW)
    first.withdraw([1], NOW)
    move(first, second)
    assert second.free("clerk", [taken.ticket], NOW) == [True]
    assert second.trim([1]) == 1

    done = moving.cut_over(second, first, lambda _: None)

    assert (done.removed, first.held(b"h"), first.view(1)) == (1, [], None)
    first.enter(Holder(b"other", "clerk", 0, None))
    assert [one.id for one in first.take("clerk", b"other", 10, NOW)] == ["next"]
    first.close()
    second.close()


def test_an_empty_queue_stays_the_same_queue_where_it_moves_to() -> None:
    source, target = QueueBook(SETTINGS), QueueBook(SETTINGS)
    assert target.uuid != source.uuid
    move(source, target)
    assert target.uuid == source.uuid


def test_what_is_copied_is_copied_once_and_told() -> None:
    source, target = busy(), QueueBook(SETTINGS)
    told: list[int] = []
    over = source.counts()[0]
    assert moving.copy_ended(source, target, told.append) == sum(over.get(state, 0) for state in moving._OVER) > 0
    assert moving.copy_ended(source, target, told.append) == 0
    done = moving.cut_over(source, target, told.append)
    everything = len(source.find(Filter(), limit=100))
    assert done.outcomes == 1
    assert told == [told[0], 0, done.messages]
    assert told[0] + done.messages == everything


class Counted:
    """A store of which every question and every command is counted."""

    def __init__(self, store: QueueStore) -> None:
        self.store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return found(*given, **named)

        return call


def filled(store: QueueStore, count: int) -> None:
    """Put so many messages, of which the clerk has done half, and nobody else has seen any."""
    store.enter(Holder(b"h", "clerk", 0, None))
    store.put([NewMessage("/till", f"m-{n}", b"v%d" % n) for n in range(count)], NOW)
    taken = store.take("clerk", b"h", count // 2, NOW + 1)
    store.finish("clerk", [one.ticket for one in taken], NOW + 2)
    store.withdraw([one.ticket.handle for one in taken], NOW + 3)
    for n in range(count // 4):
        store.settle(f"a/{n}", committed=bool(n % 2), now=NOW)


def test_a_move_asks_for_a_page_of_messages_at_once() -> None:
    plain = QueueBook(SETTINGS)
    filled(plain, 1000)
    source, target = Counted(plain), Counted(QueueBook(SETTINGS))

    move(cast("QueueBook", source), cast("QueueBook", target))
    assert list(moving.differences(cast("QueueBook", source), cast("QueueBook", target))) == []

    calls = source.calls + target.calls
    assert calls["view"] == 0
    # Each hundred is found (twice, and in the end once more), asked for there, read and written.
    assert calls.total() <= 1000 / 100 * 12, calls


def test_a_database_takes_a_page_in_with_as_many_statements_as_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = QueueBook(SETTINGS)
    filled(plain, 100)
    views, outcomes = plain.views(range(1, 101)), plain.outcomes()
    store = cast("SqlQueue", open_store(SETTINGS, "sqlite:///queue.db", state=tmp_path))
    said: Counter[str] = Counter()
    for name in ("run", "count", "many"):
        real = getattr(store.session, name)
        monkeypatch.setattr(
            store.session, name, lambda text, *given, real=real: (said.update([text]), real(text, *given))[1]
        )

    store.adopt(views[:1], uuid=plain.uuid)
    first = said.total()
    store.adopt(views, uuid=plain.uuid, outcomes=outcomes)

    assert said.total() - first <= first + 1, said
    assert store.views(range(1, 101)) == views
    assert store.outcomes() == outcomes
    store.close()


def test_a_lane_of_a_message_with_an_audience_of_its_own_stays_with_who_has_it(tmp_path: Path) -> None:
    source = QueueBook(QueueSettings("credit", Audience((Group("clerk", ("clerk",)),))))
    source.enter(Holder(b"h", "clerk", 0, None))
    desk = Audience((Group("desk", ("clerk",)),))
    source.put([NewMessage("/till", name, b"v", lane=b"l", audience=desk) for name in ("first", "second")], NOW)
    (first,) = source.take("clerk", b"h", 1, NOW)
    target = open_store(source.settings, "sqlite:///q.db", state=tmp_path)

    moving.cut_over(cast("QueueStore", source), target, lambda _: None)

    target.enter(Holder(b"other", "clerk", 0, None))
    assert target.take("clerk", b"other", 10, NOW) == []
    assert target.finish("clerk", [first.ticket], NOW) == [True]
    assert [one.id for one in target.take("clerk", b"other", 10, NOW)] == ["second"]
    target.close()


def test_a_moved_message_that_is_given_again_is_journalled_when_it_ends_again(tmp_path: Path) -> None:
    source = QueueBook(QueueSettings("credit", Audience((Group("clerk", ("clerk",)),))))
    source.enter(Holder(b"h", "clerk", 0, None))
    source.put([NewMessage("/till", "1", b"v")], NOW)
    source.finish("clerk", [one.ticket for one in source.take("clerk", b"h", 1, NOW)], NOW)
    target = open_store(source.settings, "sqlite:///q.db", state=tmp_path)
    moving.cut_over(cast("QueueStore", source), target, lambda _: None)

    times = []
    assert target.republish(1, "clerk", NOW + 1, even_done=True)
    times.append(target.views([1])[0].journalled_at)
    assert target.finish("clerk", [one.ticket for one in target.take("clerk", b"h", 1, NOW + 2)], NOW + 3) == [True]
    times.append(target.views([1])[0].journalled_at)

    assert times == [None, NOW + 3]
    target.close()

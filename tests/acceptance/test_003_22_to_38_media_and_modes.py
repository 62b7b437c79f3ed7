"""US 6,970,945, [22] to [38]: whatever holds the messages, for however many subscribers; one test for each claim."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.control.queue_views import message_row, queue_row, timeline
from relay.queue import journal, moving
from relay.queue.desired import Desired, Kind, Subject, Wanted, Wish
from relay.queue.message import Audience, Group
from relay.queue.modes import Balance, in_mode, pooled
from relay.queue.settings import Balancing, Retention
from relay.queue.states import PublisherState
from relay.queue.stores import open_store
from tests.acceptance.queue_in_use import MEDIA, NOW, Open, Queue, X
from tests.archived_journal import archived

P = PublisherState


def script(queue: Queue) -> list[object]:
    """Use a queue in every way; return all that it answered."""
    first, second, third = queue.put("a", "b", "c", lane=b"x")
    answers: list[object] = [queue.cycle("0"), [one.id for one in queue.take("1", limit=2)]]
    queue.refuse("2", queue.take("2", limit=1))
    answers += [queue.store.withdraw([third], NOW + 1), queue.store.prioritise([second], 9)]
    answers += [queue.store.republish(first, "2", NOW + 2), [one.id for one in queue.take("2", NOW + 2)]]
    answers += [timeline(queue.view(handle)) for handle in (first, second, third)]
    return [*answers, queue.store.counts()[0], queue.store.waiting()]


# Media, management, storage ---------------------------------------------------------------------------------------------


def test_22_queues_on_different_media_behave_the_same(on: Open) -> None:
    answers = [script(on(medium, "0", "1", "2")) for medium in MEDIA]

    assert answers[0] == answers[1] == answers[2]


def test_22_a_queue_changes_its_medium_without_being_reorganised(on: Open) -> None:
    source, target = on("sqlite", "0", "1", "2"), on("postgresql", "0", "1", "2")
    handles = source.put("a", "b")
    source.cycle("0")

    moving.copy_ended(source.store, target.store, lambda _: None)
    moving.cut_over(source.store, target.store, lambda _: None)

    assert [target.view(handle) for handle in handles] == [source.view(handle) for handle in handles]
    assert target.cycle("1") == ["a", "b"]


def test_23_messages_are_tracked_in_one_way_whatever_holds_them(on: Open) -> None:
    rows = []
    for medium in MEDIA:
        queue = on(medium, "0", ("1", "2"))
        (handle,) = queue.put("a")
        queue.cycle("0")
        row = {**queue_row(queue.store, "somewhere", Desired()), "uuid": ""}
        for subscriber in row["subscribers"]:
            assert subscriber.pop("unusable") == (None if medium == "files" else 0)  # files show it of each message, and do not count it
        rows.append((row, message_row("iq", queue.view(handle))))

    assert rows[0] == rows[1] == rows[2]


def test_24_a_state_changes_where_it_stands_and_no_message_is_moved_or_deleted(on: Open, tmp_path: Path) -> None:
    queue = on("sqlite")
    (handle,) = queue.put("a")
    before = places(tmp_path)

    queue.cycle("clerk")

    assert queue.view(handle).state is P.JOURNALLED
    assert places(tmp_path) == before != []


def places(folder: Path) -> list[Any]:
    with closing(sqlite3.connect(folder / "sqlite-queues")) as connection:
        return connection.execute("select handle, hex(value) from relay_queue_message").fetchall()


def test_25_a_message_stays_after_all_have_processed_it_and_is_not_exposed_again(queue: Queue) -> None:
    (handle,) = queue.put("a")
    for subscriber in ("0", "1", "2"):
        queue.cycle(subscriber)

    assert queue.view(handle).value == b"a"
    assert [queue.take(subscriber) for subscriber in ("0", "1", "2")] == [[], [], []]


def test_25_the_administrator_says_when_a_message_leaves(on: Open) -> None:
    queue = on("sqlite", retain=Retention(age_ms=1000))
    (handle, _) = queue.put("a", "b")
    queue.cycle("clerk")

    assert queue.store.journalled(NOW + 999, 10) == []
    journal.let_go(queue.store, None, "day", NOW + 1001, most=10)

    assert queue.store.view(handle) is None


def test_25_the_administrator_edits_what_waits_and_it_is_noted(queue: Queue) -> None:
    (handle,) = queue.put("a")

    assert queue.store.edit(handle, b"mended", "eve", "typing error", NOW)
    assert [one.value for one in queue.take("0")] == [b"mended"]
    assert any(b"eve" in (value or b"") for _, value in queue.view(handle).headers)


def test_26_a_pool_shares_the_messages_beside_subscribers_of_its_own(on: Open) -> None:
    queue = on("sqlite", ("ann", "bob"), "auditor")
    queue.put("a", "b")
    ann, bob = queue.take("ann", limit=1), queue.take("bob", limit=5)

    assert sorted(one.id for one in [*ann, *bob]) == ["a", "b"]
    assert [one.id for one in queue.take("auditor")] == ["a", "b"]


def test_27_publishers_and_subscribers_of_all_queues_are_controlled_from_one_place() -> None:
    told = Desired()
    for wish in (
        Wish(Subject(Kind.SUBSCRIBER, "iq", "ann"), Wanted.PAUSE, "eve", "", 1),
        Wish(Subject(Kind.PUBLISHER, "iq", X), Wanted.PAUSE, "eve", "", 1),
        Wish(Subject(Kind.QUEUE, "other"), Wanted.DRAIN, "eve", "", 1),
    ):
        told.add(*wish.encode())

    assert (told.may_take("iq", "ann"), told.may_take("iq", "bob")) == (False, True)
    assert (told.held_publishers("iq"), told.may_put("other")) == ({X}, False)


# Index and data store ---------------------------------------------------------------------------------------------------


def test_31_the_index_tells_after_a_failure_what_each_message_was_before_it(on: Open) -> None:
    for medium in MEDIA:
        queue = on(medium, "0", "1")
        handle, other = queue.put("a", "b")
        queue.finish("0", queue.take("0", limit=1))
        queue.take("1", limit=1)
        before = [queue.view(handle), queue.view(other)]
        queue.store.close()

        again = open_store(queue.store.settings, queue.url)
        assert [again.view(handle), again.view(other)] == before
        again.close()


@pytest.mark.parametrize(("period", "name"), [("hour", "2000-11-01T12"), ("day", "2000-11-01"), ("week", "2000-W44"), ("biweek", "2000-W43-W44")])
def test_31_the_index_is_archived_in_periods(on: Open, tmp_path: Path, period: journal.Period, name: str) -> None:
    queue = on("sqlite", retain=Retention(count=0))
    queue.put("a", "b")
    queue.cycle("clerk")

    (file,) = journal.let_go(queue.store, tmp_path / "archive", period, NOW, most=10).files

    assert file.name.split(".")[1] == name
    (record,) = archived(tmp_path / "archive", "iq")
    assert (record["id"], record["subscribers"][0]["done"]) == ("a", NOW)


def test_32_a_message_is_kept_until_all_of_the_subscribers_have_processed_it(queue: Queue) -> None:
    (handle,) = queue.put("a")
    queue.cycle("0")
    queue.cycle("1")

    assert queue.store.trim([handle]) == 0
    assert [one.value for one in queue.take("2")] == [b"a"]


# Modes ------------------------------------------------------------------------------------------------------------------


def test_36_one_instance_is_stored_for_all_subscribers(on: Open, tmp_path: Path) -> None:
    queue = on("sqlite", *(str(n) for n in range(10)))
    queue.put("a")

    assert [queue.cycle(str(n)) for n in range(10)] == [["a"]] * 10
    assert len(places(tmp_path)) == 1


def test_37_in_a_pool_no_message_is_fetched_by_more_than_one(on: Open) -> None:
    for medium in MEDIA:
        queue = on(medium, ("ann", "bob", "carl"))
        queue.put(*(f"m-{n}" for n in range(9)))

        taken = [one.id for _ in range(9) for member in ("ann", "bob", "carl") for one in queue.take(member, limit=1)]

        assert sorted(taken) == [f"m-{n}" for n in range(9)]


def test_38_a_queue_balances_always_or_never(on: Open) -> None:
    everybody = Audience((Group("0", ("0",)), Group("1", ("1",))))

    assert in_mode(everybody, "balance") == Audience((Group("all", ("0", "1")),))
    assert in_mode(in_mode(everybody, "balance"), "publish-subscribe") == everybody


def test_38_balancing_switches_itself_on_above_a_threshold(on: Open) -> None:
    queue = on("sqlite", "0", "1")
    balance = Balance(Balancing(on_above=5, off_below=2))
    for n in range(8):
        audience = pooled(queue.store.settings.audience) if balance.seen(queue.store.waiting()) else None
        queue.put(f"m-{n}", audience=audience)

    assert len(queue.take("0")) == 8
    assert len(queue.take("1")) == 6, "the last two went to whoever came first"


def test_38_the_mode_is_each_messages_own(on: Open) -> None:
    queue = on("sqlite", "0", "1")
    queue.put("both")
    queue.put("either", audience=Audience((Group("any", ("0", "1")),)))

    assert queue.cycle("0") == ["both", "either"]
    assert queue.cycle("1") == ["both"]

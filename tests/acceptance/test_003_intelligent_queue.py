"""US 6,970,945, paragraphs [22] to [63] and [81] to [94]: one test for each claim, on every medium where it tells them apart.

Recovery, [65] to [80], is in test_003_recovery.py; tests/README.md has the whole table.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from relay.queue import journal, moving
from relay.queue.alerts import open_alerts
from relay.queue.desired import Desired, Kind, Subject, Wanted, Wish
from relay.queue.message import Audience, Group, MessageView, NewMessage, SubscriberView, Taken
from relay.queue.modes import Balance, in_mode, pooled
from relay.queue.port import Filter, Holder, QueueStore, Refused
from relay.queue.redriving import chosen, redrive
from relay.queue.settings import Balancing, QueueSettings, Retention
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores import open_store
from relay.queue.stores.sql_schema import create
from relay.run.queue_views import message_row, queue_row, timeline

P, S = PublisherState, SubscriberState
MEDIA = ("sqlite", "postgresql", "files")
X = "Publisher X"
Open = Callable[..., "Queue"]


def clock(text: str) -> int:
    """Return milliseconds of a time of day, as the document's example writes it."""
    return int(datetime.fromisoformat(f"2000-11-01T{text}+00:00").timestamp() * 1000)


NOW = clock("12:14:03")


class Queue:
    """A queue as publishers and subscribers use it; ``url`` is where it lies."""

    def __init__(self, store: QueueStore, url: str) -> None:
        self.store, self.url = store, url
        for group in store.settings.audience.groups:
            for member in group.members:
                store.enter(Holder(member.encode(), member, 0, None))

    def put(self, *ids: str, now: int = NOW, reveal: bool = True, **over: Any) -> list[int]:
        given = [NewMessage(**{"publisher": X, "id": name, "value": name.encode(), **over}) for name in ids]
        return [answer.handle for answer in self.store.put(given, now, reveal=reveal)]

    def take(self, subscriber: str, now: int = NOW, limit: int = 100) -> list[Taken]:
        return self.store.take(subscriber, subscriber.encode(), limit, now)

    def finish(self, subscriber: str, taken: list[Taken], now: int = NOW) -> None:
        assert all(self.store.finish(subscriber, [one.ticket for one in taken], now))

    def cycle(self, subscriber: str, now: int = NOW) -> list[str]:
        taken = self.take(subscriber, now)
        self.finish(subscriber, taken, now)
        return [one.id for one in taken]

    def refuse(self, subscriber: str, taken: list[Taken], cause: str = "unreadable", now: int = NOW) -> None:
        assert all(self.store.refuse(subscriber, [(one.ticket, cause) for one in taken], now))

    def view(self, handle: int) -> MessageView:
        found = self.store.view(handle)
        assert found is not None
        return found

    def of(self, handle: int, subscriber: str) -> SubscriberView:
        return next(one for one in self.view(handle).subscribers if one.subscriber == subscriber)

    def states(self, handle: int) -> dict[str, SubscriberState]:
        return {one.subscriber: one.state for one in self.view(handle).subscribers}


@pytest.fixture(scope="module")
def database(services: Any) -> Iterator[str]:
    """URL of one database for all tests of this module: each makes a schema of its own in it."""
    name = f"t_{secrets.token_hex(6)}"
    with psycopg.connect(services.postgres, autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        yield services.postgres.rpartition("/")[0] + f"/{name}"
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def on(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Return ``on(medium, *groups)``: a name is a subscriber, a tuple a pool called after its members."""
    opened: list[QueueStore] = []

    def open_on(medium: str, *groups: str | tuple[str, ...], name: str = "iq", in_order: bool = False, **over: Any) -> Queue:
        members = [(one,) if isinstance(one, str) else one for one in groups or ("clerk",)]
        audience = Audience(tuple(Group("+".join(each), each) for each in members), in_order)
        url = address(medium)
        opened.append(open_store(QueueSettings(name, audience, **over), url, state=tmp_path))
        return Queue(opened[-1], url)

    def address(medium: str) -> str:
        if medium != "postgresql":
            return f"{medium}:///{tmp_path}/{medium}-queues"
        schema = f"s{secrets.token_hex(6)}"
        url: str = request.getfixturevalue("database")
        with psycopg.connect(url) as connection:
            connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
        url += f"?options=-csearch_path%3D{schema}"
        with psycopg.connect(url) as connection:
            create(connection)
        return url

    yield open_on
    for store in opened:
        store.close()


@pytest.fixture(params=MEDIA)
def queue(on: Open, request: pytest.FixtureRequest) -> Queue:
    """Publisher X's queue for Subscribers 0, 1 and 2, on each medium."""
    return on(request.param, "0", "1", "2")


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
        row = queue_row(queue.store, "somewhere", Desired())
        rows.append(({**row, "uuid": ""}, message_row("iq", queue.view(handle))))

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
    (record,) = journal.read(tmp_path / "archive", "iq")
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


# States -----------------------------------------------------------------------------------------------------------------


def test_39_each_state_that_a_message_enters_is_kept_with_its_time(queue: Queue) -> None:
    (handle,) = queue.put("a", now=NOW, reveal=False)
    queue.store.reveal([handle], NOW + 1)
    taken = queue.take("0", NOW + 2)
    queue.store.start("0", [taken[0].ticket], NOW + 3)
    queue.finish("0", taken, NOW + 4)

    view, times = queue.view(handle), queue.of(handle, "0").times
    assert (view.put_at, view.revealed_at) == (NOW, NOW + 1)
    assert (times.get, times.fetched, times.in_process, times.done, times.journalled) == (
        NOW + 2, NOW + 2, NOW + 3, NOW + 4, NOW + 4,
    )  # fmt: skip


def test_40_a_message_has_one_publishers_state_and_one_for_each_subscriber(queue: Queue) -> None:
    (handle,) = queue.put("a")
    queue.take("1")

    assert queue.view(handle).state is P.REVEALED
    assert queue.states(handle) == {"0": S.AVAILABLE, "1": S.FETCHED, "2": S.AVAILABLE}


def test_42_43_what_is_put_shows_when_the_publisher_reveals_it(queue: Queue) -> None:
    (handle,) = queue.put("a", reveal=False)
    assert (queue.view(handle).state, queue.take("0")) == (P.PUT, [])

    assert queue.store.reveal([handle], NOW + 1) == [True]
    assert queue.view(handle).state is P.REVEALED
    assert [one.id for one in queue.take("0", NOW + 1)] == ["a"]


def test_43_a_message_reveals_itself_when_its_delay_is_over(queue: Queue) -> None:
    queue.put("a", delay_ms=1000)

    assert (queue.store.reveal_due(NOW + 999, 10), queue.take("0", NOW + 999)) == (0, [])
    assert queue.store.reveal_due(NOW + 1000, 10) == 1
    assert [one.id for one in queue.take("0", NOW + 1000)] == ["a"]


def test_44_an_unavailable_message_is_there_for_nobody(queue: Queue) -> None:
    (handle,) = queue.put("a")

    assert queue.store.withdraw([handle], NOW) == [True]
    assert (queue.view(handle).state, queue.take("0"), queue.take("1")) == (P.UNAVAILABLE, [], [])


def test_45_a_journalled_message_is_read_also_by_who_does_not_subscribe(queue: Queue) -> None:
    (handle,) = queue.put("a")
    for subscriber in ("0", "1", "2"):
        queue.cycle(subscriber)

    assert queue.view(handle).state is P.JOURNALLED
    assert [view.handle for view in queue.store.find(Filter(state=P.JOURNALLED))] == [handle]
    assert queue.view(handle).value == b"a"


def test_46_a_subscriber_does_not_get_again_what_it_has_got(queue: Queue) -> None:
    queue.put("a")

    assert queue.cycle("0") == ["a"]
    assert queue.take("0", NOW + 10**9) == []


def test_47_48_49_a_worker_has_fetched_what_it_takes_and_says_when_it_begins(queue: Queue) -> None:
    (handle,) = queue.put("a")
    (taken,) = queue.take("0", NOW + 1)
    assert queue.of(handle, "0").state is S.FETCHED

    assert queue.store.start("0", [taken.ticket], NOW + 2) == [True]
    assert queue.of(handle, "0").state is S.IN_PROCESS


def test_50_a_retrieval_that_failed_is_unusable_with_its_cause(queue: Queue) -> None:
    (handle,) = queue.put("a")
    queue.refuse("0", queue.take("0"), "no JSON", NOW + 1)

    one = queue.of(handle, "0")
    assert (one.times.unusable, one.times.journalled, one.cause, one.state) == (NOW + 1, NOW + 1, "no JSON", S.JOURNALLED)


def test_51_a_subscriber_is_done_with_or_without_processing(queue: Queue) -> None:
    handles = queue.put("a", "b")
    retrieved, processed = queue.take("0")
    queue.store.start("0", [processed.ticket], NOW + 1)
    queue.finish("0", [retrieved, processed], NOW + 2)

    assert [queue.of(handle, "0").times.done for handle in handles] == [NOW + 2] * 2
    assert [queue.of(handle, "0").times.in_process for handle in handles] == [None, NOW + 1]


def test_52_done_unusable_and_expired_all_end_journalled(queue: Queue) -> None:
    (handle,) = queue.put("a", ttl_ms=1000)
    queue.cycle("0")
    queue.refuse("1", queue.take("1"))
    queue.store.expire(NOW + 1001, 10)

    assert queue.states(handle) == dict.fromkeys("012", S.JOURNALLED)
    times = {name: queue.of(handle, name).times for name in "012"}
    assert (times["0"].done, times["1"].unusable, times["2"].expired) == (NOW, NOW, NOW + 1001)


def test_53_a_message_expires_by_its_time_or_at_a_publishers_or_subscribers_word(queue: Queue) -> None:
    by_time, by_word, by_one = queue.put("a", ttl_ms=1000) + queue.put("b", "c")
    assert "a" not in [one.id for one in queue.take("0", NOW + 1001)]

    assert queue.store.expire(NOW + 1001, 10) >= 1
    assert queue.store.expire_now([by_word], NOW + 1002) == [True]
    assert queue.store.expire_now([by_one], NOW + 1002, "1") == [True]

    assert queue.of(by_time, "1").times.expired == NOW + 1001
    assert queue.of(by_word, "1").times.expired == queue.of(by_word, "2").times.expired == NOW + 1002
    assert (queue.of(by_one, "1").state, queue.of(by_one, "2").state) == (S.JOURNALLED, S.AVAILABLE)


def test_53_a_queue_has_a_time_limit_for_all_its_messages(on: Open) -> None:
    queue = on("sqlite", ttl_ms=500)
    queue.put("a")

    assert queue.take("clerk", NOW + 501) == []


def test_54_from_a_terminal_state_nothing_goes_on_by_itself(queue: Queue) -> None:
    (handle,) = queue.put("a")
    (taken,) = queue.take("0")
    queue.finish("0", [taken])

    assert queue.store.start("0", [taken.ticket], NOW) == [False]
    assert queue.store.refuse("0", [(taken.ticket, "late")], NOW) == [False]
    assert queue.store.free("0", [taken.ticket], NOW) == [False]
    assert queue.store.expire_now([handle], NOW, "0") == [False]
    assert queue.of(handle, "0").times.done == NOW


def test_55_a_publisher_designates_the_order_of_the_subscribers(on: Open) -> None:
    for medium in MEDIA:
        queue = on(medium, "2", "0", "1", in_order=True)
        queue.put("a")

        assert [queue.cycle("0"), queue.cycle("2"), queue.cycle("1"), queue.cycle("0"), queue.cycle("1")] == [
            [], ["a"], [], ["a"], ["a"],
        ]  # fmt: skip


def test_56_to_60_the_publish_subscribe_example(queue: Queue) -> None:
    (handle,) = queue.put("a", reveal=False)
    queue.store.reveal([handle], NOW)
    second = queue.take("2")
    zeroth = queue.take("0")
    queue.finish("2", second)
    queue.refuse("0", zeroth)
    assert queue.view(handle).state is P.REVEALED

    first = queue.take("1")
    queue.store.start("1", [first[0].ticket], NOW)
    queue.finish("1", first)

    assert queue.states(handle) == dict.fromkeys("012", S.JOURNALLED)
    assert queue.view(handle).state is P.JOURNALLED
    assert queue.of(handle, "0").cause == "unreadable"


def test_61_the_load_balancing_example(on: Open) -> None:
    for medium in MEDIA:
        queue = on(medium, ("0", "1", "2"))
        handle, other = queue.put("a", "b")

        taken = queue.take("2", limit=1)
        assert [one.id for one in queue.take("0", limit=1)] == ["b"], "free for another message"
        queue.finish("2", taken, NOW + 1)

        assert queue.states(handle) == dict.fromkeys("012", S.JOURNALLED)
        assert [queue.of(handle, name).times.expired for name in "01"] == [NOW + 1] * 2
        assert (queue.view(handle).state, queue.view(other).state) == (P.JOURNALLED, P.REVEALED)


def test_62_63_the_combined_example(on: Open) -> None:
    for medium in MEDIA:
        queue = on(medium, ("0", "1"), "2", "3")
        (handle,) = queue.put("a")

        assert [queue.cycle(name) for name in "1023"] == [["a"], [], ["a"], ["a"]]
        assert queue.of(handle, "0").times.expired is not None
        assert queue.view(handle).state is P.JOURNALLED


def test_63_the_publisher_designates_to_whom_a_message_is_revealed(queue: Queue) -> None:
    (handle,) = queue.put("a", reveal=False)

    assert queue.store.reveal([handle], NOW, ["1"]) == [True]
    assert [queue.take("0"), [one.id for one in queue.take("1")]] == [[], ["a"]]
    assert queue.store.reveal([handle], NOW, ["0"]) == [True]
    assert [one.id for one in queue.take("0")] == ["a"]


# The message object, and the queue's processes --------------------------------------------------------------------------


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



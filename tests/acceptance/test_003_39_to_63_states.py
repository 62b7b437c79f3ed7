"""US 6,970,945, [39] to [63]: the states of publishers and subscribers, one test for each claim, on every medium."""

from __future__ import annotations

from relay.queue.port import Filter
from relay.queue.states import PublisherState, SubscriberState
from tests.acceptance.queue_in_use import MEDIA, NOW, Open, Queue

P, S = PublisherState, SubscriberState


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

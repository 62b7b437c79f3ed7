"""What a worker and a route are called: running is only what makes progress."""

from __future__ import annotations

from typing import Any

import pytest

from relay.config.routes import RouteConfig, TopicDestination
from relay.control.status import (
    DeadLetters,
    RouteFacts,
    RouteView,
    State,
    beside,
    exit_code,
    failing_handlers,
    handlers_lately,
    judge_worker,
    view,
)
from relay.message.record import LogPartition
from relay.run.status_record import (
    RECORD_BYTES_MAX,
    WAITING_MAX,
    Counts,
    PartitionStatus,
    StatusRecord,
    Waiting,
    decode,
    encode,
    handlers_of,
    key,
)

NOW = 1_800_000_000_000
ROUTE = RouteConfig(name="r", from_=["orders"], to=TopicDestination(topic="ledger"))


def partition(number: int = 0, **fields: Any) -> PartitionStatus:
    given = {"position": 10, "end": 10, "lag": 0, "last_progress_at": NOW - 1000}
    return PartitionStatus(topic="orders", partition=number, **{**given, **fields})


def record(*partitions: PartitionStatus, worker: str = "shop.r.a.0", **fields: Any) -> StatusRecord:
    given = {"started_at": NOW - 3_600_000, "at": NOW - 1000, "state": "running"}
    return StatusRecord(relay="shop", route="r", worker=worker, partitions=partitions, **{**given, **fields})


def shown(
    *records: StatusRecord,
    ends: dict[int, int] | None = None,
    committed: dict[int, int] | None = None,
    dead: DeadLetters | None = None,
) -> RouteView:
    places = {LogPartition("orders", number): end for number, end in (ends or {}).items()}
    stored = None if committed is None else {LogPartition("orders", n): at for n, at in committed.items()}
    return view(RouteFacts(ROUTE, records, places, stored, dead or DeadLetters()), NOW)


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (record(partition()), State.IDLE),
        (record(), State.IDLE),
        (record(partition(lag=5)), State.RUNNING),
        (record(partition(lag=5, last_progress_at=NOW - 1000 - 29_999)), State.RUNNING),
        (record(partition(lag=5, last_progress_at=NOW - 1000 - 30_000)), State.STALLED),
        (record(partition(), partition(1, lag=5, last_progress_at=NOW - 40_000)), State.STALLED),
        # Idle for an hour is no stall.
        (record(partition(lag=0, last_progress_at=NOW - 3_600_000)), State.IDLE),
        # Never moved: counted from the start of the process.
        (record(partition(lag=5, last_progress_at=None)), State.STALLED),
        (record(partition(lag=5, last_progress_at=None), started_at=NOW - 5000), State.RUNNING),
        (record(partition(lag=5, last_progress_at=NOW - 40_000), state="recovering"), State.STALLED),
        (record(state="recovering"), State.RECOVERING),
        (record(partition(), state="recovering", failing_since=NOW - 1000 - 29_999), State.RECOVERING),
        (record(partition(), state="recovering", failing_since=NOW - 1000 - 30_000), State.STALLED),
        # Without partitions of its own it hears of brokers that were away, and nothing ever ends that.
        (record(failing_since=NOW - 3_600_000), State.IDLE),
        (record(state="draining"), State.DRAINING),
        (record(state="stuck"), State.STUCK),
        (record(partition(stuck="the monitor cannot be read")), State.STUCK),
        (record(partition(lag=5), at=NOW - 6001), State.GONE),
        (record(partition(lag=5), at=NOW - 6000), State.RUNNING),
        (record(partition(stuck="x"), at=NOW - 60_000), State.GONE),
        (record(state="stopped", at=NOW - 60_000), State.STOPPED),
        # A clock that is ahead makes nobody gone.
        (record(partition(), at=NOW + 60_000, started_at=NOW), State.IDLE),
    ],
)
def test_a_worker_is_called_what_it_does(said: StatusRecord, state: State) -> None:
    assert judge_worker(said, NOW)[0] is state


def test_a_stall_says_where_and_for_what_it_waits() -> None:
    waiting = (
        Waiting(capture="aa", why="undecided", since_ms=100),
        Waiting(capture="bb", why="away", since_ms=900),
    )
    stalled = record(partition(3, lag=7, held=2, waiting=waiting, last_progress_at=NOW - 46_000))

    _, why = judge_worker(stalled, NOW)

    assert why == "orders[3] did not move for 45 s, lag 7; 2 held, the oldest for capture bb (away)"


def test_a_route_is_as_bad_as_its_worst_living_worker() -> None:
    good, bad = record(partition()), record(partition(1, stuck="no"), worker="shop.r.b.0")
    route = shown(good, bad, ends={0: 10, 1: 10}, committed={0: 10, 1: 10})

    assert (route.state, route.why) == (State.STUCK, "shop.r.b.0: no")
    assert exit_code([route]) == 1


def test_a_dead_worker_beside_a_living_one_is_shown_and_harms_nothing() -> None:
    route = shown(record(partition()), record(worker="b", at=NOW - 60_000), ends={0: 10}, committed={0: 10})

    assert route.state is State.IDLE
    assert [worker.state for worker in route.workers] == [State.GONE, State.IDLE]
    assert exit_code([route]) == 0


def test_a_worker_that_went_long_ago_is_forgotten_while_others_live() -> None:
    old = record(worker="b", at=NOW - 7_200_000)

    assert [worker.worker for worker in shown(record(), old).workers] == ["shop.r.a.0"]
    assert [worker.worker for worker in shown(old).workers] == ["b"]


def test_where_nobody_lives_those_are_shown_that_left_last() -> None:
    """Each worker there ever was would come back with its counters, and what it had lost or failed at would be alarmed about once more."""
    day = 86_400_000
    last = [record(worker="c", at=NOW - day, state="stopped"), record(worker="d", at=NOW - day - 60_000)]
    ever = [record(worker=f"w-{n}", at=NOW - n * day, counts=Counts(lost=3)) for n in range(2, 300)]

    route = shown(*ever, *last, ends={0: 10}, committed={0: 10})

    assert [worker.worker for worker in route.workers] == ["c", "d"]
    assert (route.state, route.counts["lost"]) == (State.GONE, 0)
    assert shown(*ever, last[0], ends={0: 10}, committed={0: 10}).state is State.STOPPED


@pytest.mark.parametrize(
    ("records", "state"),
    [
        ([], State.STOPPED),
        ([record(state="stopped")], State.STOPPED),
        ([record(at=NOW - 60_000)], State.GONE),
        ([record(state="stopped"), record(worker="b", at=NOW - 60_000)], State.GONE),
    ],
)
def test_a_route_without_a_living_worker_is_wrong(records: list[StatusRecord], state: State) -> None:
    route = shown(*records, ends={0: 10}, committed={0: 10})

    assert route.state is state
    assert route.why
    assert exit_code([route]) == 1


def test_lag_is_counted_from_the_stored_position_to_the_end_of_now() -> None:
    route = shown(record(partition(position=10, end=10)), ends={0: 25}, committed={0: 12})

    (place,) = route.partitions
    assert (place.position, place.end, place.lag, place.owner) == (12, 25, 13, "shop.r.a.0")
    assert route.state is State.RUNNING


def test_markers_behind_the_last_message_are_no_lag() -> None:
    route = shown(record(partition(position=10, end=11, lag=0)), ends={0: 11}, committed={0: 10})

    assert route.lag == 0
    assert route.state is State.IDLE


def test_without_stored_positions_the_workers_own_are_shown() -> None:
    route = shown(record(partition(position=10)), ends={0: 12, 1: 5}, committed=None)

    assert [(place.position, place.lag) for place in route.partitions] == [(10, 2), (None, None)]
    assert route.lag is None


def test_a_partition_without_an_owner_is_named() -> None:
    route = shown(record(partition()), ends={0: 10, 1: 5}, committed={0: 10, 1: 0})

    assert route.partitions[1].owner is None
    assert route.why == "orders[1] is owned by no worker at the moment"


def test_what_a_worker_has_no_room_to_say_is_not_called_ownerless() -> None:
    route = shown(record(partition(), truncated=True), ends={0: 10, 1: 5}, committed={0: 10, 1: 0})

    assert route.why == "shop.r.a.0 has more to say than a status record holds: it may own orders[1]"
    assert route.document()["workers"][0]["truncated"]


def test_of_two_owners_the_later_word_counts() -> None:
    old, new = record(partition(), at=NOW - 5000), record(partition(), worker="b", at=NOW - 100)

    assert [shown(*pair).partitions[0].owner for pair in ((old, new), (new, old))] == ["b", "b"]


@pytest.mark.parametrize(
    ("lately", "ran_s", "is_said"), [(2, 5, False), (3, 5, True), (3, 3599, True), (3, 3600, False), (19, 0, True), (20, 0, True), (99, 3600, False)]
)
def test_a_route_whose_worker_dies_again_and_again_runs_and_says_so(lately: int, ran_s: int, is_said: bool) -> None:
    """It is given up only if it dies five times in a minute: one that dies every quarter of an hour goes on for ever."""
    at = NOW - 1000
    again = record(
        partition(), at=at, started_at=at - 1000 * ran_s, restarts=40, restarts_lately=lately, ended_by="killed by SIGKILL"
    )

    route = shown(again, record(partition(1), worker="b"), ends={0: 10}, committed={0: 10})

    assert (route.state, exit_code([route])) == (State.IDLE, int(lately >= 20 and is_said))
    assert [worker.restarts for worker in route.workers] == [0, 40]
    said = f"shop.r.a.0 failed and was started again {lately} times within an hour, last after: killed by SIGKILL"
    assert route.why == (said if is_said else None)


def test_one_that_is_gone_is_no_more_than_that() -> None:
    gone = record(at=NOW - 60_000, started_at=NOW - 61_000, restarts_lately=9, worker="b")

    assert shown(record(partition()), gone, ends={0: 10}, committed={0: 10}).why is None


def test_counts_are_added_up_and_the_commonest_cause_is_named() -> None:
    dead = DeadLetters(7, {"zz": 3, "aa": 3, "m": 1}, complete=False)
    two = [record(worker=name, counts={"delivered": 5, "dead": 1}) for name in "ab"]

    document = shown(*two, dead=dead).document()

    assert (document["counts"]["delivered"], document["counts"]["dead"]) == (10, 2)
    assert (document["dead_letters"], document["dead_letters_complete"]) == (7, False)
    assert document["commonest_cause"] == "aa"


def test_a_record_comes_back_as_it_was_written() -> None:
    given = record(partition(waiting=(Waiting(capture="aa", why="w", since_ms=1),)), causes={"null": 3})

    assert decode(encode(given)) == given
    assert key("r", "shop.r.a.0") == b"status/r/shop.r.a.0"


def test_a_record_keeps_its_bounds() -> None:
    waiting = tuple(Waiting(capture="c" * 32, why="w" * 400, since_ms=n) for n in range(100))
    many = tuple(partition(number, waiting=waiting, stuck="s" * 400) for number in range(2000))
    given = record(*many, causes={f"c{n}": n for n in range(1000)}, last_error="e" * 10_000)

    written = encode(given)
    read = decode(written)

    assert len(written) <= RECORD_BYTES_MAX
    assert read is not None
    assert read.truncated
    assert read.partitions
    assert len(read.causes) == 50
    assert read.causes["c999"] == 999
    assert len(read.last_error or "") == 500


def test_a_partition_shows_a_bounded_number_of_holds() -> None:
    waiting = tuple(Waiting(capture=str(n), why="w") for n in range(100))
    read = decode(encode(record(partition(waiting=waiting))))

    assert read is not None
    assert len(read.partitions[0].waiting) == WAITING_MAX
    assert not read.truncated


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"relay": "shop"}', b"\xff", b'{"state": "new"}'])
def test_what_is_no_record_is_none(value: bytes) -> None:
    assert decode(value) is None


def test_what_a_newer_worker_adds_is_left_out() -> None:
    longer = encode({**record().model_dump(), "novelty": 1})

    assert decode(longer) == record()


def test_a_worker_of_a_route_that_was_renamed_is_told_as_long_as_it_runs() -> None:
    """It delivers what the route of the new name delivers as well."""
    former = record(partition(), worker="shop.before.b.0").model_copy(update={"route": "before", "host": "other"})
    gone = former.model_copy(update={"route": "long-ago", "at": NOW - 3_600_000})
    left = former.model_copy(update={"route": "left", "state": "stopped"})

    (told,) = beside([record(partition()), former, gone, left], {"r"}, NOW)

    assert told.startswith("route before is not in this configuration, and shop.before.b.0 (process 0 on other) runs it")


def of_handlers(lately: int, ago_s: float = 10.0, worker: str = "shop.orders/ledger.a.0") -> StatusRecord:
    given = {"restarts": 40, "restarts_lately": lately, "ended_by": "killed by SIGKILL", "state": "stopped", "host": "here"}
    return record(worker=worker, at=NOW - round(1000 * ago_s), **given).model_copy(update={"route": handlers_of("orders", "ledger")})


def test_handlers_whose_process_dies_again_and_again_are_told_for_an_hour() -> None:
    seldom, old = of_handlers(2, worker="seldom"), of_handlers(9, 3600, worker="old")
    often = of_handlers(3, 60)

    (said,) = failing_handlers([seldom, record(partition(), restarts_lately=9), often, old], NOW)

    assert said == (
        "queue orders: shop.orders/ledger.a.0 of `relay work` for ledger, on here, failed and was started again 3 times within an hour, last 60 s "
        "ago after: killed by SIGKILL; the log of that `relay work` has what each said last"
    )
    oldest, gone = of_handlers(9, 86_399, "oldest"), of_handlers(9, 86_401, "yesterday")
    assert [one.worker for one in handlers_lately([seldom, often, old, oldest, gone, record()], NOW)] == [
        "seldom", "shop.orders/ledger.a.0", "old", "oldest",
    ]  # fmt: skip


def test_a_version_that_knows_no_word_of_handlers_takes_it_for_no_route_of_its_own() -> None:
    said = decode(encode(of_handlers(9)))

    assert said is not None
    assert list(beside([said], {"r"}, NOW)) == []
    assert said.partitions == ()


@pytest.mark.parametrize("hours", [5, -5])
def test_a_workers_age_goes_by_the_brokers_clock_where_the_broker_tells(hours: int) -> None:
    ahead = 3_600_000 * hours
    at = NOW - 1000 + ahead
    said = encode(record(partition(last_progress_at=at), at=at, started_at=at - 100_000))
    heard, silent, untold = decode(said, NOW - 1000), decode(said, NOW - 3_600_000), decode(said)
    assert heard is not None
    assert silent is not None
    assert untold is not None

    assert judge_worker(heard, NOW)[0] is State.IDLE
    assert judge_worker(silent, NOW) == (State.GONE, "it said nothing for 3600 s")
    assert judge_worker(untold, NOW)[0] is (State.IDLE if hours > 0 else State.GONE)
    assert shown(heard, ends={0: 10}, committed={0: 10}).partitions[0].last_progress_at == NOW - 1000
    assert decode(encode(heard)) == untold, "how far it is ahead is not written down"


def test_a_route_without_a_living_worker_says_why_the_one_stopped_that_was_heard_last() -> None:
    left = record(worker="shop.r.a.0", state="stopped", at=NOW - 60_000)
    why = "shop.r.monitor has 4 partitions for 6 of the log: run `relay migrate`"
    stopped = record(worker="shop.r.b.0", state="stopped", at=NOW - 2000, last_error=why)

    assert shown(left, stopped).why == f"no worker lives: shop.r.b.0 is stopped: {why}"
    assert shown(left).why == "no worker lives: shop.r.a.0 is stopped"
    gone = record(worker="shop.r.c.0", at=NOW - 90_000)
    assert shown(left, stopped, gone).why == "no worker lives: shop.r.c.0 is gone: it said nothing for 90 s"

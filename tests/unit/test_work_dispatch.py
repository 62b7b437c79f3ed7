"""Lanes, failures and suspects as a handler's worker sees them."""

from __future__ import annotations

import pytest

from relay.queue.message import Taken, Ticket
from relay.work import dispatch as dispatching
from relay.work.dispatch import LANE_WAITING_MAX, TURNS_MAX, Dispatch, Ended, Failure, Outcome, Work
from relay.work.window import Window


def message(handle: int, lane: bytes | None = b"a", attempt: int = 1, failures: int = 0) -> Taken:
    return Taken(Ticket(handle, attempt), "p", str(handle), None, b"v", (), None, lane, 0, failures, 0, ())


def handles(work: Work | None) -> list[int]:
    return [] if work is None else [one.ticket.handle for one in work.messages]


def end(dispatch: Dispatch, work: Work | None, outcome: Outcome, cause: str = "") -> None:
    assert work is not None
    dispatch.ended([Ended(one, outcome, cause) for one in work.messages])


def test_one_message_of_a_lane_runs_at_a_time_and_lanes_run_beside_each_other() -> None:
    dispatch = Dispatch(8, 5)
    dispatch.add([message(1), message(2), message(3, b"b"), message(4, None), message(5, None)])

    assert [handles(dispatch.next()) for _ in range(5)] == [[1], [3], [4], [5], []]


def test_no_more_run_than_there_are_hands() -> None:
    dispatch = Dispatch(2, 5)
    dispatch.add([message(n, None) for n in range(3)])

    assert [handles(dispatch.next()) for _ in range(3)] == [[0], [1], []]


def test_a_head_that_fails_takes_the_rest_of_its_lane_back_and_those_go_first() -> None:
    dispatch = Dispatch(2, 5)
    dispatch.add([message(1), message(2), message(3), message(4, b"b")])
    end(dispatch, dispatch.next(), Outcome.FAILED, "no")
    writes = dispatch.writes()

    assert [ticket.handle for ticket in writes.back] == [2, 3]
    assert [(failure.ticket.handle, failure.failures) for failure in writes.failed] == [(1, 1)]
    assert handles(dispatch.next()) == [4]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.AWAY, Outcome.BACK, Outcome.LOST, Outcome.APART])
def test_whatever_sends_a_head_back_nothing_of_its_lane_runs_before_it(outcome: Outcome) -> None:
    dispatch = Dispatch(2, 5)
    dispatch.add([message(1), message(2), message(3)])
    end(dispatch, dispatch.next(), outcome)
    dispatch.add([message(4)])

    assert dispatch.next() is None
    writes = dispatch.writes()
    assert [ticket.handle for ticket in writes.back if ticket.handle != 1] == [2, 3, 4]
    assert writes.tickets() == {Ticket(handle, 1) for handle in (1, 2, 3, 4)}
    assert dispatch.in_hand == 0


@pytest.mark.parametrize(("outcome", "tries"), [(Outcome.UNUSABLE, 5), (Outcome.FAILED, 1)])
def test_what_another_member_of_the_pool_may_get_is_overtaken_by_nothing_of_its_lane(outcome: Outcome, tries: int) -> None:
    dispatch = Dispatch(2, tries)
    dispatch.add([message(1)._replace(in_pool=True), message(2), message(3)])
    end(dispatch, dispatch.next(), outcome, "no")
    dispatch.add([message(4)])

    assert dispatch.next() is None
    writes = dispatch.writes()
    assert [ticket.handle for ticket, _ in writes.unusable] == [1]
    assert [ticket.handle for ticket in writes.back] == [2, 3, 4]
    dispatch.written(writes)
    dispatch.add([message(2, attempt=2)])
    assert handles(dispatch.next()) == [2]


@pytest.mark.parametrize("failures", [0, 3, 4, 9])
def test_a_database_that_is_away_uses_up_no_try(failures: int) -> None:
    dispatch = Dispatch(1, 5)
    dispatch.add([message(1, failures=failures)])
    end(dispatch, dispatch.next(), Outcome.AWAY)

    assert dispatch.has_writes
    writes = dispatch.writes()
    assert (writes.unusable, writes.failed) == ([], [Failure(Ticket(1, 1), failures, counted=False)])


def test_what_the_handler_wrote_itself_is_counted_and_not_written_again() -> None:
    dispatch = Dispatch(1, 5)
    dispatch.add([message(1), message(2), message(3)])
    for outcome in (Outcome.WRITTEN, Outcome.WRITTEN, Outcome.DONE):
        end(dispatch, dispatch.next(), outcome)

    assert (dispatch.written_count, dispatch.ended_count, dispatch.in_hand) == (2, 3, 0)
    assert dispatch.writes().tickets() == {Ticket(3, 1)}


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.UNUSABLE, Outcome.BACK, Outcome.FAILED, Outcome.AWAY])
def test_whatever_there_is_to_write_a_worker_that_ends_waits_for_it(outcome: Outcome) -> None:
    dispatch = Dispatch(1, 5)
    dispatch.add([message(1)])
    work = dispatch.next()
    assert not dispatch.has_writes
    end(dispatch, work, outcome)
    assert dispatch.has_writes
    assert dispatch.writes().tickets() == {Ticket(1, 1)}
    assert not dispatch.has_writes


def test_without_order_messages_of_one_lane_run_beside_each_other() -> None:
    dispatch = Dispatch(2, 5, ordered=False)
    dispatch.add([message(1), message(2)])

    assert [handles(dispatch.next()) for _ in range(2)] == [[1], [2]]


def test_idle_hands_are_woken_for_every_lane_that_may_start_beside_what_runs() -> None:
    dispatch = Dispatch(3, 5)
    assert dispatch.ready == 0
    dispatch.add([message(1, b"a"), message(2, b"b"), message(3, b"c"), message(4, b"c")])
    assert dispatch.ready == 3
    dispatch.next()
    assert dispatch.ready == 2
    dispatch.next()
    dispatch.next()
    assert dispatch.ready == 0


def test_nobody_is_woken_beside_a_suspect_that_runs() -> None:
    dispatch = Dispatch(3, 5)
    dispatch.add([message(1, b"a", attempt=5), message(2, b"b")])
    suspect = dispatch.next()
    assert dispatch.ready == 0
    end(dispatch, suspect, Outcome.DONE)
    assert dispatch.ready == 1


def test_a_failure_that_was_counted_explains_one_attempt_and_not_two() -> None:
    dispatch = Dispatch(2, 9)
    dispatch.add([message(1)])
    end(dispatch, dispatch.next(), Outcome.FAILED)
    dispatch.written(dispatch.writes())

    dispatch.add([message(1, attempt=5, failures=1)])
    suspect = dispatch.next()
    assert suspect is not None
    assert suspect.alone, "three of its five attempts are explained by nothing"


def test_what_went_back_once_explains_one_attempt_and_not_two() -> None:
    dispatch = Dispatch(2, 9)
    for attempt in (1, 2):
        dispatch.add([message(1, attempt=attempt)])
        end(dispatch, dispatch.next(), Outcome.BACK)
        dispatch.written(dispatch.writes())

    dispatch.add([message(1, attempt=6)])
    suspect = dispatch.next()
    assert suspect is not None
    assert suspect.alone


def test_of_too_many_that_went_back_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatching, "EXPLAINED_MAX", 2)
    dispatch = Dispatch(1, 9)
    for handle in (1, 2, 3):
        dispatch.add([message(handle, None)])
        end(dispatch, dispatch.next(), Outcome.BACK)
        dispatch.written(dispatch.writes())

    alone = []
    for handle in (1, 2, 3):
        dispatch.add([message(handle, None, attempt=4)])
        work = dispatch.next()
        assert work is not None
        alone.append(work.alone)
        end(dispatch, work, Outcome.DONE)
    assert alone == [True, False, False]


@pytest.mark.parametrize("lane", [b"a", None])
def test_a_batch_has_no_more_than_it_may_and_the_rest_comes_next(lane: bytes | None) -> None:
    dispatch = Dispatch(1, 5, batch=2)
    dispatch.add([message(n, lane) for n in range(3)])
    batch = dispatch.next()
    assert handles(batch) == [0, 1]
    end(dispatch, batch, Outcome.DONE)
    assert handles(dispatch.next()) == [2]


def test_what_ended_and_is_not_written_yet_is_still_here() -> None:
    """After a lost answer nothing is given back that this worker knows of (found by the simulator)."""
    dispatch = Dispatch(2, 5)
    dispatch.add([message(1), message(2, b"b"), message(3, b"c")])
    first = dispatch.next()
    end(dispatch, first, Outcome.DONE)
    dispatch.next()

    assert [dispatch.has(Ticket(handle, 1)) for handle in (1, 2, 3)] == [True, True, True]
    assert not dispatch.has(Ticket(4, 1))
    dispatch.writes()
    assert not dispatch.has(Ticket(1, 1))


def test_while_a_suspect_waits_to_run_alone_nobody_is_woken_for_nothing() -> None:
    dispatch = Dispatch(3, 5)
    dispatch.add([message(1, b"a"), message(2, b"b", attempt=5)])
    running = dispatch.next()

    assert dispatch.next() is None
    assert dispatch.ready == 0
    end(dispatch, running, Outcome.DONE)
    assert dispatch.ready == 1
    assert handles(dispatch.next()) == [2]


def test_what_a_worker_lost_is_given_back_all_the_same() -> None:
    """Whoever took it for dead may have died too: a living holder would keep the message for ever (found by the simulator)."""
    dispatch = Dispatch(1, 5)
    dispatch.add([message(1)])
    end(dispatch, dispatch.next(), Outcome.LOST)

    assert dispatch.writes().back == [Ticket(1, 1)]


def test_what_was_taken_while_its_lane_failed_does_not_overtake() -> None:
    dispatch = Dispatch(2, 5)
    dispatch.add([message(1)])
    work = dispatch.next()
    earlier = dispatch.writes()
    end(dispatch, work, Outcome.FAILED)
    dispatch.written(earlier)
    dispatch.add([message(2)])

    assert handles(dispatch.next()) == []
    later = dispatch.writes()
    assert [ticket.handle for ticket in later.back] == [2]
    dispatch.written(later)
    dispatch.add([message(1, attempt=2, failures=1)])
    assert handles(dispatch.next()) == [1]


def test_the_last_try_ends_unusable_with_its_cause_and_the_lane_goes_on() -> None:
    dispatch = Dispatch(2, 3)
    dispatch.add([message(1, attempt=3, failures=2), message(2)])
    end(dispatch, dispatch.next(), Outcome.FAILED, "bad total")

    assert dispatch.writes().unusable == [(Ticket(1, 3), "bad total")]
    assert handles(dispatch.next()) == [2]


def test_what_went_back_while_a_database_was_away_does_not_run_alone_afterwards() -> None:
    dispatch = Dispatch(4, 5)
    for attempt in range(1, 6):
        # The head of a lane with the rest of it, and a message without a lane.
        dispatch.add([message(1, b"a", attempt), message(2, b"a", attempt), message(3, None, attempt)])
        for work in (dispatch.next(), dispatch.next()):
            assert work is not None
            assert not work.alone
            end(dispatch, work, Outcome.AWAY)
        dispatch.written(dispatch.writes())
    dispatch.add([message(1, b"a", 6), message(3, None, 6)])

    assert [handles(dispatch.next()), handles(dispatch.next())] == [[1], [3]]


def test_a_message_that_came_back_unexplained_runs_alone() -> None:
    dispatch = Dispatch(4, 5)
    dispatch.add([message(1, None), message(2, None, attempt=4), message(3, None)])
    first = dispatch.next()

    assert dispatch.next() is None
    end(dispatch, first, Outcome.DONE)
    suspect = dispatch.next()
    assert suspect is not None
    assert suspect.alone
    assert dispatch.next() is None
    end(dispatch, suspect, Outcome.DONE)
    assert handles(dispatch.next()) == [3]


def test_a_suspect_runs_alone_also_behind_others_of_its_lane_that_run_in_a_batch() -> None:
    dispatch = Dispatch(4, 5, batch=10)
    dispatch.add([message(1), message(2, attempt=4), message(3)])
    batch = dispatch.next()
    assert handles(batch) == [1]
    end(dispatch, batch, Outcome.DONE)
    suspect = dispatch.next()

    assert suspect is not None
    assert (handles(suspect), suspect.alone) == ([2], True)


def test_failures_explain_attempts() -> None:
    dispatch = Dispatch(4, 9)
    dispatch.add([message(1, None, attempt=6, failures=5)])
    work = dispatch.next()

    assert work is not None
    assert not work.alone


def test_a_long_lane_lets_the_others_go_first_now_and_then() -> None:
    dispatch = Dispatch(1, 5)
    dispatch.add([*[message(n) for n in range(TURNS_MAX + 5)], message(1000, b"b")])
    order = []
    for _ in range(TURNS_MAX + 2):
        work = dispatch.next()
        order += handles(work)
        end(dispatch, work, Outcome.DONE)

    assert 1000 in order
    assert order.index(1000) == TURNS_MAX


def test_a_lane_that_came_to_its_end_has_all_its_turns_again() -> None:
    dispatch = Dispatch(1, 5)
    dispatch.add([message(n) for n in range(TURNS_MAX)])
    for _ in range(TURNS_MAX):
        end(dispatch, dispatch.next(), Outcome.DONE)
    dispatch.add([message(1000), message(1001), message(1002, b"b")])
    end(dispatch, dispatch.next(), Outcome.DONE)

    assert handles(dispatch.next()) == [1001]


def test_enough_of_one_lane_is_not_taken_again() -> None:
    dispatch = Dispatch(1, 5)
    dispatch.add([message(n) for n in range(LANE_WAITING_MAX - 1)])
    dispatch.add([message(n, None) for n in range(1000, 1000 + LANE_WAITING_MAX)])
    assert list(dispatch.full_lanes()) == []
    dispatch.add([message(2000)])
    assert list(dispatch.full_lanes()) == [b"a"]
    assert all(dispatch.has(Ticket(handle, 1)) for handle in (0, 1000, 2000))

    end(dispatch, dispatch.next(), Outcome.DONE)

    assert list(dispatch.full_lanes()) == []


def test_of_a_full_lane_that_went_back_messages_are_taken_again() -> None:
    dispatch = Dispatch(1, 5)
    dispatch.add([message(n) for n in range(LANE_WAITING_MAX + 1)])
    work = dispatch.next()
    assert list(dispatch.full_lanes()) == [b"a"], "as many as may wait still do"
    end(dispatch, work, Outcome.FAILED)

    assert list(dispatch.full_lanes()) == []


def test_a_batch_that_fails_runs_again_one_by_one_in_order() -> None:
    dispatch = Dispatch(4, 5, batch=10)
    dispatch.add([message(1), message(2), message(3, b"b")])
    batch = dispatch.next()
    assert handles(batch) == [1, 2, 3]
    end(dispatch, batch, Outcome.SPLIT)

    one, other = dispatch.next(), dispatch.next()
    assert sorted([handles(one), handles(other)]) == [[1], [3]]
    assert dispatch.next() is None
    end(dispatch, one if handles(one) == [1] else other, Outcome.DONE)
    assert handles(dispatch.next()) == [2]


def test_what_was_to_run_by_itself_and_has_ended_or_went_back_runs_in_a_batch_when_it_comes_again() -> None:
    dispatch = Dispatch(1, 5, batch=4)
    dispatch.add([message(1), message(2)])
    end(dispatch, dispatch.next(), Outcome.SPLIT)
    end(dispatch, dispatch.next(), Outcome.UNUSABLE)
    dispatch.give_back()
    dispatch.written(dispatch.writes())

    dispatch.add([message(1, attempt=2), message(2, attempt=2), message(3)])

    assert handles(dispatch.next()) == [1, 2, 3], "nothing is remembered of what others may have now"


def test_a_batch_that_may_have_left_something_under_its_name_goes_back_and_each_runs_as_another_attempt() -> None:
    dispatch = Dispatch(4, 5, batch=10)
    dispatch.add([message(1), message(2), message(3, b"b")])
    end(dispatch, dispatch.next(), Outcome.APART)
    assert dispatch.next() is None, "a ticket that comes again is the same attempt"

    writes = dispatch.writes()
    assert [ticket.handle for ticket in writes.back] == [1, 2, 3]
    assert not writes.failed, "it is nobody's failure yet"
    dispatch.written(writes)
    dispatch.add([message(1, attempt=2), message(2, attempt=2), message(3, b"b", attempt=2), message(4, b"c")])

    assert sorted(handles(dispatch.next()) for _ in range(3)) == [[1], [3], [4]]


def test_giving_back_keeps_what_runs() -> None:
    dispatch = Dispatch(1, 5)
    dispatch.add([message(1), message(2), message(3, b"b")])
    work = dispatch.next()
    dispatch.give_back()

    assert sorted(ticket.handle for ticket in dispatch.writes().back) == [2, 3]
    assert dispatch.in_hand == 1
    end(dispatch, work, Outcome.DONE)
    assert dispatch.in_hand == 0


def test_a_head_that_fails_while_the_rest_of_its_lane_is_written_back_is_not_overtaken_by_it() -> None:
    dispatch = Dispatch(1, 5)
    dispatch.add([message(1), message(2)])
    work = dispatch.next()
    dispatch.give_back()
    earlier = dispatch.writes()
    assert [ticket.handle for ticket in earlier.back] == [2]
    end(dispatch, work, Outcome.FAILED)
    dispatch.written(earlier)
    dispatch.add([message(2, attempt=2)])

    assert handles(dispatch.next()) == []
    assert [ticket.handle for ticket in dispatch.writes().back] == [2]


def test_the_window_follows_the_rate_between_its_bounds() -> None:
    window = Window(64)
    assert window.size == 128
    for _ in range(50):
        window.note(250, 0.02)
    assert 3000 < window.size < 3200
    for _ in range(50):
        window.note(0, 0.02)
    assert window.size == 128

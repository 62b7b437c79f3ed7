"""Whatever ends how and when: each message ends once, and each lane in its order, against a small model of the queue."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from relay.queue.message import Taken, Ticket
from relay.work.dispatch import Dispatch, Outcome, Work
from tests.unit.test_work_dispatch import end, message


class Model:
    """A queue of one subscriber: gives each lane in order, nothing ahead of what is held or waits for its retry."""

    def __init__(self, lanes: Sequence[bytes | None]) -> None:
        self.lanes = dict(enumerate(lanes))
        self.state = dict.fromkeys(self.lanes, "available")
        self.attempts = dict.fromkeys(self.lanes, 0)
        self.failures = dict.fromkeys(self.lanes, 0)
        self.retry: set[int] = set()

    def take(self, limit: int, without: Sequence[bytes]) -> list[Taken]:
        found: list[Taken] = []
        blocked: set[bytes] = set(without)
        for handle, lane in self.lanes.items():
            if self.state[handle] != "available" or len(found) >= limit:
                continue
            if lane is not None and lane in blocked:
                continue
            if handle in self.retry:
                blocked |= {lane} if lane is not None else set()
                continue
            self.state[handle] = "taken"
            self.attempts[handle] += 1
            found.append(message(handle, lane, self.attempts[handle], self.failures[handle]))
        return found

    def write(self, dispatch: Dispatch) -> None:
        writes = dispatch.writes()
        for ticket in writes.done:
            self._leave(ticket, "done")
        for ticket, _ in writes.unusable:
            self._leave(ticket, "unusable")
        for ticket in writes.back:
            self._leave(ticket, "available")
        for failure in writes.failed:
            self._leave(failure.ticket, "available")
            self.failures[failure.ticket.handle] += failure.counted
            self.retry.add(failure.ticket.handle)
        dispatch.written(writes)

    def _leave(self, ticket: Ticket, state: str) -> None:
        assert self.state[ticket.handle] == "taken"
        assert self.attempts[ticket.handle] == ticket.attempt
        self.state[ticket.handle] = state


LANES = st.lists(st.sampled_from([b"a", b"b", b"c", None]), max_size=30)
OTHERS = [one for one in Outcome if one not in {Outcome.DONE, Outcome.WRITTEN}]
ENDS = st.sampled_from([Outcome.DONE] * 4 + OTHERS)


STEPS = st.lists(st.sampled_from(["cycle", "next", "next", "end", "end inside", "due"]), max_size=60)


@settings(max_examples=100)
@given(lanes=LANES, batch=st.sampled_from([1, 4]), steps=STEPS, ends=st.lists(ENDS, max_size=60))
def test_every_message_ends_once_and_each_lane_in_its_order(
    lanes: list[bytes | None], batch: int, steps: list[str], ends: list[Outcome]
) -> None:
    queue, dispatch = Model(lanes), Dispatch(3, 3, batch=batch)
    running: list[Work] = []
    finished: list[int] = []
    for step in [*steps, *["due", "cycle", "next", "end"] * 200]:
        if step in {"cycle", "end inside"}:
            queue.write(dispatch)
            taken = queue.take(5, list(dispatch.full_lanes()))
            if step == "end inside" and running:
                # A handler ends while the take is under way.
                _finish(dispatch, running.pop(), ends, finished)
            dispatch.add(taken)
        elif step == "next" and (work := dispatch.next()) is not None:
            running.append(work)
        elif step == "end" and running:
            _finish(dispatch, running.pop(0), ends, finished)
        elif step == "due":
            queue.retry.clear()
        assert len(running) <= 3
        lanes_now = [
            lane for work in running for lane in {one.lane for one in work.messages} if lane is not None
        ]
        assert len(lanes_now) == len(set(lanes_now)), "one lane runs twice at once"
    assert all(state in {"done", "unusable"} for state in queue.state.values()), queue.state

    for lane in {lane for lane in lanes if lane is not None}:
        ours = [handle for handle in finished if queue.lanes[handle] == lane]
        assert ours == sorted(ours)
    assert sorted(finished) == sorted(queue.lanes)


def _finish(dispatch: Dispatch, work: Work, ends: list[Outcome], finished: list[int]) -> None:
    outcome = ends.pop() if ends else Outcome.DONE
    if outcome in {Outcome.SPLIT, Outcome.APART} and len(work.messages) == 1:
        outcome = Outcome.DONE
    if len(work.messages) > 1 and outcome in {Outcome.FAILED, Outcome.UNUSABLE, Outcome.BACK, Outcome.AWAY, Outcome.LOST}:
        outcome = Outcome.SPLIT
    ended = {Outcome.DONE, Outcome.UNUSABLE}
    finished += [
        one.ticket.handle
        for one in work.messages
        if outcome in ended or (outcome is Outcome.FAILED and one.failures + 1 >= 3)
    ]
    end(dispatch, work, outcome)

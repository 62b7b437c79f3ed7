"""US 6,970,945, paragraphs [65] to [80]: point of sale, customer database and credit approval over two queues fail where a scenario says.

"Inbound" is the document's first queue, "outbound" its second; the customer database module takes from one and puts into the
other. A failure is an exception at a named step, after which nothing but the stores is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from relay.message.errors import Unreachable
from relay.queue import attempts, recovery
from relay.queue.attempts import AttemptAborted, AttemptName, accept_children, commit_here, put_children
from relay.queue.message import Audience, Group, NewMessage, Parent, Taken
from relay.queue.port import Holder, QueueStore
from relay.queue.recovery import Recovery
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.withholding import reveal_kept
from tests.contracts.queue_book import QueueBook

P, S = PublisherState, SubscriberState
NOW = 1_000_000
MODULE = b"customer database"


class Died(BaseException):
    """The process ended here."""


class Place:
    """Two queues and what is left to run on them; ``resource`` decides where the effects are in a database of their own."""

    def __init__(self, make: Callable[[QueueSettings], QueueStore]) -> None:
        self.inbound = make(QueueSettings("inbound", Audience((Group("customer", ("customer",)),))))
        self.outbound = make(QueueSettings("outbound", Audience((Group("approval", ("approval",)),))))
        self.queues = {"inbound": self.inbound, "outbound": self.outbound}
        self.decided: dict[str, bool] = {}
        self.resource_away = False
        self.inbound.enter(Holder(MODULE, "customer", 0, None))

    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:
        """The outcomes of a resource of its own."""
        if self.resource_away:
            raise Unreachable("resources.shop: the database does not answer")
        return self.decided.setdefault(attempt, committed)

    def recovery(self) -> Recovery:
        return Recovery(self.queues, {"queue:inbound": self.inbound, "queue:outbound": self.outbound, "resource:shop": self})

    def sale(self, name: str = "sale-1", *, reveal: bool = True) -> int:
        message = NewMessage("/pos", name, b"42", lane=b"/pos")
        return self.inbound.put([message], NOW, reveal=reveal)[0].handle

    def take(self) -> Taken:
        (taken,) = self.inbound.take("customer", MODULE, 1, NOW)
        return taken

    def attempt(self, taken: Taken, deciding: str = "queue:inbound") -> str:
        return AttemptName(deciding, "inbound", self.inbound.uuid, "customer", taken.ticket).encode()

    def put_child(self, taken: Taken, attempt: str) -> list[attempts.PutChildren]:
        child = NewMessage("/customer", f"of-{taken.id}", b"42 and the account", lane=b"/pos")
        return put_children(attempt, [Parent("inbound", taken.ticket.handle, "customer")], {"outbound": [child]}, self.queues, NOW)

    def decide_here(self, taken: Taken, attempt: str) -> None:
        with self.inbound.transaction():
            if not all(self.inbound.finish("customer", [taken.ticket], NOW)):
                raise AttemptAborted("the ticket is not valid any more")
            commit_here(self.inbound, attempt, NOW)

    def process(self) -> None:
        """What the customer database module does with one message, from end to end."""
        taken = self.take()
        attempt = self.attempt(taken)
        put = self.put_child(taken, attempt)
        self.decide_here(taken, attempt)
        accept_children(put, self.queues, NOW)

    def recover(self) -> None:
        """Steps 1 to 5: the module is known to be dead."""
        run = self.recovery()
        for holder in self.inbound.holders():
            run.holder("inbound", holder, NOW)
        run.children("outbound", NOW)

    def states(self, store: QueueStore, handle: int = 1) -> tuple[PublisherState, SubscriberState]:
        view = store.view(handle)
        assert view is not None
        return view.state, view.subscribers[0].state

    def live_children(self) -> int:
        return sum(view.state in (P.PUT, P.REVEALED, P.JOURNALLED) for view in self._children())

    def _children(self) -> list:
        return [view for n in range(1, 20) if (view := self.outbound.view(n)) is not None]


@pytest.fixture
def place() -> Place:
    return Place(QueueBook)


@contextmanager
def dying(module, name: str, nth: int = 1) -> Iterator[list[str]]:
    """Die when the step ``name`` of ``module`` is reached for the nth time."""
    reached: list[str] = []

    def step(found: str) -> None:
        reached.append(found)
        if reached.count(name) == nth and found == name:
            raise Died

    before, module.crash_point = module.crash_point, step
    try:
        yield reached
    finally:
        module.crash_point = before


# The point of sale fails ------------------------------------------------------------------------------------------


def test_72_a_message_put_and_not_fetched_is_revealed_by_its_publisher(place: Place) -> None:
    place.sale(reveal=False)
    assert place.inbound.take("customer", MODULE, 1, NOW) == []

    reveal_kept(place.inbound, "/pos", NOW)

    assert place.states(place.inbound) == (P.REVEALED, S.AVAILABLE)


def test_72_nobody_else_reveals_it_nor_ahead_of_its_delay(place: Place) -> None:
    place.inbound.put([NewMessage("/pos", "later", b"1", delay_ms=500)], NOW)
    place.sale(reveal=False)

    reveal_kept(place.inbound, "/another", NOW)
    place.recovery().children("inbound", NOW)
    assert place.states(place.inbound, 2) == (P.PUT, S.AVAILABLE)

    assert reveal_kept(place.inbound, "/pos", NOW) == 1
    assert place.states(place.inbound, 1)[0] is P.PUT
    assert place.states(place.inbound, 2)[0] is P.REVEALED
    assert reveal_kept(place.inbound, "/pos", NOW) == 0


def test_73_a_fetched_message_is_left_to_its_subscriber(place: Place) -> None:
    place.sale()
    place.take()

    reveal_kept(place.inbound, "/pos", NOW)

    assert place.states(place.inbound) == (P.REVEALED, S.FETCHED)


# Credit approval fails --------------------------------------------------------------------------------------------


def test_75_a_message_fetched_and_not_done_is_given_back(place: Place) -> None:
    place.outbound.put([NewMessage("/customer", "a", b"1")], NOW)
    place.outbound.enter(Holder(b"approval", "approval", 0, None))
    (taken,) = place.outbound.take("approval", b"approval", 1, NOW)
    place.outbound.start("approval", [taken.ticket], NOW)

    place.recovery().holder("outbound", Holder(b"approval", "approval", 0, None), NOW)

    assert place.states(place.outbound) == (P.REVEALED, S.AVAILABLE)
    assert place.outbound.finish("approval", [taken.ticket], NOW) == [False], "what the dead worker still says counts for nothing"


# The customer database fails --------------------------------------------------------------------------------------


def test_77_fetched_and_nothing_put_it_is_given_back(place: Place) -> None:
    place.sale()
    place.take()

    place.recover()

    assert place.states(place.inbound) == (P.REVEALED, S.AVAILABLE)


def test_78_fetched_and_put_and_not_done_the_child_goes_and_the_parent_is_given_back(place: Place) -> None:
    place.sale()
    with dying(attempts, "attempt.child"), pytest.raises(Died):
        place.process()

    place.recover()

    assert place.states(place.outbound)[0] is P.DELETED
    assert place.states(place.inbound) == (P.REVEALED, S.AVAILABLE)


def test_79_fetched_put_and_done_the_child_is_revealed(place: Place) -> None:
    place.sale()
    taken = place.take()
    attempt = place.attempt(taken)
    place.put_child(taken, attempt)
    place.decide_here(taken, attempt)

    place.recover()

    assert place.states(place.outbound) == (P.REVEALED, S.AVAILABLE)
    assert place.states(place.inbound) == (P.JOURNALLED, S.JOURNALLED)


# What the steps would do if they were taken literally -------------------------------------------------------------


def test_68_a_child_of_a_dead_attempt_is_not_revealed_by_another_attempts_done(place: Place) -> None:
    place.sale()
    with dying(attempts, "attempt.child"), pytest.raises(Died):
        place.process()
    (dead,) = place.inbound.holders()
    place.recovery().holder("inbound", dead, NOW)
    place.inbound.enter(Holder(MODULE, "customer", 0, None))

    place.process()
    assert place.states(place.inbound) == (P.JOURNALLED, S.JOURNALLED)
    place.recover()

    assert place.live_children() == 1, "the parent is DONE, by another attempt: its first child must go"
    assert place.states(place.outbound, 1)[0] is P.DELETED
    assert place.states(place.outbound, 2)[0] is P.REVEALED


def test_68_a_child_whose_parent_was_archived_is_kept(place: Place) -> None:
    place.sale()
    taken = place.take()
    attempt = place.attempt(taken)
    place.put_child(taken, attempt)
    place.decide_here(taken, attempt)
    assert place.inbound.trim([taken.ticket.handle]) == 1

    place.recover()

    assert place.states(place.outbound)[0] is P.REVEALED


def test_68_no_parent_is_marked_done_by_another_parents_child(place: Place) -> None:
    place.sale("sale-1")
    place.sale("sale-2")
    place.process()
    taken = place.take()

    place.recover()

    assert place.states(place.inbound, taken.ticket.handle) == (P.REVEALED, S.AVAILABLE)


def test_70_a_living_attempt_is_left_alone(place: Place) -> None:
    place.sale()
    taken = place.take()
    attempt = place.attempt(taken)
    put = place.put_child(taken, attempt)

    place.recovery().children("outbound", NOW)
    assert place.states(place.outbound)[0] is P.PUT

    place.decide_here(taken, attempt)
    accept_children(put, place.queues, NOW)
    assert place.states(place.outbound)[0] is P.REVEALED


def test_70_a_worker_that_was_taken_for_dead_cannot_decide_any_more(place: Place) -> None:
    place.sale()
    taken = place.take()
    attempt = place.attempt(taken)
    place.put_child(taken, attempt)
    place.recover()

    with pytest.raises(AttemptAborted):
        place.decide_here(taken, attempt)

    assert place.live_children() == 0
    assert place.states(place.inbound) == (P.REVEALED, S.AVAILABLE)


# A resource decides -----------------------------------------------------------------------------------------------


@pytest.fixture
def held(place: Place) -> Holder:
    place.inbound.leave(MODULE)
    holder = Holder(MODULE, "customer", 0, "resource:shop")
    place.inbound.enter(holder)
    place.sale()
    return holder


@pytest.mark.parametrize("committed", [True, False])
def test_78_where_a_resource_decides_its_outcome_is_obeyed(place: Place, held: Holder, committed: bool) -> None:
    taken = place.take()
    attempt = place.attempt(taken, "resource:shop")
    place.put_child(taken, attempt)
    if committed:
        commit_here(place, attempt, NOW)

    place.recover()

    expected = (P.JOURNALLED, S.JOURNALLED) if committed else (P.REVEALED, S.AVAILABLE)
    assert place.states(place.inbound) == expected
    assert place.states(place.outbound)[0] is (P.REVEALED if committed else P.DELETED)
    if not committed:
        with pytest.raises(AttemptAborted):
            commit_here(place, attempt, NOW)


def test_78_a_deciding_store_that_is_away_leaves_everything_and_says_so(place: Place, held: Holder) -> None:
    taken = place.take()
    attempt = place.attempt(taken, "resource:shop")
    place.put_child(taken, attempt)
    place.resource_away = True

    done = place.recovery().holder("inbound", held, NOW)
    assert len(done.stuck) == 1
    assert "resources.shop" in done.stuck[0]
    assert place.states(place.inbound) == (P.REVEALED, S.FETCHED)
    assert place.states(place.outbound)[0] is P.PUT

    place.resource_away = False
    place.recover()
    assert place.states(place.inbound) == (P.REVEALED, S.AVAILABLE)


# Recovery itself fails --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["recovery.outcome", "recovery.freed"])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("died_at", ["attempt.child", "attempt.accepted"])
def test_80_recovery_killed_at_any_step_ends_as_one_clean_run(place: Place, step: str, nth: int, died_at: str) -> None:
    for n in range(3):
        place.sale(f"sale-{n}")
    place.process()
    with dying(attempts, died_at), pytest.raises(Died):
        place.process()
    place.take()

    for turn in range(1, nth + 1):
        try:
            with dying(recovery, step, turn):
                place.recover()
        except Died:
            continue
    place.recover()

    while place.inbound.counts()[0].get(P.REVEALED):
        if not place.inbound.holders():
            place.inbound.enter(Holder(MODULE, "customer", 0, None))
        place.process()
    place.recover()
    assert place.live_children() == 3, "each sale has one child that shows, whatever died"
    assert not place.outbound.children(10)

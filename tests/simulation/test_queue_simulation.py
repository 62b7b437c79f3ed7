"""A share of the search over queues with every test run, and guards without which it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from relay.queue.attempts import AttemptName
from relay.queue.message import Ticket
from relay.queue.recovery import Recovered, Recovery
from relay.work.children import HiddenChildren
from relay.work.dispatch import Dispatch
from relay.work.forgetting import Forgetting
from relay.work.leases import Leases
from tests.contracts.queue_book import QueueBook
from tests.simulation.installation import StandIn, replaced
from tests.simulation.queue_removals import recovery_taken_literally
from tests.simulation.queue_site import Shop, ShopDesk
from tests.simulation.queue_trial import run_queue


def _only_what_waits_or_runs(self: Dispatch, ticket: Ticket) -> bool:
    waiting = any(one.ticket == ticket for lane in self._waiting.values() for one in lane)
    return waiting or ticket.handle in self._running


def ended_forgotten() -> list[StandIn]:
    """After a lost answer, what has ended and is not written yet is given back."""
    return [(Dispatch, "has", _only_what_waits_or_runs)]


def aborted_not_written() -> list[StandIn]:
    """Recovery looks for an attempt's outcome and writes none where there is none."""

    def look(self: Recovery, name: AttemptName, _done: Recovered, _now: int) -> bool:
        deciding: Any = self._deciding[name.deciding]
        if name.deciding.startswith("queue:"):
            return bool(deciding.outcome(name.encode()))
        shop: Shop = deciding._shop
        return shop.outcomes.get(name.encode(), False)

    return [(Recovery, "_settle", look)]


def commit_refuses_nothing() -> list[StandIn]:
    """An attempt commits, whatever outcome stands."""

    def settle(self: ShopDesk, attempt: str, *, committed: bool, now: int) -> bool:
        del now
        stands = self._shop.outcomes.setdefault(attempt, committed)
        return True if committed else stands

    return [(ShopDesk, "settle", settle)]


def attempt_ignored() -> list[StandIn]:
    """Whoever names a message writes its states, whichever attempt is its own."""
    guarded = QueueBook._with

    def ignoring(self: QueueBook, subscriber: str, ticket: Ticket, event: Any, now: int) -> Any:
        entry = self._entries.get(ticket.handle)
        row = entry.row(subscriber) if entry else None
        return guarded(self, subscriber, ticket if row is None else Ticket(ticket.handle, row.attempt), event, now)

    return [(QueueBook, "_with", ignoring)]


def impatient() -> list[StandIn]:
    """A worker's messages are given away at the first look, with no lease: order and once-only must hold all the same."""
    return [(Leases, "silent", lambda self, holders, now: [one for one in holders if one.id != self._own])]


def undecided_children_overtaken() -> list[StandIn]:
    """A child whose attempt has no outcome yet holds no place in its lane."""
    lanes = QueueBook._lanes

    def shown(self: QueueBook, subscriber: str, now: int) -> Any:
        found = lanes(self, subscriber, now)
        return {lane: kept for lane, mine in found.items() if (kept := [one for one in mine if one[0].attempt is None])}

    return [(QueueBook, "_lanes", shown)]


def forgotten_before_done() -> list[StandIn]:
    """An attempt's outcome is forgotten while its message is not DONE in the queue yet."""
    return [(Forgetting, "left_nothing", lambda self, attempts: self.over(attempts.values()))]


def forgotten_before_shown() -> list[StandIn]:
    """An attempt's outcome is forgotten though one of its children still waits for it."""
    show = HiddenChildren.show

    def shown(self: HiddenChildren) -> bool:
        show(self)
        return True

    return [(HiddenChildren, "show", shown)]


SEARCHED: Final[dict[Callable[[], list[StandIn]], tuple[tuple[int, ...], str]]] = {
    ended_forgotten: ((286,), "inversion"),
    aborted_not_written: ((0, 38), "duplicate child"),
    commit_refuses_nothing: ((19, 30, 38), "duplicate effect"),
    attempt_ignored: ((117,), "duplicate child"),
    undecided_children_overtaken: ((16, 56, 62), "inversion"),
    recovery_taken_literally: ((0, 1, 3), "duplicate child"),
    forgotten_before_done: ((38, 43, 52), "duplicate child"),
    forgotten_before_shown: ((46, 56), "lost child"),
}
"""Of each removal: seeds of which one at least must fail, and the anomaly it leads to."""
HASTENED: Final = (aborted_not_written, commit_refuses_nothing, attempt_ignored)
"""Removals that only a takeover shows. It is made frequent: that impatience alone breaks nothing is shown below."""


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_no_seed_of_queues_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + 10):
        assert not run_queue(seed).problems, f"python -m tests.simulation.run --kind queue --seed {seed} --trace"


@pytest.mark.parametrize("removal", SEARCHED, ids=lambda removal: removal.__name__)
def test_the_search_finds_a_removed_guard_of_queues(removal: Callable[[], list[StandIn]]) -> None:
    seeds, anomaly = SEARCHED[removal]
    with replaced([*removal(), *(impatient() if removal in HASTENED else [])]):
        assert any(problem.startswith(anomaly) for seed in seeds for problem in run_queue(seed).problems)


def test_without_patience_for_a_lease_nothing_happens_twice_or_out_of_order() -> None:
    """Leases are for progress only: safety rests on tickets and outcomes."""
    for seed in (*range(6), *(seed for removal in HASTENED for seed in SEARCHED[removal][0])):
        with replaced(impatient()):
            assert not [one for one in run_queue(seed).problems if "I18" not in one]

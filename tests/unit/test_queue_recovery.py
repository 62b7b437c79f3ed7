"""Recovery of what a dead worker holds, where the deciding store answers for some attempts and not for others."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from relay.message.errors import ConfigError, Stopped, Unreachable
from relay.queue.attempts import AttemptName, Outcomes
from relay.queue.message import Audience, Group, NewMessage, Parent, Ticket
from relay.queue.port import Holder, QueueStore, StoreAway
from relay.queue.recovery import BATCH, Recovery
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState
from relay.work.backoff import Backoff
from relay.work.upkeep import Upkeep
from tests.contracts.queue_book import QueueBook

CLERK, CUSTOMER = b"a clerk---------", b"a customer------"
IN_ORDER = Audience((Group("clerk", ("clerk",)), Group("customer", ("customer",))), in_order=True)
CLERK_ALONE = Audience((Group("clerk", ("clerk",)),))


class Shop:
    """Has committed every attempt, and does not answer the first time it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:
        self.asked += 1
        if self.asked == 1:
            raise StoreAway("the store does not answer")
        return True


def test_nothing_shows_to_the_next_group_before_what_stands_before_it_in_its_lane() -> None:
    book = QueueBook(QueueSettings("sales", IN_ORDER))
    dead = Holder(CLERK, "clerk", 0, "resource:shop")
    book.enter(dead)
    book.enter(Holder(CUSTOMER, "customer", 0, None))
    book.put([NewMessage("p", str(number), b"", lane=b"a") for number in (1, 2)], 1)
    held = [taken.ticket.handle for taken in book.take("clerk", CLERK, 2, 1)]
    recovery = Recovery({"sales": cast("QueueStore", book)}, {"resource:shop": cast("Outcomes", Shop())})

    done = recovery.holder("sales", dead, 2)

    assert (len(done.stuck), done.finished) == (1, 0)
    assert book.take("customer", CUSTOMER, 2, 2) == []
    assert dead in book.holders(), "it has something still"

    done = recovery.holder("sales", dead, 3)

    assert (done.stuck, done.finished) == ([], 2)
    assert [taken.ticket.handle for taken in book.take("customer", CUSTOMER, 2, 3)] == held
    assert [holder.id for holder in book.holders()] == [CUSTOMER]


class Ledger:
    """Holds what two attempts prepared, the first of which it does not let go."""

    def __init__(self) -> None:
        self.finished: list[str] = []
        self.names = [
            AttemptName("resource:shop", "sales", "u", "clerk", Ticket(handle, 1)).encode() for handle in (1, 2)
        ]

    def pending(self) -> list[str]:
        return self.names

    def finish(self, attempt: str, *, committed: bool) -> bool:
        if attempt == self.names[0]:
            raise Unreachable("another session holds it")
        self.finished.append(attempt)
        return committed


def answering() -> Shop:
    shop = Shop()
    shop.asked = 1
    return shop


def test_a_prepared_transaction_that_cannot_be_finished_does_not_keep_the_others() -> None:
    ledger = Ledger()
    book = cast("QueueStore", QueueBook(QueueSettings("sales", IN_ORDER)))
    recovery = Recovery({"sales": book}, {"resource:shop": cast("Outcomes", answering())})

    done = recovery.prepared("ledger", ledger, 1)

    assert ledger.finished == ledger.names[1:]
    assert (len(done.stuck), done.finished) == (1, 1)


class Outcome:
    """A store that knows how some attempts ended, and writes (aborted) for the others."""

    def __init__(self, *committed: str) -> None:
        self.stands = dict.fromkeys(committed, True)

    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:
        return self.stands.setdefault(attempt, committed)


class Bank:
    """A further database; what is ``over`` was finished by another worker meanwhile."""

    def __init__(self, *names: str, over: str = "") -> None:
        self.names = names
        self.over = over
        self.finished: list[tuple[str, bool]] = []

    def pending(self) -> list[str]:
        return list(self.names)

    def finish(self, attempt: str, *, committed: bool) -> bool:
        if attempt == self.over:
            return False
        self.finished.append((attempt, committed))
        return True


def attempt(book: QueueBook, ticket: Ticket, deciding: str = "resource:shop") -> str:
    return AttemptName(deciding, book.settings.name, book.uuid, "clerk", ticket).encode()


def test_what_is_prepared_is_finished_by_its_outcome_and_what_still_runs_is_left_alone() -> None:
    book = QueueBook(QueueSettings("sales", CLERK_ALONE))
    book.enter(Holder(CLERK, "clerk", 0, "resource:shop"))
    book.put([NewMessage("p", "1", b"")], 1)
    (running,) = book.take("clerk", CLERK, 1, 1)
    runs = attempt(book, running.ticket)
    committed, again, aborted, over, over_too = (attempt(book, Ticket(number, 1)) for number in range(11, 16))
    shop = Outcome(committed, again, over)
    recovery = Recovery({"sales": cast("QueueStore", book)}, {"resource:shop": shop})

    bank = Bank(runs, committed, again, aborted, over, over=over)
    done = recovery.prepared("bank", bank, 2)

    assert bank.finished == [(committed, True), (again, True), (aborted, False)]
    assert shop.stands == {committed: True, again: True, over: True, aborted: False}, "(aborted) stands before it is rolled back"
    assert (done.finished, done.discarded, done.stuck) == (2, 1, [])
    assert not recovery.prepared("bank", Bank(over_too, over=over_too), 2).discarded, "another worker's doing"


def test_the_queue_that_decides_itself_gives_back_at_once() -> None:
    book = QueueBook(QueueSettings("sales", CLERK_ALONE))
    dead = Holder(CLERK, "clerk", 0, "queue:sales")
    book.enter(dead)
    book.put([NewMessage("p", "1", b"")], 1)
    book.take("clerk", CLERK, 1, 1)

    done = Recovery({"sales": cast("QueueStore", book)}, {}).holder("sales", dead, 2)

    assert (done.freed, done.stuck, book.holders()) == (1, [], [])


def test_a_queue_made_anew_under_a_name_does_not_keep_the_old_ones_children() -> None:
    sales, credit = QueueBook(QueueSettings("sales", CLERK_ALONE)), QueueBook(QueueSettings("credit", CLERK_ALONE))
    sales.enter(Holder(CLERK, "clerk", 0, None))
    sales.put([NewMessage("p", "1", b"")], 1)
    (running,) = sales.take("clerk", CLERK, 1, 1)
    names = [
        AttemptName("resource:shop", "sales", uuid, "clerk", running.ticket).encode() for uuid in (sales.uuid, "the old one's")
    ]
    parents = (Parent("sales", 1, "clerk"),)
    mine, old = credit.put([NewMessage("sales/clerk", name, b"", parents=parents, attempt=name) for name in names], 1)
    queues = {"sales": cast("QueueStore", sales), "credit": cast("QueueStore", credit)}

    Recovery(queues, {"resource:shop": Outcome()}).children("credit", 2)

    assert [view.handle for view in credit.children(5)] == [mine.handle]
    view = credit.view(old.handle)
    assert view is not None
    assert view.state is PublisherState.DELETED


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no attempt", "which is no attempt of a queue"),
        ("resource:shop/sales/u/clerk/1/1", "an attempt in queue 'sales', which is not configured here"),
        ("resource:shop/credit/u/clerk/1/1", "decided by resource:shop, which is not configured here"),
    ],
)
def test_what_nobody_here_can_decide_stays_and_is_said(name: str, said: str) -> None:
    credit = QueueBook(QueueSettings("credit", CLERK_ALONE))
    credit.put([NewMessage("sales/clerk", "1", b"", parents=(Parent("sales", 1, "clerk"),), attempt=name)], 1)

    done = Recovery({"credit": cast("QueueStore", credit)}, {}).children("credit", 2)

    assert len(credit.children(5)) == 1
    (sentence,) = done.stuck
    assert said in sentence


def test_a_further_database_that_is_away_does_not_keep_what_another_holds(tmp_path: Path) -> None:
    ledger = Ledger()
    book = QueueBook(QueueSettings("sales", IN_ORDER))
    living = Holder(CLERK, "clerk", 0, None)
    book.enter(living)

    def away(_: ExitStack) -> Ledger:
        raise Unreachable("the database does not answer")

    upkeep = Upkeep(
        "sales", {"sales": cast("QueueStore", book)}, lambda _: {"resource:shop": cast("Outcomes", answering())},
        living, tmp_path, 60.0, Backoff(), {"audit": away, "ledger": lambda _: ledger},
    )  # fmt: skip

    upkeep.once(10.0)

    assert ledger.finished == ledger.names[1:]


def test_a_child_behind_many_that_nobody_can_decide_is_decided(tmp_path: Path) -> None:
    sales, credit = QueueBook(QueueSettings("sales", IN_ORDER)), QueueBook(QueueSettings("credit", CLERK_ALONE))

    def child(deciding: str, number: int) -> NewMessage:
        attempt = AttemptName(deciding, "sales", sales.uuid, "clerk", Ticket(number, 1)).encode()
        parents = (Parent("sales", number, "clerk"),)
        return NewMessage("sales/clerk", str(number), b"", parents=parents, attempt=attempt)

    children = [child("resource:lost", number) for number in range(1, 3 * BATCH)]
    last = credit.put([*children, child("resource:shop", 3 * BATCH)], 1)[-1].handle
    living = Holder(CLERK, "clerk", 0, None)
    credit.enter(living)
    queues = {"sales": cast("QueueStore", sales), "credit": cast("QueueStore", credit)}
    upkeep = Upkeep(
        "credit", queues, lambda _: {"resource:shop": cast("Outcomes", answering())}, living, tmp_path, 60.0, Backoff()
    )

    for second in range(10, 20):
        upkeep.once(float(second))

    view = credit.view(last)
    assert view is not None
    assert view.state is PublisherState.REVEALED


class NotHere(dict[str, QueueStore]):
    """Queues of which one lies on another host."""

    def __getitem__(self, name: str) -> QueueStore:
        if name == "sales":
            raise Stopped("queue 'sales' lies in sales.db, which is not there")
        return super().__getitem__(name)

    get = Mapping.get


class NoTables:
    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:
        raise ConfigError("the relay's tables are missing; run `relay migrate`")


@pytest.mark.parametrize("asked", ["sales", "orders"])
def test_what_a_person_must_mend_keeps_children_waiting_and_ends_no_worker(asked: str) -> None:
    credit, orders = QueueBook(QueueSettings("credit", CLERK_ALONE)), QueueBook(QueueSettings("orders", CLERK_ALONE))
    attempt = AttemptName("resource:shop", asked, orders.uuid, "clerk", Ticket(1, 1)).encode()
    credit.put([NewMessage(f"{asked}/clerk", "1", b"", parents=(Parent(asked, 1, "clerk"),), attempt=attempt)], 1)
    queues = NotHere({"sales": cast("QueueStore", orders), "orders": cast("QueueStore", orders)})
    queues["credit"] = cast("QueueStore", credit)

    done = Recovery(queues, {"resource:shop": cast("Outcomes", NoTables())}).children("credit", 2)

    assert (len(done.stuck), done.discarded) == (1, 0)

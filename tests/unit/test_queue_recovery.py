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

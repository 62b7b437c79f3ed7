"""Recovery of what a dead worker holds, where the deciding store answers for some attempts and not for others."""

from __future__ import annotations

from typing import cast

from relay.queue.attempts import Outcomes
from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Holder, QueueStore, StoreAway
from relay.queue.recovery import Recovery
from relay.queue.settings import QueueSettings
from tests.contracts.queue_book import QueueBook

CLERK, CUSTOMER = b"a clerk---------", b"a customer------"
IN_ORDER = Audience((Group("clerk", ("clerk",)), Group("customer", ("customer",))), in_order=True)


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

    done = recovery.holder("sales", dead, 3)

    assert (done.stuck, done.finished) == ([], 2)
    assert [taken.ticket.handle for taken in book.take("customer", CUSTOMER, 2, 3)] == held

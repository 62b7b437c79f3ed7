"""What a living worker does about a dead one whose attempts are decided in another database: the living one goes on."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from relay.message.errors import Unreachable
from relay.queue.attempts import AttemptName, Outcomes
from relay.queue.message import Audience, Group, NewMessage, Parent, Ticket
from relay.queue.port import Holder, QueueStore, StoreAway
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState
from relay.queue.stores import open_store
from relay.work.backoff import Backoff
from relay.work.mark import Mark
from relay.work.stores import Deciding, Stores
from relay.work.upkeep import DUE_MAX, Upkeep
from relay.world import clock, schedule

DEAD = Holder(b"a dead worker---", "approval", 0, "resource:shop")
LIVING = Holder(b"a living worker-", "clerk", 0, None)
SETTINGS = QueueSettings("credit", Audience((Group("approval", ("approval",)), Group("clerk", ("clerk",)))))


class Decided:
    """The database where the dead worker's attempts are decided: it has an outcome of none."""

    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:
        del attempt, now
        return committed


class Shop:
    """The resource, which is away at first."""

    def __init__(self) -> None:
        self.is_away = True
        self.asked = 0

    def open(self, _: ExitStack) -> Outcomes:
        self.asked += 1
        if self.is_away:
            raise Unreachable("resources.shop: the database does not answer")
        return Decided()


def dead(folder: Path, blamed: Ticket | None) -> None:
    """Leave the mark of a worker that died."""
    mark = Mark(folder, DEAD.id)
    mark.blame(blamed)
    (folder / "kept").hardlink_to(folder / DEAD.id.hex())
    mark.close()
    (folder / "kept").rename(folder / DEAD.id.hex())


@pytest.mark.parametrize("blames", [False, True])
def test_a_deciding_database_that_is_away_holds_up_its_own_messages_only(tmp_path: Path, blames: bool) -> None:
    store: QueueStore = open_store(SETTINGS, f"sqlite:///{tmp_path}/q.db")
    stores = Stores({"credit": schedule.lock()}, lambda _: store)
    store.put([NewMessage("p", str(number), b"v") for number in range(3)], 1)
    for holder in (DEAD, LIVING):
        store.enter(holder)
    tickets = [one.ticket for one in store.take("approval", DEAD.id, 3, 1)]
    dead(tmp_path, tickets[0] if blames else None)
    shop = Shop()
    beside = stores.beside("credit")
    deciding = partial(Deciding, beside, {"shop": shop.open})
    upkeep = Upkeep("credit", beside, deciding, LIVING, tmp_path, 60.0, Backoff())

    upkeep.once(0.0)

    assert store.held(DEAD.id) == tickets, "stuck, not freed, until it is known how they ended"
    assert shop.asked == 1 + blames, "one that does not answer is not waited for once for each message"

    shop.is_away = False
    upkeep.once(2.0)

    assert store.held(DEAD.id) == []
    assert upkeep.recovered == 3 - blames
    view = store.view(tickets[0].handle)
    assert view is not None
    assert view.subscribers[0].failures == blames
    stores.close()


def test_what_is_due_by_the_thousand_comes_at_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "monotonic", lambda: 0.0)
    store: QueueStore = open_store(SETTINGS, f"sqlite:///{tmp_path}/q.db")
    stores = Stores({"credit": schedule.lock()}, lambda _: store)
    number = 2 * DUE_MAX + 1
    store.put([NewMessage("p", f"d{one}", b"v", delay_ms=1) for one in range(number)], 1)
    store.put([NewMessage("p", f"t{one}", b"v", ttl_ms=1) for one in range(number)], 1)
    store.enter(LIVING)
    beside = stores.beside("credit")
    upkeep = Upkeep("credit", beside, partial(Deciding, beside, {}), LIVING, tmp_path, 60.0, Backoff())

    upkeep.once(0.0)

    assert store.counts()[0][PublisherState.REVEALED] == number, "all that was delayed, and nothing that has expired"
    stores.close()


class Orders:
    """The queue of the parents, away at first."""

    def __init__(self) -> None:
        self.asked = 0
        self.store: QueueStore | None = None

    def open(self) -> QueueStore:
        self.asked += 1
        if self.store is None:
            raise StoreAway("the queue's database does not answer")
        return self.store


def test_a_queue_that_is_away_holds_up_its_own_children_only(tmp_path: Path) -> None:
    store: QueueStore = open_store(SETTINGS, f"sqlite:///{tmp_path}/q.db")
    orders = Orders()
    open_them = {"credit": lambda: store, "orders": orders.open}
    stores = Stores(dict.fromkeys(open_them, schedule.lock()), lambda name: open_them[name]())
    names = [AttemptName("queue:orders", "orders", "uuid", "desk", Ticket(number, 1)).encode() for number in range(5)]
    parents = (Parent("orders", 1, "desk"),)
    store.put([NewMessage("p", name, b"v", parents=parents, attempt=name) for name in names], 1)
    store.enter(LIVING)
    beside = stores.beside("credit")
    upkeep = Upkeep("credit", beside, partial(Deciding, beside, {}), LIVING, tmp_path, 60.0, Backoff())

    upkeep.once(0.0)

    assert orders.asked == 1, "one that does not answer is not waited for once for each child"

    orders.store = open_store(replace(SETTINGS, name="orders"), f"sqlite:///{tmp_path}/q.db")
    upkeep.once(2.0)

    assert store.children(1) == []
    orders.store.close()
    stores.close()

"""A worker is told to end from a signal's handler, which may interrupt it anywhere."""

from __future__ import annotations

import threading
from pathlib import Path

from relay.queue.message import Audience, Group
from relay.queue.port import Holder
from relay.queue.settings import QueueSettings
from relay.queue.stores import open_store
from relay.work.backoff import Backoff
from relay.work.mark import Mark
from relay.work.upkeep import Upkeep
from relay.work.worker import Limits, Worker
from relay.world import clock, schedule

HOLDER = Holder(b"a worker--------", "s", 0, None)


def test_it_may_be_told_to_end_while_it_holds_the_lock_of_its_own_event(tmp_path: Path) -> None:
    store = open_store(QueueSettings("q", Audience((Group("s", ("s",)),))), f"sqlite:///{tmp_path}/q.db")
    mark = Mark(tmp_path / "marks", HOLDER.id)
    store.enter(HOLDER)
    upkeep = Upkeep("q", {"q": store}, lambda _: {}, HOLDER, tmp_path / "marks", 60.0, Backoff())
    worker = Worker(
        store, "s", HOLDER.id, lambda _: [], schedule.lock(), Limits(), upkeep, mark, alert=clock.sleep
    )
    handler = threading.Thread(target=worker.stop, daemon=True)

    # Where `wait` and `clear` are interrupted.
    with worker._wake._cond:  # type: ignore[attr-defined]
        handler.start()
        handler.join(2)
        assert not handler.is_alive(), "a handler would never return to what it has interrupted"

    worker.run()
    assert store.holders() == []
    store.close()

"""The loop of one worker over a real store, in this process: when it waits, and for what."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Holder
from relay.queue.settings import QueueSettings
from relay.queue.stores import open_store
from relay.work.backoff import Backoff
from relay.work.dispatch import Outcome
from relay.work.hands import all_ended
from relay.work.mark import Mark
from relay.work.upkeep import Upkeep
from relay.work.worker import Limits, Worker
from relay.world import clock, schedule

HOLDER = Holder(b"a worker--------", "s", 0, None)


def test_a_worker_that_is_held_back_waits_and_goes_on_when_it_is_let_go(tmp_path: Path) -> None:
    """It used to ask as often as the processor allowed, and said nothing of why it waits."""
    store = open_store(QueueSettings("q", Audience((Group("s", ("s",)),))), f"sqlite:///{tmp_path}/q.db")
    mark = Mark(tmp_path / "marks", HOLDER.id)
    store.enter(HOLDER)
    store.put([NewMessage("p", "1", b"v")], 1)
    upkeep = Upkeep("q", {"q": store}, lambda _: {}, HOLDER, tmp_path / "marks", 60.0, Backoff())
    until = clock.monotonic() + 1
    asked = 0

    def held_back() -> bool:
        nonlocal asked
        asked += clock.monotonic() < until
        return clock.monotonic() < until

    worker = Worker(
        store,
        "s",
        HOLDER.id,
        lambda work: all_ended(work, Outcome.DONE),
        schedule.lock(),
        Limits(),
        upkeep,
        mark,
        held_back=held_back,
        alert=clock.sleep,
    )

    with capture_logs() as logs:
        assert worker.run(until_idle_s=0.5).done == 1
    assert asked <= 10
    said = [line["event"] for line in logs if "takes" in line["event"]]
    assert [event.partition(" while")[0] for event in said] == ["takes nothing", "takes messages again"]
    store.close()

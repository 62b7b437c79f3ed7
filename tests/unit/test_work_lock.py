"""A handler that keeps the lock of the queue's store in the middle of a worker's cycle keeps no state from being written."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from relay.queue.message import NewMessage
from relay.queue.port import Holder
from relay.work import worker as loop
from relay.work.backoff import Backoff
from relay.work.dispatch import Ended, Outcome, Work, Writes
from relay.work.hands import all_ended
from relay.work.mark import Mark
from relay.work.upkeep import Upkeep
from relay.work.worker import Limits, Worker
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import settings

HOLDER = Holder(b"a worker--------", "ann", 0, None)


class KeptOnce:
    """The store's lock; a handler has it when the loop wants to write what ended, once."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self.kept = 0

    def acquire(self, timeout: float = -1) -> bool:
        if not self.kept and self._wanted():
            self.kept += 1
            return False
        return True

    def release(self) -> None:
        pass


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.UNUSABLE, Outcome.FAILED, Outcome.BACK])
def test_what_could_not_be_written_while_a_handler_had_the_lock_is_written_later(
    outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "AWAY_S", 0.01)
    store = QueueBook(settings("ann"))
    store.enter(HOLDER)
    store.put([NewMessage("p", "1", b"v")], 1)
    collected: list[Writes] = []
    lock = KeptOnce(lambda: bool(collected))
    upkeep = Upkeep("q", {"q": store}, lambda _: {}, HOLDER, tmp_path / "marks", 60.0, Backoff())

    def run(work: Work) -> Sequence[Ended]:
        return all_ended(work, outcome, "why")

    mark = Mark(tmp_path / "marks", HOLDER.id)
    worker = Worker(
        store, "ann", HOLDER.id, run, cast("Any", lock), Limits(backoff=Backoff(1000, 1000)), upkeep, mark,
        held_back=lambda: bool(collected),
    )  # fmt: skip
    writes = worker._dispatch.writes

    def noted() -> Writes:
        found = writes()
        if found:
            collected.append(found)
        return found

    monkeypatch.setattr(worker._dispatch, "writes", noted)
    worker._hands = worker._make_hands()
    limit = time.monotonic() + 3
    while (not lock.kept or store.held(HOLDER.id)) and time.monotonic() < limit:
        worker._once()
        worker._wait()
    worker._hands.close(5)

    assert lock.kept == 1, "the lock was never kept in the middle of a cycle"
    assert store.held(HOLDER.id) == [], "nobody else may take it, and nobody here will end it"

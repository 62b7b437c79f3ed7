"""A worker that is killed, and the reckoning afterwards: what was confirmed against what the queue has."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from relay.queue.message import MessageView, Ticket
from relay.queue.port import Filter, QueueStore
from relay.queue.states import PublisherState as P
from relay.queue.states import SubscriberState as S
from tests.contracts.queue_media import NOW, Medium
from tests.contracts.queue_worker import BATCH, HOLDER

ROOT = Path(__file__).parents[2]


@dataclass
class Confirmed:
    """What the worker was told."""

    put: list[str] = field(default_factory=list)
    taken: dict[str, list[str]] = field(default_factory=lambda: {"ann": [], "bob": []})
    done: dict[str, list[str]] = field(default_factory=lambda: {"ann": [], "bob": []})

    def note(self, line: bytes) -> None:
        what, names = orjson.loads(line)
        kind, _, subscriber = what.partition(" ")
        (self.put if kind == "put" else getattr(self, kind)[subscriber]).extend(names)


def run(
    medium: Medium, queue: str, confirmed: Confirmed, *, lines: int | None = None, crash_at: str = ""
) -> int:
    """Let a worker go on; kill it after so many lines, or let it die at a crash point. Return its exit status."""
    words = [sys.executable, "-m", "tests.contracts.queue_worker", queue, medium.url, str(medium.state)]
    process = subprocess.Popen(
        [*words, str(len(confirmed.put) + BATCH)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env={**os.environ, "RELAY_CRASH_AT": crash_at},
    )
    assert process.stdout is not None
    for number, line in enumerate(process.stdout, 1):
        confirmed.note(line)
        if number == lines:
            process.kill()
            break
    for line in process.stdout:
        confirmed.note(line)
    return process.wait(timeout=60)


def every(store: QueueStore) -> list[MessageView]:
    found: list[MessageView] = []
    while more := store.find(Filter(), after=found[-1].handle if found else 0, limit=500):
        found += more
    return found


def audit(store: QueueStore, confirmed: Confirmed) -> None:
    """Hold the store against what was confirmed; a batch that was not is there whole or not at all."""
    views = every(store)
    there = [view.id for view in views]
    assert there[: len(confirmed.put)] == confirmed.put
    assert len(there) - len(confirmed.put) in (0, BATCH)
    for subscriber in ("ann", "bob"):
        rows = {view.id: row for view in views for row in view.subscribers if row.subscriber == subscriber}
        done = [name for name, row in rows.items() if row.state is S.JOURNALLED]
        assert done[: len(confirmed.done[subscriber])] == confirmed.done[subscriber]
        assert len(done) - len(confirmed.done[subscriber]) in (0, BATCH)
        assert all(row.times.done is not None for name, row in rows.items() if name in done)
        for last in done[BATCH - 1 :: BATCH]:
            assert store.outcome(f"{subscriber} {last}") is True
        taken = store.held(HOLDER + subscriber.encode())
        assert len(taken) in (0, BATCH)
        assert {one.handle for one in taken} == {
            view.handle for view in views if rows[view.id].state in (S.FETCHED, S.IN_PROCESS)
        }
    for view in views:
        cid = next(row for row in view.subscribers if row.subscriber == "cid")
        bob = next(row for row in view.subscribers if row.subscriber == "bob")
        assert (cid.state is S.JOURNALLED) == (bob.state is S.JOURNALLED)
        everybody = all(row.state is S.JOURNALLED for row in view.subscribers)
        assert (view.state is P.JOURNALLED) == everybody
    assert store.waiting() == sum(view.state is P.REVEALED for view in views)


def give_back(store: QueueStore, confirmed: Confirmed) -> None:
    """Free what the dead worker held, as recovery does, and note what is true now."""
    for subscriber in ("ann", "bob"):
        tickets: list[Ticket] = store.held(HOLDER + subscriber.encode())
        assert store.free(subscriber, tickets, NOW) == [True] * len(tickets)
        assert store.held(HOLDER + subscriber.encode()) == []
    views = every(store)
    confirmed.put = [view.id for view in views]
    for subscriber in ("ann", "bob"):
        rows = ((view.id, row) for view in views for row in view.subscribers if row.subscriber == subscriber)
        confirmed.done[subscriber] = [name for name, row in rows if row.state is S.JOURNALLED]

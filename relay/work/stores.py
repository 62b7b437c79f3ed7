"""The queues that a worker may reach: each opened when it is first needed, each with a lock of its own."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack
from typing import Final

from relay.message.errors import Unreachable
from relay.queue.attempts import Outcomes
from relay.queue.port import QueueStore
from relay.work.locked import locked
from relay.world import schedule

BESIDE_S: Final = 2.0
"""So long whoever holds one queue's lock waits for another's: who has that may be waiting for the first, and goes before."""


class Stores(Mapping[str, QueueStore]):
    """Queues by name. ``locks`` has every name; ``open_queue`` is called once for each queue that is used."""

    def __init__(self, locks: Mapping[str, schedule.Lock], open_queue: Callable[[str], QueueStore]) -> None:
        self.locks = locks
        self._open_queue = open_queue
        self._opened: dict[str, QueueStore] = {}
        # One for each: whoever opens a queue that does not answer holds up nobody who needs another.
        self._opening = {name: schedule.lock() for name in locks}

    def __getitem__(self, name: str) -> QueueStore:
        """Return a queue; KeyError if it is not configured."""
        opened = self._opened.get(name)
        if opened is not None:
            return opened
        with self._opening[name]:
            if name not in self._opened:
                self._opened[name] = self._open_queue(name)
            return self._opened[name]

    def __contains__(self, name: object) -> bool:
        """Whether the queue is configured; opens nothing."""
        return name in self.locks

    def __iter__(self) -> Iterator[str]:
        return iter(self.locks)

    def __len__(self) -> int:
        return len(self.locks)

    def beside(self, own: str) -> Mapping[str, QueueStore]:
        """Return the same queues for whoever holds the lock of ``own``: the others lock themselves at each call."""
        return _Beside(self, own)

    def close(self, in_use: Container[str] = ()) -> None:
        """Close what was opened, but for what a thread still uses: that goes with the process."""
        for name, store in self._opened.items():
            if name not in in_use:
                store.close()


class _Beside(Mapping[str, QueueStore]):
    def __init__(self, stores: Stores, own: str) -> None:
        self._stores = stores
        self._own = own

    def __getitem__(self, name: str) -> QueueStore:
        store = self._stores[name]
        lock = self._stores.locks[name]
        return store if lock is self._stores.locks[self._own] else locked(store, lock, BESIDE_S)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stores)

    def __len__(self) -> int:
        return len(self._stores)


OpenOutcomes = Callable[[ExitStack], Outcomes]


class Deciding(Mapping[str, Outcomes]):
    """What decides attempts, by the name in an attempt: queues, and resources opened for as long as ``lent`` lasts."""

    def __init__(
        self, queues: Mapping[str, QueueStore], resources: Mapping[str, OpenOutcomes], lent: ExitStack
    ) -> None:
        self._queues = queues
        self._resources = resources
        self._lent = lent
        self._opened: dict[str, Outcomes] = {}
        self._away: dict[str, Unreachable] = {}

    def __getitem__(self, name: str) -> Outcomes:
        """Return the outcomes of ``queue:NAME`` or ``resource:NAME``; KeyError if it is not configured.

        Raises Unreachable for a resource that is away; it is waited for once, however many attempts it decides.
        """
        kind, _, rest = name.partition(":")
        if kind == "queue":
            return self._queues[rest]
        if kind != "resource" or rest not in self._resources:
            raise KeyError(name)
        if name in self._away:
            raise self._away[name]
        if name not in self._opened:
            try:
                self._opened[name] = self._resources[rest](self._lent)
            except Unreachable as away:
                self._away[name] = away
                raise
        return self._opened[name]

    def __iter__(self) -> Iterator[str]:
        yield from (f"queue:{name}" for name in self._queues)
        yield from (f"resource:{name}" for name in self._resources)

    def __len__(self) -> int:
        return len(self._queues) + len(self._resources)

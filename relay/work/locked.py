"""A store that several threads share: each call holds its lock, and no two locks are held at once by this."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from relay.queue.port import QueueStore, StoreAway
from relay.world import schedule


class _Locked:
    def __init__(self, store: QueueStore, lock: schedule.Lock, wait_s: float) -> None:
        self._store = store
        self._lock = lock
        self._wait_s = wait_s

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._guarded(found) if callable(found) else found

    def _guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def _call(*args: Any, **kwargs: Any) -> Any:
            if not self._lock.acquire(timeout=self._wait_s):
                raise StoreAway("a handler's transaction holds the database file of another queue: ask again later")
            try:
                return method(*args, **kwargs)
            finally:
                self._lock.release()

        return _call


def locked(store: QueueStore, lock: schedule.Lock, wait_s: float = -1) -> QueueStore:
    """Return the store with the lock round every call; its ``transaction`` must not be used.

    A call that does not get the lock within ``wait_s`` raises StoreAway; -1: it waits for as long as it takes.
    """
    return cast("QueueStore", _Locked(store, lock, wait_s))

"""A store that several threads share: each call holds its lock, and no two locks are held at once by this."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from relay.queue.port import QueueStore
from relay.run import schedule


class _Locked:
    def __init__(self, store: QueueStore, lock: schedule.Lock) -> None:
        self._store = store
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._guarded(found) if callable(found) else found

    def _guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def _call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return method(*args, **kwargs)

        return _call


def locked(store: QueueStore, lock: schedule.Lock) -> QueueStore:
    """Return the store with the lock round every call; its ``transaction`` must not be used."""
    return cast("QueueStore", _Locked(store, lock))

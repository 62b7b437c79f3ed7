"""The only module that starts threads."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_thread(name: str, target: Callable[[], None], *, daemon: bool = True) -> threading.Thread:
    """Start ``target`` in a thread called ``name`` and return it; the target reports its own failures."""
    thread = threading.Thread(target=target, name=name, daemon=daemon)
    thread.start()
    return thread

"""The only module that starts threads and makes what threads wait on; a simulation puts its own in their place.

Take it as a module (``schedule.lock()``), never its names: what a simulation replaces are the module's functions.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

Thread = threading.Thread
Lock = threading.Lock
Event = threading.Event
Queue = queue.Queue
Mailbox = queue.SimpleQueue
Empty = queue.Empty
Full = queue.Full


def start_thread(name: str, target: Callable[[], None]) -> Thread:
    """Start ``target`` in a thread called ``name`` and return it; the target reports its own failures."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def pool(name: str, threads: int) -> ThreadPoolExecutor:
    """Make threads called ``name``, each started when it is needed first; what they run reports its own failures."""
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


def lock() -> Lock:
    """Make a lock; any thread may release it."""
    return threading.Lock()


def reentrant_lock() -> AbstractContextManager[bool]:
    """Make a lock that the thread which holds it may take again. A simulation leaves it as it is: its tasks take turns."""
    return threading.RLock()


def event() -> Event:
    """Make an event that is not set."""
    return threading.Event()


def fifo(maxsize: int = 0) -> Queue[Any]:
    """Make a queue between threads; without end if ``maxsize`` is 0. It raises ``Empty`` and ``Full``."""
    return queue.Queue(maxsize)


def mailbox() -> Mailbox[Any]:
    """Make a queue without end whose ``put`` may be called anywhere, also by a finalizer that runs inside of ``get``."""
    return queue.SimpleQueue()

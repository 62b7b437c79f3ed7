"""What a process that a test starts makes of a signal, whatever those who run the tests have it make of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def inheriting(number: signal.Signals, does: signal.Handlers | Callable[..., Any]) -> Iterator[None]:
    """Have what is started inside begin so: a shell's background job ignores SIGINT, and what hangs up may be ignored."""
    before = signal.signal(number, does)
    try:
        yield
    finally:
        signal.signal(number, before)

"""A command that is told to end unwinds, as at Ctrl-C, so that no server or process that it has started stays behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_properly() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind like Ctrl-C does, so that nothing is left behind; one that is ignored (nohup) stays so.

    The first one counts: a second would end the cleaning up of the first.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        for one in heard:
            signal.signal(one, signal.SIG_IGN)
        raise SystemExit(128 + number)

    heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

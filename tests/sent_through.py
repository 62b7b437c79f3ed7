"""A batch that is sent, and sent again by its timer, until it is answered."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

from relay.message.record import LogPartition
from relay.transfer.cursor import TableCursor, Verdict
from relay.transfer.sending import Sending
from relay.transfer.timers import ResendTimes

WAIT_S = 60.0


def sent_through(
    cursor: TableCursor, times: ResendTimes, positions: Mapping[LogPartition, int], prepared: Any
) -> list[Verdict]:
    """Return the answer. The thread that sends is ended in any case: it would try on, beside every later test."""
    sending = Sending(cursor, times, monotonic)
    try:
        sending.send(positions, prepared)
        deadline = monotonic() + WAIT_S
        while not (found := sending.answers()):
            assert monotonic() < deadline, f"sent again {sending.resent} times, and no end"
            sending.tend(monotonic())
            sending.wait(0.01)
    finally:
        sending.close()
    return found[0]

"""Time limits and the order they must keep: each shorter limit ends before the longer one that relies on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel, ConfigDict

from relay.config.faults import Fault
from relay.config.quantities import Seconds, spoken

_DAY: Final = 86400.0
CAPTURE_IDLE_LIMIT: Final = 30.0
"""Seconds after which the database ends an idle capture transaction (design section 4)."""
_BROKER_TRANSACTION_MAX: Final = 900.0
"""The broker's default ``transaction.max.timeout.ms``; a longer one is refused at ``init_transactions``."""
_BROKER_SESSION_MIN: Final = 6.0
"""The broker's default ``group.min.session.timeout.ms``; a shorter one is refused at the first join."""
_KAFKA_MARGIN: Final = 0.1
"""librdkafka wants ``socket.timeout.ms`` at least 100 ms below ``transaction.timeout.ms``."""


class Timing(BaseModel):
    """The section ``[timing]``; every value is in seconds on the monotonic clock."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    append_timeout: Seconds = 5.0
    marker_wait: Seconds = 3.0
    resolver_lock_timeout: Seconds = 1.0
    resend_after: Seconds = 5.0
    resend_max: Seconds = 60.0
    transaction_timeout: Seconds = 10.0
    socket_timeout: Seconds = 8.0
    session_timeout: Seconds = 10.0
    in_doubt_alarm: Seconds = 60.0
    idle_in_transaction: Seconds = 10.0
    statement_timeout: Seconds = 8.0
    dedup_horizon: Seconds = 7 * _DAY
    monitor_retention: Seconds = 14 * _DAY


# Each row: the shorter limit, the longer one, whether they may be equal, and why.
_ORDER: Final = (
    (
        "resend_after",
        "transaction_timeout",
        False,
        "a repeat must be sent while its transaction can still end",
    ),
    ("resend_after", "resend_max", True, "the pause between repeats grows up to resend_max"),
    (
        "transaction_timeout",
        "in_doubt_alarm",
        False,
        "a message is in doubt only after its transaction is over",
    ),
    ("marker_wait", "in_doubt_alarm", False, "an undecided capture is resolved before it alarms"),
    (
        "idle_in_transaction",
        "session_timeout",
        True,
        "a frozen worker must lose its database transaction first",
    ),
    (
        "statement_timeout",
        "session_timeout",
        True,
        "a worker must not wait for the database past its session",
    ),
    ("resolver_lock_timeout", "statement_timeout", False, "the lock's wait must end before the statement's"),
    ("in_doubt_alarm", "dedup_horizon", False, "a message must not be forgotten before it alarms"),
    (
        "dedup_horizon",
        "monitor_retention",
        True,
        "the monitor must keep every entry that still suppresses a repeat",
    ),
)

# Each row: the limit, its least and its greatest value, and why.
_RANGES: Final = (
    ("transaction_timeout", 1.0, _BROKER_TRANSACTION_MAX, "brokers refuse more than 15 minutes"),
    ("session_timeout", _BROKER_SESSION_MIN, 1800.0, "brokers refuse less than 6 seconds"),
    ("socket_timeout", 0.01, 300.0, "librdkafka takes 10 ms to 300 s"),
    ("append_timeout", 0.1, CAPTURE_IDLE_LIMIT - 1, "the database ends an idle capture after 30 s"),
    ("marker_wait", 0.01, 3600.0, "it is the pause before asking the resource"),
    ("resolver_lock_timeout", 0.01, 60.0, "a resolver must not queue behind a slow publisher for long"),
    ("resend_after", 0.01, 3600.0, "zero would send for ever"),
    ("statement_timeout", 0.1, 3600.0, "zero would mean no limit"),
    ("idle_in_transaction", 0.1, 3600.0, "zero would mean no limit"),
)


def timing_faults(timing: Timing) -> Iterator[Fault]:
    """Yield every broken rule between the limits (design section 13)."""
    for name, least, most, why in _RANGES:
        value = getattr(timing, name)
        if not least <= value <= most:
            yield _fault(
                timing, name, f"outside {least:g} to {most:g} seconds ({why})", "choose a value inside"
            )
    for shorter, longer, equal, why in _ORDER:
        low, high = getattr(timing, shorter), getattr(timing, longer)
        if low > high or (low == high and not equal):
            word = "at most" if equal else "less than"
            problem = f"must be {word} timing.{longer} ({spoken(high)}): {why}"
            yield _fault(timing, shorter, problem, f"lower it or raise timing.{longer}")
    if timing.socket_timeout > timing.transaction_timeout - _KAFKA_MARGIN + 1e-9:
        problem = (
            f"must be at least 0.1 s below timing.transaction_timeout ({spoken(timing.transaction_timeout)})"
        )
        yield _fault(timing, "socket_timeout", problem, "lower it or raise timing.transaction_timeout")


def _fault(timing: Timing, name: str, problem: str, remedy: str) -> Fault:
    return Fault(f"timing.{name}", spoken(getattr(timing, name)), problem, remedy)

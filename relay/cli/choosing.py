"""Words that several commands of queues share: who asks and why, and which messages are meant."""

from __future__ import annotations

import getpass
import os
import socket
from datetime import datetime
from typing import Annotated, Final, TypeVar

import typer

from relay.config.faults import Wrong
from relay.config.quantities import duration, spoken
from relay.message.errors import ConfigError
from relay.queue.port import Filter
from relay.queue.settings import Retention
from relay.queue.states import PublisherState, SubscriberState
from relay.world import clock

HANDLE_MAX: Final = 2**63 - 1
"""What every store has room for."""
LOOKED_THROUGH_MAX: Final = 1_000_000_000
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="A queue of the configuration.")]
QueueOption = Annotated[str | None, typer.Option("--queue", metavar="QUEUE", help="Only this queue.")]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")]
WhoOption = Annotated[str | None, typer.Option("--who", metavar="NAME", help="Who asks; default USER@HOST.")]
StateOption = Annotated[
    str | None, typer.Option("--state", metavar="STATE", help="The publisher's state, such as REVEALED.")
]
SubscriberOption = Annotated[str | None, typer.Option("--subscriber", metavar="NAME", help="Only for this subscriber, or member of a pool.")]
SubscriberStateOption = Annotated[
    str | None, typer.Option("--is", metavar="STATE", help="That subscriber's state: AVAILABLE, GET, FETCHED, IN_PROCESS or JOURNALLED.")
]
UnusableOption = Annotated[bool, typer.Option("--unusable", help="Only what a subscriber found unusable.")]
PublisherOption = Annotated[str | None, typer.Option("--publisher", metavar="SOURCE", help="Only what this publisher put.")]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="WHEN", help='Put since then: "2h" ago or a time with its zone.')
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Put until then; written as for --since.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many at most.")]
AfterOption = Annotated[int, typer.Option("--after", min=0, max=HANDLE_MAX, metavar="HANDLE", help="Only handles above this one.")]

S = TypeVar("S", PublisherState, SubscriberState)


def me() -> str:
    """Return who runs the command: its user's number, where a container's has no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the second since Python 3.13
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def retained(bounds: Retention) -> str:
    """Return in words how long a queue keeps what is over."""
    age = None if bounds.age_ms is None else f"for {spoken(bounds.age_ms / 1000)}"
    count = None if bounds.count is None else f"{bounds.count} messages"
    size = None if bounds.bytes is None else f"{bounds.bytes} bytes"
    return ", at most ".join(one for one in (age, count, size) if one is not None) or "for ever"


def needed(reason: str) -> str:
    """Return the reason; ConfigError if it says nothing."""
    if not reason.strip():
        raise ConfigError("--reason is empty; say why, for whoever reads the record later")
    return reason


def moment(given: str | None, option: str) -> int | None:
    """Return wall milliseconds of a duration before now, or of a time with its zone."""
    if given is None:
        return None
    try:
        return clock.wall_ms() - round(duration(given) * 1000)
    except Wrong:
        pass
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ConfigError(f'{option} = {given!r}: not a time; write a duration such as "2h" or 2026-11-21T10:00:00Z')
    return int(found.timestamp() * 1000)


_PASSED: Final = (SubscriberState.DONE, SubscriberState.UNUSABLE, SubscriberState.EXPIRED)
"""No message stays in these: the same write makes it JOURNALLED."""


def filter_of(
    *,
    state: str | None = None,
    subscriber: str | None = None,
    subscriber_state: str | None = None,
    unusable: bool = False,
    publisher: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Filter:
    """Return the filter that options describe."""
    if subscriber_state is not None and subscriber is None:
        raise ConfigError("--is needs --subscriber: say whose state is meant")
    meant = None if subscriber_state is None else _state(SubscriberState, subscriber_state, "--is")
    if meant in _PASSED:
        raise ConfigError(
            f"--is {subscriber_state}: what is over for a subscriber is JOURNALLED at once; `relay message show` tells how it ended, "
            "and --unusable finds what it could not handle"
        )
    return Filter(
        state=None if state is None else _state(PublisherState, state, "--state"),
        subscriber=subscriber,
        subscriber_state=meant,
        unusable=unusable,
        publisher=publisher,
        since=moment(since, "--since"),
        until=moment(until, "--until"),
    )


def described(chosen: Filter) -> str:
    """Return a filter in words, for the audit record."""
    words = [
        f"{name}={value.name if isinstance(value, PublisherState | SubscriberState) else value}"
        for name in ("state", "subscriber", "subscriber_state", "unusable", "publisher", "since", "until")
        if (value := getattr(chosen, name)) not in (None, False)
    ]
    return " ".join(words) or "all"


def _state(kind: type[S], name: str, option: str) -> S:
    try:
        return kind[name.upper()]
    except KeyError:
        known = ", ".join(state.name for state in kind)
        raise ConfigError(f"{option} = {name!r}: no such state; give one of {known}") from None

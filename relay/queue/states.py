"""Which state may follow which, for a publisher and for a subscriber: the only table, used by every store and by the docs.

Source: document 003, paragraphs [39] to [63] and [66] to [70]; "available" is the subscriber's state before GET.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeVar, cast

from relay.message.errors import RelayError


class PublisherState(IntEnum):
    """What a message is for its publisher, [41] to [45]; the numbers are stored, never change one."""

    PUT = 1
    REVEALED = 2
    UNAVAILABLE = 3
    JOURNALLED = 4
    DELETED = 5


class SubscriberState(IntEnum):
    """What a message is for one subscriber, [46] to [53]; the numbers are stored, never change one."""

    AVAILABLE = 0
    GET = 1
    FETCHED = 2
    IN_PROCESS = 3
    DONE = 4
    UNUSABLE = 5
    EXPIRED = 6
    JOURNALLED = 7


TAKEN: Final = (SubscriberState.GET, SubscriberState.FETCHED, SubscriberState.IN_PROCESS)
"""With a worker: an attempt is under way, and its lane is busy."""


class Event(Enum):
    """What happens to a message; the value is the word that errors and the docs use."""

    REVEAL = "reveal"
    WITHDRAW = "withdraw"
    DISCARD = "discard"
    JOURNAL = "journal"
    REPUBLISH = "republish"
    GET = "get"
    FETCH = "fetch"
    START = "start"
    FINISH = "finish"
    REFUSE = "refuse"
    EXPIRE = "expire"
    FREE = "free"


class Transition(NamedTuple):
    """One row of the table; ``only_if`` says in words what else must hold."""

    event: Event
    before: PublisherState | SubscriberState
    after: PublisherState | SubscriberState
    only_if: str = ""


_P, _S, _E = PublisherState, SubscriberState, Event

PUBLISHER: Final = (
    Transition(_E.REVEAL, _P.PUT, _P.REVEALED, "its attempt is committed, its delay is over"),
    Transition(_E.WITHDRAW, _P.PUT, _P.UNAVAILABLE),
    Transition(_E.WITHDRAW, _P.REVEALED, _P.UNAVAILABLE),
    Transition(_E.DISCARD, _P.PUT, _P.DELETED, "the attempt that put it is aborted"),
    Transition(_E.JOURNAL, _P.REVEALED, _P.JOURNALLED, "every subscriber has journalled it"),
    Transition(_E.REPUBLISH, _P.JOURNALLED, _P.REVEALED, "it is not trimmed; for one subscriber"),
)
SUBSCRIBER: Final = (
    Transition(_E.GET, _S.AVAILABLE, _S.GET, "revealed to it, not blocked, its turn in the lane"),
    Transition(_E.FETCH, _S.GET, _S.FETCHED),
    Transition(_E.START, _S.FETCHED, _S.IN_PROCESS),
    Transition(_E.FINISH, _S.FETCHED, _S.DONE, "nothing to process"),
    Transition(_E.FINISH, _S.IN_PROCESS, _S.DONE),
    *(Transition(_E.REFUSE, state, _S.UNUSABLE) for state in TAKEN),
    *(Transition(_E.FREE, state, _S.AVAILABLE, "its attempt is aborted") for state in TAKEN),
    Transition(
        _E.EXPIRE, _S.AVAILABLE, _S.EXPIRED, "too old, withdrawn, or another member of the pool is done"
    ),
    Transition(_E.JOURNAL, _S.DONE, _S.JOURNALLED),
    Transition(_E.JOURNAL, _S.UNUSABLE, _S.JOURNALLED),
    Transition(_E.JOURNAL, _S.EXPIRED, _S.JOURNALLED),
    Transition(_E.REPUBLISH, _S.UNUSABLE, _S.AVAILABLE, "for this subscriber only"),
    Transition(
        _E.REPUBLISH, _S.JOURNALLED, _S.AVAILABLE, "for this subscriber only; after DONE by an operator only"
    ),
)

# The numbers of the two sides overlap, so the side is part of the key.
_NEXT: Final = {(row.event, type(row.before), row.before): row.after for row in (*PUBLISHER, *SUBSCRIBER)}


State = TypeVar("State", PublisherState, SubscriberState)


class IllegalTransition(RelayError):
    """The event may not happen in this state; nothing was changed."""


def after(state: State, event: Event) -> State:
    """Return the state that follows; raises IllegalTransition."""
    found = _NEXT.get((event, type(state), state))
    if found is None:
        allowed = [
            row.before.name
            for row in (*PUBLISHER, *SUBSCRIBER)
            if row.event is event and type(row.before) is type(state)
        ]
        remedy = f"only of one that is {' or '.join(allowed)}" if allowed else "not from this side"
        raise IllegalTransition(f"cannot {event.value} a message that is {state.name}: {remedy}")
    return cast("State", found)


def sources(event: Event, kind: type[PublisherState | SubscriberState]) -> tuple[int, ...]:
    """Return the numbers of the states in which the event may happen: what a guarded write compares with."""
    table = PUBLISHER if kind is PublisherState else SUBSCRIBER
    return tuple(int(row.before) for row in table if row.event is event)


def drawn() -> str:
    """Return both tables as a Mermaid state diagram: the docs show this text, and a test compares them."""
    lines = ["stateDiagram-v2"]
    for side, first, table in (("publisher", _P.PUT, PUBLISHER), ("subscriber", _S.AVAILABLE, SUBSCRIBER)):
        lines += [f"    state {side} {{", f"        [*] --> {side}_{first.name}"]
        lines += [
            f"        {side}_{row.before.name} --> {side}_{row.after.name}: {row.event.value}"
            for row in table
        ]
        lines.append("    }")
    return "\n".join(lines)

"""How a queue's statements reach SQLite or PostgreSQL: one text for both, one unit of work, errors by what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from relay.message.errors import RelayError
from relay.queue.message import NewMessage
from relay.queue.port import StoreAway

Row = tuple[Any, ...]
P = ParamSpec("P")
R = TypeVar("R")
REPEATS_MAX: Final = 8


class Collided(StoreAway):
    """Another writer was in the way (deadlock, serialization); everything was taken back, and may be done again."""


class Repeated(RelayError):
    """One of the messages waits already; the unit around must be taken back."""


class Seat(NamedTuple):
    """One subscriber's place in an audience."""

    subscriber: int
    group: int
    shape: int
    turn: int
    position: int


Given = Sequence[tuple[NewMessage, Sequence[Seat]]]
"""Messages, and who is to get each."""


class Arriving(NamedTuple):
    """New messages with their handles, put at one time (milliseconds)."""

    queue: int
    handles: Sequence[int]
    given: Given
    now: int
    ttl_ms: int | None
    reveal: bool


class Session(Protocol):
    """A connection to the database of a queue. Names in a statement are ``:name``; a list stands in ``in {name}``.

    For ``handles`` a range may stand, too: they follow each other.
    """

    counts_cheaply: bool
    """Whether to count the rows that a statement met costs much less than to have them returned."""

    @property
    def inside(self) -> bool:
        """Whether a unit is open."""

    def unit(self) -> AbstractContextManager[None]:
        """Begin, and commit durably; inside another unit a savepoint."""

    def snapshot(self) -> AbstractContextManager[None]:
        """See one state of the database in several reading statements."""

    def run(self, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Run one statement; lists are of integers or of text."""

    def count(self, text: str, parameters: Mapping[str, Any]) -> int:
        """Run one statement that writes and return how many rows it met."""

    def many(self, text: str, rows: Sequence[Row]) -> None:
        """Run one statement for each row, with positional parameters ``?``."""

    def arrive(self, arriving: Arriving) -> None:
        """Insert new messages; raises Repeated if one is there already: the unit must be taken back."""

    def lock_groups(self, subscriber: int) -> None:
        """Let nobody else take for this subscriber's groups until the unit ends."""

    def handles(self, queue: int, count: int) -> range | list[int]:
        """Draw handles, growing."""

    def tally(self, queue: int, waiting: int, over: int) -> None:
        """Add to how many messages wait, and how many are over."""

    def tallied(self, queue: int) -> tuple[int, int]:
        """Return how many messages wait, and how many are over."""

    def raise_handles(self, queue: int, above: int) -> None:
        """Let handles drawn later be above this one."""

    def tell(self, queue: str) -> None:
        """Wake who listens for this queue, when the unit is committed."""

    def close(self) -> None:
        """Close the connection if it is the session's own."""


class HasSession(Protocol):
    """Whatever runs its methods as units of a session."""

    session: Session

    def guard(self) -> None:
        """Raise Retired if the queue takes no more writes."""


S = TypeVar("S", bound=HasSession)


def unit(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Run a method as one unit; again if it collided with another writer, unless a larger unit must begin again."""

    @wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        for turn in range(REPEATS_MAX):
            try:
                with self.session.unit():
                    self.guard()
                    return method(self, *args, **kwargs)
            except Collided:
                # Taken back as a whole: retry.
                if self.session.inside or turn == REPEATS_MAX - 1:
                    raise
        raise AssertionError("unreachable")

    return run

"""One attempt at a message may write to several stores; one of them decides, and the first outcome written there stands.

The order is the whole protocol: children are PUT under the attempt's name first; then the deciding store commits, in one
transaction, what it holds of the effects together with the outcome; then the others follow. Whoever finds an attempt
whose worker is gone writes *aborted* first and obeys what stands. Source: document 003, [65] to [70], made safe as
design.md section 8 says: a parent's state alone is never believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from relay.message.errors import RelayError
from relay.queue.message import NewMessage, Parent, Ticket
from relay.queue.port import QueueStore
from relay.world.crash import crash_point


class AttemptAborted(RelayError):
    """Somebody took this worker for dead and wrote so first: take everything back."""


class Outcomes(Protocol):
    """The store that decides: every queue's store is one, and so is a resource with the relay's tables."""

    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:
        """Write an attempt's outcome unless it has one, and return the one that stands: True is committed."""


class ForgettableOutcomes(Outcomes, Protocol):
    """Outcomes that lie in a resource."""

    def forget(self, attempts: Sequence[str]) -> None:
        """Delete committed outcomes that nobody needs any more; (aborted) stays, since its worker may come back."""


class PreparedTransactions(Protocol):
    """What attempts left prepared in a further database, by the attempts' names."""

    def pending(self) -> list[str]:
        """Return the attempts that have a prepared transaction there."""

    def finish(self, attempt: str, *, committed: bool) -> bool:
        """Commit or roll back; False if that was done already."""


class AttemptName(NamedTuple):
    """What an attempt is called wherever it left something; unique for ever.

    ``deciding`` is ``queue:NAME`` or ``resource:NAME``; ``uuid`` is the parent's queue's, so that a queue that was made
    anew under the same name is not taken for the old one.
    """

    deciding: str
    queue: str
    uuid: str
    subscriber: str
    ticket: Ticket

    def encode(self) -> str:
        """Return the name as text; it grows with the handle, so only a prepared transaction, which has to, bounds it."""
        parts = (self.deciding, self.queue, self.uuid, self.subscriber, str(self.ticket.handle), str(self.ticket.attempt))
        return "/".join(parts)

    @classmethod
    def decode(cls, text: str) -> AttemptName:
        """Return the parts; raises ValueError if it is none of ours."""
        deciding, queue, uuid, subscriber, handle, attempt = text.split("/")
        return cls(deciding, queue, uuid, subscriber, Ticket(int(handle), int(attempt)))


class PutChildren(NamedTuple):
    """Children of one attempt in one queue."""

    queue: str
    handles: list[int]


def put_children(
    attempt: str,
    parents: Sequence[Parent],
    children: Mapping[str, Sequence[NewMessage]],
    queues: Mapping[str, QueueStore],
    now: int,
) -> list[PutChildren]:
    """Put children into their queues, hidden until the attempt is settled; the first step, before the decision.

    Raises what `QueueStore.put` raises: nothing is decided then, and what was put already is discarded by recovery.
    """
    done = []
    for name, messages in children.items():
        named = [message._replace(attempt=attempt, parents=tuple(parents)) for message in messages]
        done.append(PutChildren(name, [answer.handle for answer in queues[name].put(named, now)]))
        crash_point("attempt.child")
    return done


def commit_here(deciding: Outcomes, attempt: str, now: int) -> None:
    """Write the outcome inside the deciding store's open transaction, whose commit makes it the decision.

    Raises AttemptAborted: the caller rolls back, and nothing of the attempt happened.
    """
    if not deciding.settle(attempt, committed=True, now=now):
        raise AttemptAborted(f"attempt {attempt} was given up before it committed: its lease had run out")


def accept_children(put: Sequence[PutChildren], queues: Mapping[str, QueueStore], now: int) -> None:
    """Show the children of a committed attempt; what this does not reach, recovery does."""
    for name, handles in put:
        queues[name].accept(handles, now)
        crash_point("attempt.accepted")


def discard_children(put: Sequence[PutChildren], queues: Mapping[str, QueueStore], now: int) -> None:
    """Take back the children of an attempt of which (aborted) stands."""
    for name, handles in put:
        queues[name].discard(handles, now)

"""What a store of a queue must do: the same on every medium, proved by one contract suite.

Rules that hold for every store:

- A method is atomic: all it writes, or nothing, and its return means durable. Inside ``with transaction():`` this holds
  for everything in the block together.
- Every change of a state is a guarded write by `relay.queue.states`: False (or a shorter answer) means that the guard did
  not hold and nothing changed for that message. Lists of answers have the order of what was asked.
- An answer that was lost raises InDoubt; the caller reads again by ticket (`holds`), never assumes.
- Times are wall milliseconds given by the caller: written down, and compared for expiry, delay and retry only. A time is
  reached when it is not above ``now`` (``expires_at <= now`` is expired). ``now`` may go back: handles order, not times.
- One thread at a time uses a store object; several processes may open the same queue where ``shared`` is True.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from relay.message.errors import RelayError, Retriable, Unreachable
from relay.queue.message import MessageView, NewMessage, PutAnswer, Taken, Ticket
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState, SubscriberState


class Refused(RelayError):
    """The store does not accept this: too large, an unknown subscriber, a publisher that is not allowed. Nothing changed."""


class StoreFull(Retriable):
    """The medium or the queue's own bound is full; nothing changed, and it may be tried again later."""


class StoreAway(Retriable):
    """The store does not answer; nothing changed."""

    exit_code = Unreachable.exit_code


class ValuesAway(StoreAway):
    """The store answers, and the log in which it has its values does not; nothing changed, and states can be written."""


class Retired(Retriable):
    """The queue has moved to another store (`retire`); nothing changed, and it goes on over there."""


class Holder(NamedTuple):
    """A worker that has taken messages; ``beats`` grows while it lives. ``deciding`` names the store of its outcomes."""

    id: bytes
    subscriber: str
    beats: int
    deciding: str | None


class Child(NamedTuple):
    """A message that is PUT and waits for the outcome of the attempt that made it."""

    handle: int
    attempt: str


class Waiting(NamedTuple):
    """How many messages of one subscriber are in each state."""

    subscriber: str
    counts: dict[SubscriberState, int]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages to list; None does not choose. ``since <= put_at < until``, milliseconds.

    With ``subscriber`` the message is meant for it, and ``subscriber_state`` and ``unusable`` speak of it; else of anyone.
    """

    state: PublisherState | None = None
    subscriber: str | None = None
    subscriber_state: SubscriberState | None = None
    unusable: bool = False
    publisher: str | None = None
    since: int | None = None
    until: int | None = None


class QueueStore(Protocol):
    """One queue on one medium."""

    settings: QueueSettings
    shared: bool
    uuid: str

    def transaction(self) -> AbstractContextManager[None]:
        """Make what is called inside one unit; an exception takes all of it back."""

    def close(self) -> None:
        """Free what the object holds; the queue stays."""

    # What publishers do -------------------------------------------------------------------------------------------

    def put(self, messages: Sequence[NewMessage], now: int, *, reveal: bool = True) -> list[PutAnswer]:
        """Store messages in this order; handles grow. With ``reveal`` those without delay and attempt are REVEALED at once.

        Raises Refused (naming the first message that is not acceptable, `relay.queue.receipt`, storing none), StoreFull (more
        than ``waiting_max`` would wait), StoreAway. A repeat changes nothing of the first, whatever else it says.

        Children (messages with parents) are never repeats and never make one: two attempts at one parent put the same
        child, and the first one's is discarded when the second's is shown. An attempt puts once, and names its parents.
        """

    def reveal(self, handles: Sequence[int], now: int, to: Collection[str] | None = None) -> list[bool]:
        """PUT -> REVEALED, to the audience or only to the subscribers named.

        Of a REVEALED message it shows it to further subscribers; False if nothing changed. The delay is not waited for, the
        outcome of a child's attempt is: shown before, it would stay although its attempt aborts, beside the next one's.
        In an in_order audience "the audience" is the first group that has not journalled it whole; naming subscribers goes
        beside the order. Raises Refused for a subscriber the queue does not know.
        """

    def reveal_due(self, now: int, limit: int, *, held: Collection[str] = ()) -> int:
        """Reveal up to ``limit`` messages whose delay is over and that wait for no attempt; return how many.

        None of the publishers ``held``: what they have delayed waits for their word as well. Nor anything behind a message of the
        same publisher that waits for a word alone.
        """

    def accept(self, handles: Sequence[int], now: int) -> list[bool]:
        """Forget the attempt of children, since it is committed: REVEALED at once, or when their delay is over."""

    def withdraw(self, handles: Sequence[int], now: int) -> list[bool]:
        """PUT or REVEALED -> UNAVAILABLE; whoever has not taken it gets it EXPIRED and JOURNALLED.

        Taken ones may end; one that is freed is EXPIRED and JOURNALLED in the same write. The state stays UNAVAILABLE.
        """

    def discard(self, handles: Sequence[int], now: int) -> list[bool]:
        """PUT -> DELETED, only of a child (it has an attempt), which recovery found aborted; EXPIRED and JOURNALLED for all."""

    def republish(self, handle: int, subscriber: str, now: int, *, even_done: bool = False) -> bool:
        """UNUSABLE or JOURNALLED -> AVAILABLE for this subscriber; the publisher's state goes JOURNALLED -> REVEALED.

        False if it is neither, or was DONE, also by another member of its pool, and not ``even_done`` (an operator's word: a
        new effect); if the publisher's state is neither REVEALED nor JOURNALLED; if the publisher has put a message with this id anew. The subscriber's times,
        failures, cause and ``again_at`` start anew, its attempts go on counting; it is blocked while a member of its pool
        has the message. False, too, for one that is configured no more: nobody would take it, as `expire_now` says.
        """

    def prioritise(self, handles: Sequence[int], priority: int) -> list[bool]:
        """Set the priority of messages that are PUT or REVEALED."""

    def edit(self, handle: int, value: bytes | None, who: str, reason: str, now: int) -> bool:
        """Replace the value of a PUT or REVEALED message that nobody has ever taken, with `receipt.edited` as its last header.

        Else False. Raises Refused if it would be too large.
        """

    # What subscribers do ------------------------------------------------------------------------------------------

    def take(
        self,
        subscriber: str,
        holder: bytes,
        limit: int,
        now: int,
        *,
        without: Collection[bytes] = (),
        start: bool = False,
    ) -> list[Taken]:
        """AVAILABLE -> GET -> FETCHED for up to ``limit`` messages, in the order in which they are to be processed.

        A lane gives its messages in the order of their handles, without gap: while another holder has one of the lane
        (in this subscriber's group), or the first of the lane waits for its retry, the lane gives nothing (a retry further
        ahead than `QueueSettings.wait_max_ms` was set by a clock that was wrong, and is not waited for); and nothing ahead of what this holder has already: while the first that waits is older than that, the lane gives nothing.
        A message that another member of the pool may still take holds its place in the lane for all members, and so does a
        child whose attempt has no outcome yet: what was put behind it must not overtake it when it is accepted late.
        Lanes go by the highest priority that waits in them (unexpired, for this subscriber); among lanes of one priority
        the messages come by handle, so that a long lane does not fill a short take. Lanes in ``without`` give nothing: the
        taker has enough of them in hand. In a pool the others are blocked. Expired messages are passed over. With ``start``
        they are IN_PROCESS at once, as by `start` at the same time, which costs no write of its own. Raises Refused for an unknown subscriber, and for a holder that was not entered or was made to leave: it must stop.
        """

    def start(self, subscriber: str, tickets: Sequence[Ticket], now: int) -> list[bool]:
        """FETCHED -> IN_PROCESS."""

    def finish(self, subscriber: str, tickets: Sequence[Ticket], now: int) -> list[bool]:
        """FETCHED or IN_PROCESS -> DONE -> JOURNALLED; the rest of a pool EXPIRED -> JOURNALLED; the next group in order is revealed.

        The publisher's state becomes JOURNALLED when every subscriber's is.
        """

    def refuse(self, subscriber: str, causes: Sequence[tuple[Ticket, str]], now: int) -> list[bool]:
        """GET, FETCHED, IN_PROCESS -> UNUSABLE -> JOURNALLED with a cause; the rest of a pool is free again."""

    def free(
        self,
        subscriber: str,
        tickets: Sequence[Ticket],
        now: int,
        *,
        again_at: int | None = None,
        failed: bool = False,
    ) -> list[bool]:
        """GET, FETCHED, IN_PROCESS -> AVAILABLE, not before ``again_at``; ``failed`` counts a failure. The rest of a pool is free again."""

    def expire(self, now: int, limit: int) -> int:
        """AVAILABLE -> EXPIRED -> JOURNALLED for up to ``limit`` deliveries of REVEALED messages past their time; return how many.

        Blocked ones and those not yet revealed to their subscriber as well.
        """

    def expire_now(self, handles: Sequence[int], now: int, subscriber: str | None = None) -> list[bool]:
        """AVAILABLE -> EXPIRED -> JOURNALLED of REVEALED messages at a publisher's or subscriber's word ([53]); None: for all.

        True where a delivery expired. Raises Refused for a subscriber that neither the queue knows nor any of these that is
        PUT or REVEALED: one that is configured no more would keep them REVEALED, and its pool's lanes shut, for ever.
        """

    # Holders and recovery -----------------------------------------------------------------------------------------

    def enter(self, holder: Holder) -> None:
        """Make a worker known before its first take."""

    def beat(self, holder: bytes) -> bool:
        """Count one more beat; False if the holder was recovered: it must stop."""

    def leave(self, holder: bytes) -> bool:
        """Forget a worker; False (and nothing done) while it holds messages. True also of one that was forgotten before."""

    def holders(self) -> list[Holder]:
        """Return every known worker of this queue."""

    def held(self, holder: bytes) -> list[Ticket]:
        """Return what a worker has not given back, by handle."""

    def holds(self, subscriber: str, tickets: Sequence[Ticket]) -> list[SubscriberState | None]:
        """Return the state each ticket's attempt has led to: TAKEN states and DONE, UNUSABLE; None: freed, or another attempt's."""

    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:
        """Write an attempt's outcome unless it has one, and return the one that stands: True is committed."""

    def outcome(self, attempt: str) -> bool | None:
        """Return an attempt's outcome, None if it has none yet."""

    def forget(self, attempts: Sequence[str]) -> None:
        """Let committed outcomes go that nobody will ask for any more; (aborted) stays, since its worker may come back."""

    def children(self, limit: int, *, after: int = 0) -> list[Child]:
        """Return PUT messages that wait for an attempt's outcome, by handle, those above ``after``."""

    # What anybody may see -----------------------------------------------------------------------------------------

    def view(self, handle: int, *, value: bool = True) -> MessageView | None:
        """Return a message and all its states, altering nothing; also of a JOURNALLED one until it is trimmed."""

    def views(self, handles: Sequence[int], *, value: bool = True) -> list[MessageView]:
        """Return what `view` does of those of these messages that are there, by handle."""

    def find(self, chosen: Filter, *, after: int = 0, limit: int = 100) -> list[MessageView]:
        """Return messages without their values, by handle, those above ``after``; fewer than ``limit`` only at the end."""

    def counts(self) -> tuple[dict[PublisherState, int], list[Waiting]]:
        """Return how many messages are in each state, for publishers and for each subscriber; JOURNALLED may be an estimate.

        A subscriber that is configured no more is among them while messages wait for it, or are with its workers.
        """

    def unusable(self) -> dict[str, int] | None:
        """Return how many messages each subscriber found UNUSABLE, but for those given again since; None where all would be read for it."""

    def waiting(self) -> int:
        """Return how many messages are PUT or REVEALED: what the bound and load balancing go by; cheap."""

    # The journal --------------------------------------------------------------------------------------------------

    def journalled(self, now: int, limit: int) -> list[MessageView]:
        """Return up to ``limit`` JOURNALLED, UNAVAILABLE or DELETED messages that are past the queue's retention, with values, oldest first.

        Not while a worker has one. The age counts from the state's time; bytes are `receipt.size_of`.
        """

    def trim(self, handles: Sequence[int]) -> int:
        """Remove messages that are JOURNALLED, UNAVAILABLE or DELETED and with no worker (others stay); return how many."""

    # Moving to another store ----------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Refuse every later write of any process with Retired, for good; what is being written is waited for.

        Reading goes on, and what this section names. Once more: nothing happens.
        """

    def reinstate(self) -> None:
        """Take writes again after `retire`, since the queue comes back to this store. Once more: nothing happens."""

    def outcomes(self, *, after: str = "", limit: int = 1000) -> list[tuple[str, bool]]:
        """Return attempts with their outcomes by name, those above ``after``; True is committed."""

    def adopt(self, messages: Sequence[MessageView], *, uuid: str, outcomes: Sequence[tuple[str, bool]] = ()) -> None:
        """Write messages of another store of this queue as they are, in one unit, and go by its ``uuid`` from now on.

        Handles, states, times, attempts, failures, causes and holders are kept; a message that is here already is
        replaced. Handles given later are above every adopted one.
        """

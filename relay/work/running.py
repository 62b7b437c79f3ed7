"""One run of a handler: its function, then the one commit that decides, and nothing of it unless that commit holds.

1. The function runs; its writes stay in the open transaction, its children are collected.
2. Children for other databases are put, hidden under the attempt's name; writes in further databases are prepared under it.
3. The deciding database commits: the handler's writes, DONE (or the attempt's outcome), children that live there.
4. Children elsewhere are shown, what was prepared is committed.

A death before 3 leaves nothing but hidden children and prepared writes, a death after it nothing but children to be shown and
prepared writes to be committed: recovery does both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import structlog

from relay.message.errors import ConfigError, InDoubt, RelayError, Retriable, Stopped, Unreachable, words_of
from relay.message.unfinished import is_unfinished
from relay.queue.attempts import AttemptAborted, commit_here
from relay.queue.message import Taken
from relay.queue.port import Retired
from relay.work.away import Waits, is_at_limit, spoken_for
from relay.work.cause import cause_of, storable
from relay.work.children import HiddenChildren, left_to_recovery, named, parted
from relay.work.desk import TIME_OVER, CommitTooLong, Desk, EffectsInDoubt, TimeOver
from relay.work.desks import Database, Desks
from relay.work.dispatch import Ended, Outcome, Work
from relay.work.forgetting import Forgetting
from relay.work.further import Further, FurtherDatabase
from relay.work.hands import all_ended
from relay.work.message import Message
from relay.work.place import Place
from relay.work.subscriber import Handler, Later, Unusable
from relay.world import clock
from relay.world.crash import crash_point
from relay.world.seldom import Seldom

FIND_OUT_S: Final = 30.0
"""So long a handler's database is asked what became of a COMMIT; after it the process ends, and the next one asks."""


class NotAwaited(RelayError):
    """A handler returned what is still to be done, or is done elsewhere: nobody would learn how that ended."""

    def __init__(self, returned: object) -> None:
        super().__init__(
            f"the handler returned a {type(returned).__name__}, which nobody waits for: declare it with async def and await that, "
            "iterate over it, or ask for its result, before it returns"
        )


def check_returned(returned: object) -> None:
    """Raise NotAwaited for what is still to be done."""
    if is_unfinished(returned):
        raise NotAwaited(returned)


def leave_fork(messages: Sequence[Message], error: BaseException | None) -> None:
    """End the process if it is a fork that has come to its handler's end, returned or by this error; else do nothing.

    Nobody is its worker: it would end the transaction of its parent, whose connection it has, and handle once more what waits there.
    """
    if messages[0].process == os.getpid():
        return
    code = error.code if isinstance(error, SystemExit) else None if error is None else 1
    os._exit(code if isinstance(code, int) else code is not None)


_NO_FURTHER: Final = Further()
_children = attrgetter("children")


class Call(NamedTuple):
    """One call of a handler and what it may write with."""

    work: Work
    messages: list[Message]
    database: Database | None
    further: Further

    def given(self, handler: Handler) -> Any:
        """Return the handler's first argument: a message, or the messages of a batch.

        Those in a list of its own: whoever takes them out of it one by one would else take their children with them.
        """
        return list(self.messages) if handler.batch else self.messages[0]

    @property
    def databases(self) -> tuple[Database | FurtherDatabase, ...]:
        """What the handler writes with, in the order in which it names them."""
        return () if self.database is None else (self.database, *self.further.databases)

    def end(self) -> None:
        """The handler has returned: nothing that it left behind may write or publish any more."""
        for message in self.messages:
            message.end()
        for database in self.databases:
            database.end()

    @property
    def left_nothing(self) -> bool:
        """Has it neither written nor published, so that only DONE is left to be written?"""
        is_written = self.further.is_begun or (self.database is not None and self.database.desk is not None)
        return not is_written and not self._has_children

    @property
    def reaches_elsewhere(self) -> bool:
        """May something lie in another store under the attempt's name once it is decided about?"""
        return self.further.is_begun or self._has_children

    @property
    def _has_children(self) -> bool:
        return any(map(_children, self.messages))


class Runner:
    """Runs works of one handler, each in the thread that calls it. ``desks`` None: the handler has no database.

    ``further`` makes the further databases of an attempt; they need one that decides. None: there are none.
    """

    def __init__(
        self,
        handler: Handler,
        place: Place,
        desks: Desks | None,
        further: Callable[[str], Further] | None = None,
    ) -> None:
        self._handler = handler
        self._place = place
        self._desks = desks
        self._further = further
        self.forgetting = Forgetting()
        self._failures = Seldom()
        self._waits = Waits()
        self._has_said = False
        self.children = 0

    def __call__(self, work: Work) -> Sequence[Ended]:
        """Run a work to its end; raises InDoubt only if nobody answers what became of it, Retired if a queue has moved."""
        call = self.begin(work)
        try:
            returned = self._handler(call.given(self._handler), *call.databases)
            check_returned(returned)
            crash_point("work.ran")
        except BaseException as error:  # noqa: BLE001 - see below
            # Whatever a handler raises is a failure of its message: also asyncio.CancelledError or a panic of an extension,
            # which are no Exception. Signals never reach this thread, so nothing else is caught here.
            leave_fork(call.messages, error)
            return self.failed(call, error)
        leave_fork(call.messages, None)
        return self.decide(call)

    def begin(self, work: Work) -> Call:
        """Return what one call has in its hands; nothing is opened yet."""
        return Call(
            work,
            [Message(one, self._place.queue) for one in work.messages],
            Database(self._desks) if self._desks is not None else None,
            _NO_FURTHER if self._further is None else self._further(self._place.attempt(work.messages[0])),
        )

    def failed(self, call: Call, error: BaseException) -> Sequence[Ended]:
        """Take back what the handler wrote before it raised, and return what that makes of its messages."""
        call.end()
        database, further = call.database, call.further
        error = spoken_for(error, partial(_rank, call))
        away = _is_away(call, error)
        _take_back(database)
        further.give_up()
        if isinstance(error, Unusable):
            return self._all_failed(call.work, Outcome.UNUSABLE, words_of(error))
        if away or is_at_limit(error):
            return self._all_away(call, error)
        return self._all_failed(call.work, Outcome.FAILED, cause_of(error, self._handler), after_s=_after_s(error))

    def _all_failed(
        self, work: Work, outcome: Outcome, cause: str, together: Outcome = Outcome.SPLIT, after_s: float = 0.0
    ) -> list[Ended]:
        if outcome is not Outcome.LOST:
            self._say_failure(outcome, cause)
        return all_ended(work, outcome if len(work.messages) == 1 else together, storable(cause), after_s)

    def _all_away(self, call: Call, error: BaseException) -> list[Ended]:
        if not call.further.has_said(error):
            self._waits.count(error, cause_of(error, self._handler))
        return all_ended(call.work, Outcome.AWAY, after_s=_after_s(error))

    def _say_failure(self, outcome: Outcome, cause: str) -> None:
        """The message keeps each cause; whoever reads the log learns that there are any. Words of a handler's own are left out."""
        self._failures.count(cause if outcome is Outcome.FAILED else "found UNUSABLE by the handler")
        self._say_failures(clock.monotonic())

    def _say_failures(self, now: float) -> None:
        due = self._failures.due(now)
        if due:
            structlog.get_logger("relay.work").warning("handler failed", causes=due, see="relay message list --unusable")

    def say(self, now: float) -> None:
        """Say what was counted since it was said last, once it is time; ``AT_THE_END`` in any case."""
        self._say_failures(now)
        self._waits.say(now)

    def decide(self, call: Call) -> Sequence[Ended]:
        """Commit what the handler did, with its messages' DONE; raises InDoubt only if nobody answers what became of it."""
        call.end()
        work, messages, database, further = call.work, call.messages, call.database, call.further
        if call.left_nothing:
            return all_ended(work, Outcome.DONE)
        # Before anything is given up, after which it has no further database any more.
        together = Outcome.APART if call.reaches_elsewhere else Outcome.SPLIT
        try:
            if database is not None:
                return self._decide_in_database(work, messages, database, further)
            return self._decide_in_queue(work, messages)
        except EffectsInDoubt as doubt:
            further.leave()
            return self._find_out(work, doubt)
        except Exception as error:  # noqa: BLE001 - also a child that is refused, a constraint checked at COMMIT
            return self._undecided(call, error, together)
        finally:
            _take_back(database)

    def _undecided(self, call: Call, error: Exception, together: Outcome) -> Sequence[Ended]:
        """Return how a work ends that was not decided; a batch ends ``together``.

        What it could not take back of what it had put or prepared must not be decided by the run of one message alone.
        """
        if isinstance(error, AttemptAborted):
            # Somebody took this worker for dead: everything was taken back.
            return self._all_failed(call.work, Outcome.LOST, "", together)
        if isinstance(error, InDoubt):
            # The queue's own answer: the guarded write that gives the message back tells.
            return all_ended(call.work, Outcome.BACK)
        if isinstance(error, Retired):
            # A queue that it publishes to goes on elsewhere: the next process opens it there, this one would never.
            raise error
        if isinstance(error, Retriable | Unreachable | Stopped | ConfigError):
            # Also a store that a person must mend (damaged, not recorded): the message has done nothing wrong.
            return self._all_away(call, error)
        return self._all_failed(call.work, Outcome.FAILED, cause_of(error, self._handler), together)

    def _decide_in_database(
        self, work: Work, messages: list[Message], database: Database, further: Further
    ) -> Sequence[Ended]:
        hidden = HiddenChildren(self._place)
        try:
            desk = database.begun()
            desk.check()
            near, far = parted(messages, desk.stores)
            hidden.put(far)
            further.prepare()
            now = clock.wall_ms()
            for message, children in near:
                for queue, new in named(self._place, message, children).items():
                    parents = self._place.parents(message)
                    desk.stores[queue].put([one._replace(parents=parents) for one in new], now)
            elsewhere = [message.taken for message, _ in far]
            if further.is_begun and work.messages[0] not in elsewhere:
                elsewhere.append(work.messages[0])
            self._write_outcome(desk, work, elsewhere, now)
            crash_point("work.deciding")
            database.finish()
        except EffectsInDoubt:
            # In doubt: the children stay hidden until the attempt's outcome is known.
            raise
        except BaseException as error:
            # Abort: COMMIT was not sent, or refused.
            is_time_over = database.is_time_over(error) or further.is_time_over(error)
            database.give_up()
            further.give_up()
            hidden.discard()
            if is_time_over:
                raise TimeOver(TIME_OVER) from error
            raise
        crash_point("work.decided")
        has_all = False
        with left_to_recovery("decided"):
            has_all = further.finish()
        has_all = hidden.show() and has_all
        self._count(messages)
        is_written = self._place.queue in desk.stores
        if has_all and is_written:
            self.forgetting.over(self._place.attempt(one) for one in elsewhere)
        elif has_all:
            self.forgetting.left_nothing({one.ticket: self._place.attempt(one) for one in work.messages})
        self._forget(clock.monotonic())
        return all_ended(work, Outcome.WRITTEN if is_written else Outcome.DONE)

    def _count(self, messages: Sequence[Message]) -> None:
        count = sum(len(message.children) for message in messages)
        self.children += count  # nothing is called in between, so that another thread's are not lost

    def forget_all(self) -> None:
        """Forget what is left of outcomes that nobody needs any more: the worker has ended."""
        while self._forget(float("inf")):
            pass

    def _forget(self, now: float) -> bool:
        """Delete outcomes that are due where they lie, in a transaction of their own; False if there is nothing more to do now."""
        if not (names := self.forgetting.due(now)):
            return False
        place = self._place
        database = None if self._desks is None else Database(self._desks)
        try:
            if database is None:
                with place.locks[place.queue]:
                    place.store.forget(names)
            else:
                desk = database.begun()
                is_own = place.deciding == f"queue:{place.queue}"
                (desk.stores[place.queue] if is_own else desk.outcomes).forget(names)
                database.finish()
        except Exception as error:  # noqa: BLE001 - nothing of a message: its attempt is decided and DONE
            if isinstance(error, ConfigError):
                self._say_once(str(error))
            else:
                # Retry: forgetting twice is harmless.
                self.forgetting.over(names)
            return False
        finally:
            _take_back(database)
        return True

    def _say_once(self, sentence: str) -> None:
        if not self._has_said:
            self._has_said = True
            structlog.get_logger("relay.work").warning("outcomes of attempts are kept for ever", reason=sentence)

    def _write_outcome(self, desk: Desk, work: Work, elsewhere: list[Taken], now: int) -> None:
        """Write DONE where the queue is in this database, else every attempt's outcome; raises AttemptAborted.

        ``elsewhere`` are those that left something in another store, for which the outcome is written in any case.
        """
        place = self._place
        own = desk.stores.get(place.queue)
        if own is None:
            for taken in work.messages:
                commit_here(desk.outcomes, place.attempt(taken), now)
            return
        if not all(own.finish(place.subscriber, [one.ticket for one in work.messages], now)):
            raise AttemptAborted("another worker has the message")
        for taken in elsewhere:
            commit_here(own, place.attempt(taken), now)

    def _decide_in_queue(self, work: Work, messages: list[Message]) -> Sequence[Ended]:
        _, far = parted(messages, {})
        hidden = HiddenChildren(self._place)
        place, now = self._place, clock.wall_ms()
        try:
            hidden.put(far)
            with place.locks[place.queue], place.store.transaction():
                if not all(place.store.finish(place.subscriber, [one.ticket for one in work.messages], now)):
                    raise AttemptAborted("another worker has the message")
                for message, _ in far:
                    commit_here(place.store, place.attempt(message.taken), now)
                crash_point("work.deciding")
        except InDoubt:
            # In doubt: the children stay hidden until the attempt's outcome is known.
            raise
        except BaseException:
            hidden.discard()
            raise
        crash_point("work.decided")
        if hidden.show():
            self.forgetting.over(place.attempt(message.taken) for message, _ in far)
        self._count(messages)
        self._forget(clock.monotonic())
        return all_ended(work, Outcome.WRITTEN)

    def _find_out(self, work: Work, doubt: EffectsInDoubt) -> Sequence[Ended]:
        """After a lost answer of the handler's database: DONE if it says so, else the guarded write tells.

        That counts a failure if COMMIT took too long, and is refused if it had committed. Of a batch each runs by itself.
        """
        is_told = self._place.deciding != f"queue:{self._place.queue}"
        stand = [is_told and self._outcome(self._place.attempt(taken)) for taken in work.messages]
        if all(stand):
            return all_ended(work, Outcome.DONE)
        undone = all_ended(work, Outcome.BACK)
        if isinstance(doubt, CommitTooLong):
            undone = self._all_failed(work, Outcome.FAILED, str(doubt), Outcome.APART)
        return [Ended(end.taken, Outcome.DONE) if stands else end for end, stands in zip(undone, stand, strict=True)]

    def _outcome(self, attempt: str) -> bool:
        """Write (aborted) unless an outcome stands, in a transaction of its own; raises InDoubt if nobody answers."""
        assert self._desks is not None, "a resource decides"
        limit = clock.monotonic() + FIND_OUT_S
        while True:
            database = Database(self._desks)
            try:
                stands = database.begun().outcomes.settle(attempt, committed=False, now=clock.wall_ms())
                database.finish()
            except (Retriable, Unreachable, InDoubt):
                # Retry: settling twice is harmless.
                _take_back(database)
                if clock.monotonic() > limit:
                    raise
                clock.sleep(0.5)
            else:
                return stands

def _take_back(database: Database | None) -> None:
    if database is not None:
        database.give_up()


def _is_away(call: Call, error: BaseException) -> bool:
    desk = None if call.database is None else call.database.desk
    is_desks = desk is not None and desk.is_away(error)
    waits = isinstance(error, Retriable | Unreachable) or (isinstance(error, Later) and not error.counted)
    return is_desks or waits or call.further.is_away(error)


def _after_s(error: BaseException) -> float:
    return error.after_s if isinstance(error, Later) else 0.0


def _rank(call: Call, error: BaseException) -> int:
    return 0 if isinstance(error, Unusable) else 1 + _is_away(call, error)

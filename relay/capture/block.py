"""One capture: the block's messages are in the log before its COMMIT, and show only because of it.

1. begin: the decision is the transaction's first statement. 2. the application's statements; messages wait.
3. prepare: sequence numbers and append under one lock, own delivery reports awaited outside it. 4. decide: COMMIT,
with the proof that it ends the transaction begun. 5. mark: left to the background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, overload

import orjson

from relay.capture import message
from relay.capture.flow import Entered
from relay.capture.message import Buffered
from relay.capture.outcomes import Placed
from relay.capture.publisher import Publisher
from relay.capture.statements import check_statement
from relay.capture.upkeep import Decided
from relay.message import envelope
from relay.message.avro_values import AvroEncoder
from relay.message.envelope import FilledHeaders
from relay.message.errors import CaptureError, CaptureFenced, CaptureInDoubt, ConfigError, Unreachable
from relay.resources.port import AnswerLost, CommitRefused, NotTheTransactionBegun, Session
from relay.world import clock, schedule
from relay.world.crash import crash_point

_SAYS_NO_EFFECT: Final = (CaptureError, ConfigError, Unreachable)
"""Whoever is told one of these may run the block again."""


class _Phase(Enum):
    NEW = "not entered yet"
    OPEN = "open"
    FAILED = "failed"
    ENDED = "over"


class _WayOut:
    """The way out of a block, which its ``with`` statement holds, and nobody else."""

    __slots__ = ("_block", "_leave")

    def __init__(self, leave: Callable[..., None], block: CaptureBlock) -> None:
        self._leave = leave
        self._block = block

    def __call__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave(self._block, kind, error, trace)
        finally:
            if self._block.is_over:
                self.__class__ = _WayOut  # as a rule: an interrupt inside `__del__` would reach nobody


class _Watched(_WayOut):
    """A way out that ends the block if nobody has gone it to its end."""

    __slots__ = ()

    def __del__(self) -> None:
        self._block.abandon()


class _Leaving:
    """``__exit__``, as a ``with`` statement looks it up before it enters.

    An interrupt at the very beginning of ``__exit__`` comes before any code in there can react to it. But what the statement
    looked up is dropped however the statement ends, and ends the block then; the block itself may be kept in a variable.
    """

    def __init__(self, leave: Callable[..., None]) -> None:
        self._leave = leave

    @overload
    def __get__(self, block: None, kind: type[CaptureBlock]) -> Callable[..., None]: ...

    @overload
    def __get__(self, block: CaptureBlock, kind: type[CaptureBlock]) -> _WayOut: ...

    def __get__(self, block: CaptureBlock | None, kind: type[CaptureBlock]) -> Callable[..., None]:
        if block is None:
            return self._leave
        # Whoever looks at a block that is entered already does not end it.
        return _Watched(self._leave, block) if block.is_new else partial(self._leave, block)


class CaptureBlock:
    """The block of a ``with capture.transaction()``. Of several threads that use it each has it for a call, one after the other."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._phase = _Phase.NEW
        self._messages: list[Buffered] = []
        self._bytes = 0
        self._published = 0
        self._savepoints = 0
        self._spoilt = set[int]()
        """The savepoints within which a call has failed."""
        self._session: Session
        self._nonce: bytes
        self._capture: bytes
        self._placed: list[Placed] = []
        self._entered = Entered()
        self._in_use = schedule.reentrant_lock()

    @property
    def id(self) -> bytes:
        """The capture's id, 16 bytes."""
        return self._capture

    def __enter__(self) -> Self:
        if self._phase is not _Phase.NEW:
            self._refuse()  # its messages carry the id of the capture that they were published in
        session = None
        try:
            self._publisher.enter(self._entered)
            session, self._capture, self._nonce = self._publisher.begin()
            self._session = session
            name = self._capture.hex()
            self._name = name
            self._common = [*self._publisher.common_headers, (envelope.CAPTURE, name.encode())]
            self._time = clock.wall_iso().encode()
            self._phase = _Phase.OPEN
            crash_point("capture.begun")
        except BaseException:
            # Abort: interrupted, it would never be left, and its transaction would hold up every other writer.
            self._entered.of = None
            if session is not None:
                session.close()
            raise
        return self

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if not self._publisher.is_here:
            # A fork that left the block would end the transaction of its parent, which goes on with it.
            if kind is None:
                self._publisher.check_process()
            return
        with self._in_use:  # what another thread does in the block is part of it, and comes to its end before
            try:
                if kind is not None:
                    self._fail(error)
                elif self._phase is _Phase.FAILED:
                    self._refuse_to_decide()
                else:
                    self._end()
            except BaseException as failure:
                # Abort, unless COMMIT was sent: then the block is over already. One that has failed before was looked at above.
                if self._phase is _Phase.OPEN:
                    self._fail(failure)
                raise
            finally:
                self._phase = _Phase.ENDED
                self._entered.of = None
                self._publisher.give_back(self._session)
                del self._session  # a block that is kept does not keep its connection, which other blocks use

    if TYPE_CHECKING:  # not every checker takes what is looked up for a method, and so a block for a context manager

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...

    else:
        __exit__ = _Leaving(_leave)

    def execute(self, query: Any, params: Any = None) -> Any:
        """Run one SQL statement with the driver's own placeholders and return its cursor, which has read its rows.

        What it sets for the session stays with a connection that later blocks use: prefer ``set local``. Raises the
        driver's errors, and CaptureError for a statement that controls transactions, which is not run; outside a savepoint
        they end the block. CaptureInDoubt if an earlier statement has ended the transaction all the same: this one would take
        effect by itself, and no message would ever tell of it.
        """
        with self._using():
            self._refuse_unless_in_transaction()
            check_statement(query)
            return self._session.execute(query, params)

    def publish(
        self,
        topic: str,
        data: Any = None,
        *,
        key: str | bytes | bytearray | memoryview | int | None = None,
        type: str = message.DEFAULT_TYPE,  # noqa: A002 - CloudEvents' word
        id: str | None = None,  # noqa: A002 - CloudEvents' word
        subject: str | None = None,
        partition: int | None = None,
        headers: FilledHeaders | None = None,
        content_type: str | None = None,
        time: str | None = None,
        schema: AvroEncoder | None = None,
    ) -> str:
        """Add a message to the capture and return its id.

        ``data`` is bytes, or anything that JSON can express, which NaN and the infinities are not; with
        ``schema`` (see ``Capture.avro``), data that fits it. None makes a message without a value. Without ``partition`` the
        key decides where it goes, without a key the source, so that the publisher's order holds. Without ``id`` each call
        makes a message of its own. Raises CaptureError for what cannot be appended, and for headers that no queue could read,
        ConfigError for a topic that does not exist, is compacted or the relay's own, Unreachable; outside a savepoint they end the block, which
        would commit without the message.
        """
        with self._using():
            message.check_text(topic=topic, key=key, type=type, id=id, subject=subject, content_type=content_type, time=time)
            facts = self._publisher.topic(topic)
            message.check_type(type)
            message.check_id(id)
            raw_key = message.encoded_key(key)
            if partition is None:
                partition = message.partition_of(raw_key or self._publisher.source_bytes, facts.partitions)
            else:
                partition = message.whole_partition(partition, facts.partitions, topic)
            value, kind = message.encoded(data, schema)
            identifier = id or f"{self._name}-{self._published}"
            fields = [
                *self._common,
                (envelope.ID, identifier.encode()),
                (envelope.TYPE, type.encode()),
                (envelope.TIME, time.encode() if time else self._time),
                (envelope.CONTENT_TYPE, content_type.encode() if content_type else kind),
            ]
            if subject is not None:
                fields.append((envelope.SUBJECT, subject.encode()))
            if headers is not None:
                fields += message.extra_headers(headers)
            found = Buffered(topic, partition, raw_key, value, fields)
            self._bytes += self._publisher.admit(found, facts, len(self._messages), self._bytes)
            self._messages.append(found)
            self._published += 1
            return identifier

    def refuse_unfinished(self, returned: object) -> NoReturn:
        """End the block for what a function has returned instead of having done it."""
        with self._using():
            raise CaptureError(
                f"tx.run: the function returned a {type(returned).__name__}, which nobody waits for: give a plain function, which "
                "has done its work when it returns; what is awaited belongs between the calls of the block"
            )

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo statements and drop messages of the inner block if an exception leaves it; the outer may go on."""
        with self._using():
            self._refuse_unless_in_transaction()
            kept, kept_bytes = len(self._messages), self._bytes
            self._savepoints += 1
            number = self._savepoints
        try:
            with self._in_use:
                self._session.savepoint(number)
            yield
            with self._using():
                if number in self._spoilt:
                    raise CaptureError("a call within a tx.savepoint() failed, and it went on; it is undone: let the error leave it")
                self._session.release(number)
        except BaseException as error:
            if not self._publisher.is_here:
                raise  # a fork: the transaction and its savepoints are the parent's
            with self._in_use:
                del self._messages[kept:]
                self._bytes = kept_bytes
                self._undo_to(number, error)
            raise
        finally:
            self._savepoints -= 1
            self._spoilt.discard(number)

    def _undo_to(self, number: int, error: BaseException) -> None:
        if self._phase is not _Phase.OPEN:
            return
        if not self._session.in_transaction:
            self._roll_back()  # the savepoint went with the whole transaction
            return
        try:
            self._session.rollback_to(number)
        except BaseException:
            # Abort: the connection or the savepoint is gone, or an interrupt came: its statements may still stand.
            self._roll_back()
            if isinstance(error, Exception):
                raise  # while an interrupt stays one: it may have come before the savepoint was set

    def abandon(self) -> None:
        """The ``with`` statement is over and did not leave the block, since an interrupt came as it was about to."""
        if self.is_new or not self._publisher.is_here:
            return
        with self._in_use:
            if self.is_over:
                return
            try:
                self._roll_back()
            finally:
                self._phase = _Phase.ENDED
                self._entered.of = None
                self._session.close()

    @property
    def is_new(self) -> bool:
        """Is it not entered yet?"""
        return self._phase is _Phase.NEW

    @property
    def is_over(self) -> bool:
        """Is it left?"""
        return self._phase is _Phase.ENDED

    def _end(self) -> None:
        if not self._session.is_intact(self._capture):
            self._refuse_to_decide()
        if self._messages:
            self._publisher.append(self._messages, self._placed)
            crash_point("capture.appended")
        self._decide()
        crash_point("capture.decided")
        if self._placed:
            self._publisher.mark(self._capture, self._nonce, self._placed)

    def _refuse_to_decide(self) -> NoReturn:
        """Say whether the block's statements ended the transaction, or it failed under one that `execute` did not run."""
        if self._phase is _Phase.FAILED or self._session.failed:
            # The row tells: a block that sent COMMIT itself before its failure has committed it.
            self._session.rollback()
            found = self._outcome()
            self._phase = _Phase.FAILED  # what is raised now is known to be true
            if found is None:
                raise CaptureInDoubt(
                    f"capture {self._name}: the connection was lost and the decision cannot be read now; nothing was "
                    "published, and relay_capture will tell whether the block's statements committed anything themselves"
                )
            if found in (Decided.ABORTED, Decided.FENCED):
                raise CaptureError(
                    f"capture {self._name}: a statement of the block failed, or was not read to its end, or a message was "
                    "refused, and the block went on; the capture is rolled back: let the error leave the block, or use tx.savepoint()"
                )
        raise CaptureInDoubt(
            f"capture {self._name}: the block's statements ended the database transaction themselves (COMMIT or "
            "ROLLBACK inside execute); nothing was published, but what they committed stays"
        )

    def _decide(self) -> None:
        partitions = orjson.dumps([tuple(placed) for placed in self._placed])
        self._phase = _Phase.ENDED
        try:
            self._session.decide(self._capture, partitions)
        except NotTheTransactionBegun as error:
            self._ended_by_itself(self._find_out(), error)
        except (CommitRefused, AnswerLost) as error:
            # In doubt until the row is read: neither a lost answer nor an error is a rollback.
            self._follow_the_row(error)
        except BaseException:
            # In doubt: interrupted between sending and receiving.
            self._session.close()
            self._publisher.doubt(self._capture, self._nonce, self._placed)
            raise

    def _ended_by_itself(self, found: Decided | None, error: Exception) -> NoReturn:
        """In doubt for the caller; for the messages the row tells, as it does to everyone."""
        if found is not None and self._placed:
            is_aborted = found in (Decided.ABORTED, Decided.FENCED)
            self._publisher.mark(self._capture, None if is_aborted else self._nonce, self._placed)
        raise CaptureInDoubt(
            f"capture {self._name}: the block's statements ended the database transaction themselves; the "
            "messages follow what they committed, later statements are rolled back"
        ) from error

    def _follow_the_row(self, error: CommitRefused | AnswerLost) -> None:
        """Return if the row says that the capture is committed, as its end was to make it."""
        found = self._outcome()
        is_refused = isinstance(error, CommitRefused)
        if found is None:
            raise CaptureInDoubt(
                f"capture {self._name}: COMMIT was sent, its answer was {'an error' if is_refused else 'lost'} and the decision "
                "cannot be read now; relay_capture will tell, and the messages follow it"
            ) from error
        if found is Decided.COMMITTED:
            return
        if found is Decided.COMMITTED_EARLY:
            self._ended_by_itself(found, error)
        self._mark_aborted()
        if is_refused:
            raise CaptureError(f"capture {self._name}: {error}") from error.__cause__
        if found is Decided.FENCED:
            raise CaptureFenced(
                f"capture {self._name}: the connection was lost and a resolver decided that it is aborted; "
                "run the block again"
            ) from error
        raise CaptureError(
            f"capture {self._name}: the connection was lost before the commit took effect; run the block again ({error})"
        ) from error

    def _outcome(self) -> Decided | None:
        """Return what `_find_out` does, once the session has rolled back; mostly its own connection knows."""
        return Decided.ABORTED if self._session.is_undone(self._capture) else self._find_out()

    def _find_out(self) -> Decided | None:
        """Ask on another connection; None if it cannot be found out in time."""
        self._session.close()
        found = None
        try:
            found = self._publisher.find_out(self._capture)
        finally:
            if found is None:  # not known in time, or interrupted meanwhile
                self._publisher.doubt(self._capture, self._nonce, self._placed)
        return found

    def _fail(self, error: BaseException | None) -> None:
        """Roll back; CaptureInDoubt if the error says that the block took no effect, and that is not so, or not known."""
        if self._phase not in (_Phase.OPEN, _Phase.FAILED):
            return
        is_asked = isinstance(error, _SAYS_NO_EFFECT)
        if self._phase is _Phase.OPEN:
            is_undone = self._roll_back(is_asked=is_asked)
        else:  # rolled back when a statement of it failed, and nobody asked then
            is_undone = is_asked and self._session.is_undone(self._capture)
        if is_undone or not is_asked:
            return
        found = self._publisher.find_out(self._capture)
        if found is None:
            raise CaptureInDoubt(
                f"capture {self._name}: the block failed ({error}), and whether its own statements have committed anything cannot "
                "be read now; relay_capture will tell, and what was published follows it"
            ) from error
        if found not in (Decided.ABORTED, Decided.FENCED):
            raise CaptureInDoubt(
                f"capture {self._name}: the block's statements ended the database transaction themselves before it failed "
                f"({error}); what they committed stays, and what is in the log follows it"
            ) from error

    def _roll_back(self, *, is_asked: bool = False) -> bool:
        """Roll back a block that is open; is it surely undone? Without messages in the log only ``is_asked`` wants to know."""
        if self._phase is not _Phase.OPEN:
            return False
        self._phase = _Phase.FAILED
        is_undone = False
        try:
            self._session.rollback()
            is_undone = not (self._placed or is_asked) or self._session.is_undone(self._capture)
        finally:
            if is_undone:
                self._mark_aborted()
            else:
                # In doubt for the log, though COMMIT was not sent: a block that sent its own has committed the row.
                self._publisher.doubt(self._capture, self._nonce, self._placed)
        return is_undone

    def _mark_aborted(self) -> None:
        if self._placed:
            crash_point("capture.aborted")
            self._publisher.mark(self._capture, None, self._placed)

    def _refuse_unless_in_transaction(self) -> None:
        if not self._session.in_transaction:
            self._refuse_to_decide()

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Have the open block to oneself, since a thread may leave it while another is at a statement.

        What is raised meanwhile ends the block, unless it may be undone up to a savepoint.
        """
        self._publisher.check_process()  # first: a fork may have been made while another thread had it
        with self._in_use:
            if self._phase is not _Phase.OPEN:
                self._refuse()
            try:
                yield
            except BaseException:
                self._end_unless_savepoint()
                raise

    def _end_unless_savepoint(self) -> None:
        if self._savepoints:
            self._spoilt.add(self._savepoints)
        else:
            self._roll_back()

    def _refuse(self) -> NoReturn:
        raise CaptureError(f"the block is {self._phase.value}; begin another with capture.transaction()")

"""What the captures of one process share: the log's producer, a connection each, one order of appends, markers behind them."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping
from typing import Final

from relay.capture import flow
from relay.capture.flow import Entered
from relay.capture.inquiries import Answering
from relay.capture.marking import Ended, Marking
from relay.capture.message import Buffered
from relay.capture.outcomes import Placed
from relay.capture.upkeep import Decided, Upkeep, find_out
from relay.kafka.appender import Appender, Receipt, Record
from relay.kafka.inquiries import InquiryReader
from relay.kafka.settings import TimingLike
from relay.kafka.topics import VISIBLE_S, TopicFacts
from relay.message import envelope
from relay.message.errors import CaptureError, ConfigError, Unreachable
from relay.resources.port import Resource, Session
from relay.resources.turns import Turn
from relay.world import clock, randomness
from relay.world.crash import crash_point

FIND_OUT_S: Final = 10.0
CLOSE_S: Final = 10.0
IDLE_KEPT_S: Final = 60.0
"""A database has few connections: what a burst of threads needed is closed when it has been idle for so long."""


class Publisher:
    """What blocks ask of the ``Capture`` that opened them, from any number of threads; see there for the arguments."""

    def __init__(
        self,
        resource: Resource,
        source: str,
        *,
        kafka: Mapping[str, str],
        timing: TimingLike,
        max_messages: int,
        max_bytes: int,
        inquiries: str | None,
        relay: str | None,
    ) -> None:
        self._timing = timing
        self._resource = resource
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._idle: deque[tuple[float, Session]] = deque()
        """Since when, the last one to the right: it is taken first, so that those to the left are needed no more."""
        self._blocks = object()
        self._process = os.getpid()
        self._open = [True]
        """Emptied by the one thread that closes."""
        self._appends = Turn()
        self._sequences: dict[tuple[str, int], int] = {}
        self.source_bytes = source.encode()
        self.incarnation = randomness.random_bytes(16).hex()
        self.name = resource.identity()
        self.common_headers = (
            (envelope.SPECVERSION, b"1.0"),
            (envelope.SOURCE, self.source_bytes),
            (envelope.RESOURCE, self.name.encode()),
            (envelope.INCARNATION, self.incarnation.encode()),
        )
        self._appender = self._appending(kafka, relay)
        self._marking = Marking(self._appender, resource.decisions, self.source_bytes, self.name, timing.append_timeout)
        answering = None
        if inquiries is not None:
            answering = Answering(
                lambda: InquiryReader(kafka, timing, inquiries),
                self._appender,
                self.source_bytes,
                self.name,
                timing.append_timeout,
            )
        self._upkeep = Upkeep(
            self._appender, resource.decisions, self._marking, self.name, answering, self._close_idle
        )

    @property
    def backlog(self) -> int:
        """How many captures of this process are not yet known to be marked."""
        return self._marking.backlog

    @property
    def in_doubt(self) -> int:
        """How many captures of this process have an unknown outcome."""
        return self._upkeep.doubtful

    def close(self) -> None:
        """Write the markers that are due, then let go of producer and connections. Safe to repeat."""
        if not self._open or not self.is_here:
            return  # in a fork: closing would end connections that the parent uses
        if sys.is_finalizing():
            return  # its threads have stopped for good, so whoever joined them, from a `__del__`, would wait for ever
        try:
            self._open.pop()
        except IndexError:
            return  # another thread was faster: a client that is closed twice raises
        self._upkeep.close(CLOSE_S)
        self._marking.close(CLOSE_S)
        self._appender.close()
        self._close_idle()

    def enter(self, entered: Entered) -> None:
        """Refuse a block inside a block of the same flow of control, or of a Capture that is closed or another process's."""
        if not self._open:
            raise CaptureError("this Capture is closed; open another")
        self.check_process()
        flow.enter(entered, self._blocks)

    @property
    def is_here(self) -> bool:
        """Is this the process that opened it, rather than a fork, whose connections are its parent's?"""
        return self._process == os.getpid()

    def check_process(self) -> None:
        """Raise CaptureError in a fork."""
        if not self.is_here:
            raise CaptureError(
                f"this Capture was opened by process {self._process}; open one in each process, after the fork"
            )

    def begin(self) -> tuple[Session, bytes, bytes]:
        """Begin a capture on a free connection; a stale one is replaced. Returns the session, the capture's id and its nonce."""
        while True:
            try:
                (_, session), reused = self._idle.pop(), True
            except IndexError:
                session, reused = self._connect(), False
            try:
                capture, nonce = session.begin()
            except (Unreachable, ConfigError):
                session.close()
                if not reused:
                    raise
                # Retry on a new connection: this one died while it was idle, or a block has left it a role without rights, and
                # nothing was begun. The others are as old, and each would be waited for as long.
                self._close_idle(kept_s=0.0)
                continue
            except BaseException:
                session.close()
                raise
            return session, capture, nonce

    def give_back(self, session: Session) -> None:
        """Keep a connection for the next capture, if it is fit for one."""
        if session.usable:
            self._idle.append((clock.monotonic(), session))
        else:
            session.close()
        self._close_idle()

    def topic(self, name: str) -> TopicFacts:
        """Return the facts of a topic."""
        return self._appender.topic(name, VISIBLE_S)

    def admit(self, found: Buffered, facts: TopicFacts, messages: int, size: int) -> int:
        """Return the size of a message; raises CaptureError if it or the capture with it is too large."""
        added = found.size
        limit = self._appender.record_bytes(facts)
        if added > limit:
            raise CaptureError(
                f"topic {found.topic}: a message of about {added} bytes is above the limit of {limit}; store the "
                "payload elsewhere and publish its address, or raise max.message.bytes and message.max.bytes"
            )
        if messages >= self._max_messages:
            raise CaptureError(
                f"max_messages = {self._max_messages}: the capture has as many already; split it into several"
            )
        if size + added > self._max_bytes:
            raise CaptureError(
                f"max_bytes = {self._max_bytes}: the capture would hold {size + added} bytes; split it into several"
            )
        return added

    def append(self, messages: list[Buffered], placed: list[Placed]) -> None:
        """Number and append the messages under one lock, then wait for their own delivery reports.

        ``placed`` is filled before the first record is handed over. Raises CaptureError.
        """
        deadline = clock.monotonic() + self._timing.append_timeout
        receipt = Receipt(len(messages))
        self._append_in_turn(messages, placed, receipt, deadline)
        crash_point("capture.appending")
        if receipt.wait(deadline - clock.monotonic()) and receipt.failure is None:
            return
        self._appender.forget([place.topic for place in placed])
        limit = f"the log did not take the messages within {self._timing.append_timeout:g} s"
        if receipt.failure is None:
            raise CaptureError(f"{limit} ({self._appender.silence()}); run the block again")
        topics = ", ".join(sorted({message.topic for message in messages}))
        raise CaptureError(f"topic {topics}: the log did not take the messages: {self._appender.reason(receipt.failure, '; run the block again')}")

    def _append_in_turn(
        self, messages: list[Buffered], placed: list[Placed], receipt: Receipt, deadline: float
    ) -> None:
        turn: list[Turn] = []
        try:
            if not self._appends.take(turn, self._timing.append_timeout):
                raise CaptureError(
                    f"the log takes nothing for {self._timing.append_timeout:g} s; run the block again"
                )
            numbered = self._numbered(messages, placed)
            self._marking.send_with((topic, partition) for topic, partition, _, _ in placed)
            self._appender.append(numbered, receipt, deadline)
            self._appends.give(turn)
        finally:
            # Again, since the interrupt may have come when it was about to be given.
            self._appends.give(turn)

    def mark(self, capture: bytes, nonce: bytes | None, placed: list[Placed]) -> None:
        """Have the outcome of a capture written behind its messages; committed if the nonce is given."""
        self._marking.submit(Ended(capture, nonce, placed, self.incarnation))

    def doubt(self, capture: bytes, nonce: bytes, placed: list[Placed]) -> None:
        """Have the outcome of a capture found out in the background."""
        self._upkeep.doubt(Ended(capture, nonce, placed, self.incarnation))

    def find_out(self, capture: bytes) -> Decided | None:
        """Ask for a decision whose answer was lost; None if unknown in time."""
        return find_out(self._resource.decisions, self.name.uuid, capture, clock.monotonic() + FIND_OUT_S)

    def _appending(self, kafka: Mapping[str, str], relay: str | None) -> Appender:
        """Return what appends to the log; one for tests has another."""
        return Appender(kafka, self._timing, relay)

    def _numbered(self, messages: list[Buffered], placed: list[Placed]) -> list[Record]:
        records = []
        counts: dict[tuple[str, int], int] = {}
        for topic, partition, key, value, headers in messages:
            place = (topic, partition)
            number = self._sequences.get(place, 0) + 1
            self._sequences[place] = number
            counts[place] = counts.get(place, 0) + 1
            records.append(
                Record(topic, partition, key, value, [*headers, (envelope.SEQUENCE, b"%d" % number)])
            )
        for (topic, partition), count in counts.items():
            last = self._sequences[topic, partition]
            placed.append(Placed(topic, partition, last - count + 1, count))
        return records

    def _close_idle(self, kept_s: float = IDLE_KEPT_S) -> None:
        """Close the connections that have been idle for so long; all of them once this is closed."""
        before = clock.monotonic() - kept_s if self._open else float("inf")
        while self._idle and self._idle[0][0] <= before:
            try:
                since, session = self._idle.popleft()
            except IndexError:
                return  # another thread was faster
            if since > before:
                self._idle.appendleft((since, session))
                return
            session.close()

    def _connect(self) -> Session:
        session = self._resource.session()
        if session.uuid != self.name.uuid:
            session.close()
            raise ConfigError(
                f"resources.{self.name.name}: the database's identity changed from {self.name.uuid} to "
                f"{session.uuid}; open the Capture again if that is meant"
            )
        return session

"""`Capture`: many threads, one producer, a connection each; messages exist if and only if their block committed."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from relay.capture import flow
from relay.capture.async_block import AsyncCaptureBlock, BlockThreads
from relay.capture.block import CaptureBlock
from relay.capture.flow import Entered
from relay.capture.inquiries import Answering
from relay.capture.marking import Ended, Marking
from relay.capture.message import Buffered
from relay.capture.outcomes import Placed
from relay.capture.upkeep import Decided, Upkeep, find_out
from relay.kafka.appender import Appender, Receipt, Record
from relay.kafka.inquiries import InquiryReader
from relay.kafka.registry import Registry, RegistryLike
from relay.kafka.settings import TimingLike
from relay.kafka.topics import VISIBLE_S, TopicFacts
from relay.message import envelope
from relay.message.avro_values import AvroEncoder, parsed_schema
from relay.message.errors import CaptureError, ConfigError, Unreachable
from relay.resources import open_resource
from relay.resources.port import Resource, Session
from relay.resources.turns import Turn
from relay.world import clock, randomness
from relay.world.crash import crash_point

MAX_MESSAGES: Final = 100_000
MAX_BYTES: Final = 64 << 20
FIND_OUT_S: Final = 10.0
CLOSE_S: Final = 10.0
ASYNC_BLOCKS: Final = 32
IDLE_KEPT_S: Final = 60.0
"""A database has few connections: what a burst of threads needed is closed when it has been idle for so long."""


@dataclass(frozen=True)
class DefaultTiming:
    """The limits in seconds for a capture without a configuration file."""

    append_timeout: float = 5.0
    transaction_timeout: float = 10.0
    socket_timeout: float = 8.0
    session_timeout: float = 10.0


class Capture:
    """Captures messages together with transactions of one database. Use from any number of threads.

    Only the process that opened it can use it: a fork has none of its threads, and its connections are the parent's. Worker
    processes that are forked open their own. On SQLite the parent must ``close`` before it forks: nothing may have the file
    open then, or its forks are refused.

    A block needs a database session to itself: an address of PgBouncer's transaction mode is refused (ConfigError). It takes
    up to ``max_messages`` and ``max_bytes`` (100,000 and 64 MiB, as with ``open``). ``inquiries`` is the topic on which relays ask
    this process what they cannot ask the database; without it (None) they wait. Of ``relay``, its name, no topic of its own is
    published to. ``registry`` is the configuration's section about
    a schema registry, which only ``avro`` asks. So many ``async_blocks`` are open at once, each with a thread and a connection;
    others wait until one is over.
    """

    def __init__(
        self,
        *,
        kafka: Mapping[str, str],
        resource: Resource,
        source: str,
        timing: TimingLike | None = None,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
        inquiries: str | None = None,
        relay: str | None = None,
        registry: RegistryLike | None = None,
        async_blocks: int = ASYNC_BLOCKS,
    ) -> None:
        if not source or not isinstance(source, str):
            raise ConfigError(f"source = {source!r} is no name; give a text that names the publisher, such as '/checkout'")
        if async_blocks < 1:
            raise ConfigError(f"async_blocks = {async_blocks} lets no block begin; give at least 1")
        if "\0" in source or not envelope.is_utf8(source):  # queues would take none of its messages
            raise ConfigError(f"source = {source!r} holds a NUL, or half of a surrogate pair; give a text that names the publisher")
        self._timing = timing or DefaultTiming()
        self._resource = resource
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._registry = registry
        self._idle: deque[tuple[float, Session]] = deque()
        """Since when, the last one to the right: it is taken first, so that those to the left are needed no more."""
        self._blocks = object()
        self._threads = BlockThreads(async_blocks)
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
        self._appender = self._appending(kafka, self._timing, relay)
        self._marking = Marking(
            self._appender, resource.decisions, self.source_bytes, self.name, self._timing.append_timeout
        )
        answering = None
        if inquiries is not None:
            answering = Answering(
                lambda: InquiryReader(kafka, self._timing, inquiries),
                self._appender,
                self.source_bytes,
                self.name,
                self._timing.append_timeout,
            )
        self._upkeep = Upkeep(
            self._appender, resource.decisions, self._marking, self.name, answering, self._close_idle
        )

    @classmethod
    def open(
        cls, path: str | Path, *, resource: str, source: str, async_blocks: int = ASYNC_BLOCKS
    ) -> Self:
        """Open by a configuration file, with the name of one of its ``[resources]`` and of this publisher (``ce_source``).

        Raises ConfigError, Unreachable.
        """
        from relay.config.loading import load  # noqa: PLC0415 - a Capture without a file needs no configuration

        config = load(Path(path))
        if resource not in config.resources:
            raise ConfigError(
                f"resource = {resource!r} is not among [resources] of {path}: {', '.join(config.resources) or 'none'}"
            )
        url = config.resources[resource].url.get_secret_value()
        opened = open_resource(resource, url, config.timing.resolver_lock_timeout)
        return cls(
            kafka=config.kafka,
            resource=opened,
            source=source,
            timing=config.timing,
            inquiries=config.inquiries_topic,
            relay=config.relay.name,
            registry=config.registry,
            async_blocks=async_blocks,
        )

    def transaction(self) -> CaptureBlock:
        """Return a block for a ``with`` statement; leaving it commits, or rolls back if an exception leaves it.

        The statement raises what the block raises, and: CaptureError (rolled back: run the block again), CaptureFenced (the
        same, since a resolver was first), CaptureInDoubt (the decision row will tell), Unreachable (nothing was begun),
        RowLocked (nothing was begun: others hold the SQLite file), ConfigError (nothing took effect: a right, a topic or a
        table is missing).
        """
        return CaptureBlock(self)

    def async_transaction(self) -> AsyncCaptureBlock:
        """Return a block for an ``async with`` statement, whose event loop waits neither for the database nor for the log.

        ``await tx.execute(...)``, ``await tx.publish(...)``, ``async with tx.savepoint()``. The statement raises what
        that of ``transaction`` does. One that is cancelled rolls back, unless COMMIT was sent: ``tx.is_committed`` tells.
        """
        return AsyncCaptureBlock(self, self._threads)

    def avro(
        self, topic: str, schema: Path | Mapping[str, Any], *, subject: str | None = None
    ) -> AvroEncoder:
        """Return the encoder that ``publish(schema=...)`` takes: values in a registry's frame if one is configured, else bare.

        The subject is ``TOPIC-value`` unless given. A registry is asked now, so that no block ever waits for it. Raises
        ConfigError for a schema that cannot be read, is not registered or is refused; Unreachable; Stopped for wrong
        credentials.
        """
        parsed, text = parsed_schema(schema)
        if self._registry is None:
            return AvroEncoder(parsed)
        registry = Registry(self._registry)
        try:
            return AvroEncoder(parsed, registry.number_of(subject or f"{topic}-value", text))
        finally:
            registry.close()

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What follows is for CaptureBlock.

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

    def _appending(self, kafka: Mapping[str, str], timing: TimingLike, relay: str | None) -> Appender:
        """Return what appends to the log; one for tests has another."""
        return Appender(kafka, timing, relay)

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
